"""A local server of files that can be made to misbehave, and a proxy."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """One file and how it is served.

    `drops` holds, for the first answers, after how many bytes the connection ends; `announced` is
    a wrong Content-Length; `statuses` are answers that come before the file; `pause_at` makes the
    server wait for `go_on` when it has sent so many bytes.
    """

    content: bytes
    ranges: bool = True
    etag: bool = True
    kind: str = "application/octet-stream"
    announced: int | None = None
    drops: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    pause_at: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'


class Server(ThreadingHTTPServer):
    """Serves `files` by path; `asked` remembers every path with the Range that was wanted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Served] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.meet: threading.Barrier | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, path: str, content: bytes) -> Served:
        """Serve `content` at /path."""
        self.files[f"/{path}"] = served = Served(content)
        return served

    def ranges(self, path: str) -> list[str | None]:
        """The Range of each request for /path, in order."""
        return [wanted for asked, wanted in self.asked if asked == f"/{path}"]

    def handle_error(self, *_: object) -> None:
        """A client that is killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # A proxy is asked for whole URLs.
        path = "/" + self.path.split("://")[1].split("/", 1)[1] if "://" in self.path else self.path
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.server.meet:
            self.server.meet.wait()
        self.close_connection = True
        file = self.server.files.get(path)
        if file is None or file.statuses:
            self._fail(404 if file is None else file.statuses.pop(0))
            return
        content, start = file.content, 0
        if wanted and file.ranges and self.headers.get("If-Range") == file.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        self.send_header("Content-Type", file.kind)
        length = len(content) if file.announced is None else file.announced
        self.send_header("Content-Length", str(length - start))
        if file.etag:
            self.send_header("ETag", file.tag)
        self.end_headers()
        end = file.drops.pop(0) if file.drops else length
        if file.pause_at is not None and start < file.pause_at:
            self.wfile.write(content[start : file.pause_at])
            self.wfile.flush()
            file.go_on.wait(600)
            start = file.pause_at
        self.wfile.write(content[start:end])

    def _fail(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Retry-After", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server that runs until the block ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            for file in server.files.values():
                file.go_on.set()
            server.shutdown()
            thread.join()


PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
