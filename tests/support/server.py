"""A local file server with optional faults."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """A file and the server's answers to requests for it.

    `drops` lists the numbers of bytes after which the first connections end, and `status` is an
    answer without the file.
    """

    content: bytes
    ranges: bool = True
    kind: str = "application/octet-stream"
    drops: list[int] = field(default_factory=list)
    status: int | None = None


class Server(ThreadingHTTPServer):
    """Serve `files` by path; `asked` records the path and the Range of every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Served] = {}
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, path: str, content: bytes) -> Served:
        """Serve `content` at /path."""
        self.files[f"/{path}"] = served = Served(content)
        return served


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        span = self.headers.get("Range")
        self.server.asked.append((self.path, span))
        self.close_connection = True
        file = self.server.files[self.path]
        length = len(file.content)
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and file.ranges else 0
        if status := 416 if 0 < length <= start else file.status:
            self._answer(status, {"Content-Length": "0"})
            return
        headers = {"Content-Type": file.kind, "Content-Length": str(length - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{length - 1}/{length}"
        self._answer(206 if start else 200, headers)
        self.wfile.write(file.content[start : file.drops.pop(0) if file.drops else length])

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Run a server until the block ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
