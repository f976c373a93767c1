"""Resumable downloads of corpora from several addresses, verified by size and checksum.

A file is named FILE.part until it is complete and right. Its size and checksum are those that
somebody published (published.yaml names who). For other files, the first download is trusted if a
gzip file is readable to its end, and its SHA-256 is stored in checksums.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from tqdm import tqdm

from fairseq_deepnet.files import ROOT, locked, put_in_place, write_json
from fairseq_deepnet.records import read_record, sha256
from fairseq_deepnet.tools.corpora.published import CORPORA, File

RECORDS: Final = "checksums.json"
TRIES: Final = 5
"""Tries of one address in a row without progress."""
PAUSE: Final = 1.0
"""Seconds before the second try; doubled after each."""
TIMEOUT: Final = 30.0
_AGENT: Final = "fairseq_deepnet (deepnet download; Python urllib)"


def _log(text: str) -> None:
    tqdm.write(f"[download] {text}", file=sys.stderr)


def judge(file: File, path: Path, recorded: str | None) -> str:
    """Return the SHA-256 of the file at `path`; ValueError for a wrong one.

    Args:
        recorded: SHA-256 in checksums.json.
    """
    size, digest = path.stat().st_size, str(sha256(path))
    record = f"of an earlier download; remove its line in {path.parent / RECORDS} to accept it"
    checksums = [(recorded, digest, record), (file.sha256, digest, file.published)]
    if file.md5:
        with path.open("rb") as stream:
            md5 = hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False))
        checksums.append((file.md5, md5.hexdigest(), file.published))
    if file.size not in (None, size):
        raise ValueError(f"it has {size:,} bytes instead of {file.size:,}")
    for expected, actual, source in checksums:
        if expected and expected != actual:
            raise ValueError(
                f"its checksum is {actual[:12]}... instead of {expected[:12]}... ({source})"
            )
    if size == 0:
        raise ValueError("it is empty")
    if file.name.endswith((".gz", ".tgz")):
        try:
            with gzip.open(path) as stream:
                while stream.read(1 << 20):
                    pass
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"it is not a complete gzip file ({error})") from error
    return digest


def _request(url: str, begun: int, tag: str) -> Any:
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if begun and tag:  # the server sends the whole file if it is another one now
        headers |= {"Range": f"bytes={begun}-", "If-Range": tag}
    request = urllib.request.Request(url, headers=headers)
    # a new opener: urlopen's own keeps the proxies that were set when it was first used
    return urllib.request.build_opener().open(request, timeout=TIMEOUT)


def _transfer(url: str, part: BinaryIO, name: str, notes: Path) -> None:
    """Fill `part` from a URL, resuming what an earlier try has left; OSError or ValueError."""
    begun = part.seek(0, os.SEEK_END)
    before = read_record(notes) if begun and notes.is_file() else {}
    tag = str(before.get("tag", "")) if before.get("url") == url else ""
    try:
        response = _request(url, begun, tag)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.truncate(0)  # what is there is not the beginning of the file
        response = _request(url, 0, "")
    with response:
        if response.headers.get_content_type() == "text/html":
            raise ValueError("the server sends a web page instead of the file")
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            raise ValueError("the server sends another piece of the file than was asked for")
        if not resumed:
            begun = 0
            part.truncate(0)
            part.seek(0)
        weak = response.headers.get("ETag", "W/").startswith("W/")
        tag = response.headers.get("Last-Modified" if weak else "ETag", "")
        write_json(notes, {"url": url, "tag": tag})
        length = response.headers.get("Content-Length")
        total = begun + int(length) if length else None
        pause = 0.1 if sys.stderr.isatty() else 10
        with tqdm(
            desc=name, initial=begun, total=total, unit="B", leave=False, mininterval=pause
        ) as bar:
            while block := response.read1(1 << 18):
                part.write(block)
                part.flush()
                bar.update(len(block))
        if total is not None and part.tell() != total:
            raise OSError(f"the connection ended after {part.tell():,} of {total:,} bytes")


def _download_from(url: str, file: File, part: BinaryIO, notes: Path) -> None:
    """Fill `part` from one address, with several tries."""
    fruitless, pause = 0, PAUSE
    while True:
        before = part.seek(0, os.SEEK_END)
        try:
            _transfer(url, part, file.name, notes)
            return
        except (OSError, http.client.HTTPException) as error:
            status = getattr(error, "code", None)
            if status and status < 500 and status not in (408, 429):
                raise
            fruitless = 0 if part.seek(0, os.SEEK_END) > before else fruitless + 1
            unreachable = isinstance(error, urllib.error.URLError) and not status
            if fruitless >= (2 if unreachable and not before else TRIES):
                raise
        time.sleep(pause)
        pause = min(2 * pause, 60.0)


def _download(
    file: File, urls: Sequence[str], part: BinaryIO, place: Path, recorded: str | None
) -> str:
    """Fill `part`, the file `place`, from the first address with the right file.

    Returns its SHA-256. Raises ValueError with the cause for each address.
    """
    causes = []
    notes = place.with_name(f"{place.name}.json")
    for url in urls:
        try:
            while True:
                resumed = part.seek(0, os.SEEK_END) > 0
                _download_from(url, file, part, notes)
                try:
                    return judge(file, place, recorded)
                except ValueError:  # of a resumed file, both parts may be right
                    part.truncate(0)
                    if not resumed:
                        raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            if getattr(error, "filename", None) and not isinstance(error, urllib.error.URLError):
                raise  # an error of the disk
            causes.append(f"{url}: {getattr(error, 'reason', None) or error}")
            _log(f"{file.name}: {causes[-1]}")
    raise ValueError("; ".join(causes))


def obtain(corpus: str, file: File, folder: Path) -> tuple[Path, str]:
    """Return path and SHA-256 of a correct file after downloading it if it does not exist.

    Raises ValueError with the cause for each address.
    """
    path, part_path = folder / file.name, folder / f"{file.name}.part"
    recorded = _recorded(folder).get(file.name)
    if path.is_file():
        try:
            return path, judge(file, path, recorded)
        except ValueError as error:
            raise ValueError(f"{path} is there, but {error}; remove it") from error
    mirror = os.environ.get("DEEPNET_MIRROR", "").split()
    urls = [f"{place.rstrip('/')}/{corpus}/{file.name}" for place in mirror] or file.urls
    try:
        with locked(part_path) as part:
            digest = _download(file, urls, part, part_path, recorded)
            os.fsync(part.fileno())
            put_in_place(part_path, path)
    except BlockingIOError:
        raise ValueError(f"{file.name}: another process is downloading it") from None
    part_path.with_name(f"{part_path.name}.json").unlink(missing_ok=True)
    _log(f"{file.name}: {path.stat().st_size:,} bytes, SHA-256 {digest[:12]}...")
    return path, digest


def _recorded(folder: Path) -> dict[str, Any]:
    record = folder / RECORDS
    return read_record(record) if record.is_file() else {}


def fetch(corpus: str, folder: Path, languages: Sequence[str] = ()) -> list[Path]:
    """Download a corpus, or its files of some languages, and return their paths.

    Raises ValueError that names every file that could not be downloaded.
    """
    files = CORPORA[corpus].select(languages)
    folder.mkdir(parents=True, exist_ok=True)
    failures, results = [], {}
    pool = ThreadPoolExecutor(4)
    try:
        futures = {file.name: pool.submit(obtain, corpus, file, folder) for file in files}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except ValueError as error:
                failures.append(f"{name} ({error})")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    digests = {name: digest for name, (_, digest) in results.items()}
    write_json(folder / RECORDS, dict(sorted({**_recorded(folder), **digests}.items())))
    if failures:
        raise ValueError(
            f"{len(failures)} of {len(files)} files of {corpus} could not be downloaded:"
            f" {'; '.join(failures)}; run again to resume (https_proxy sets a proxy), or download"
            " them in another way and set RAW=FOLDER (--raw)"
        )
    return [path for path, _ in results.values()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet download`."""
    names = "\n".join(f"  {name:<10} {corpus.what}" for name, corpus in CORPORA.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"corpora:\n{names}\n\n"
        'DEEPNET_MIRROR="URL ..." replaces the addresses by URL/CORPUS/FILE; http_proxy,\n'
        "https_proxy and no_proxy are honoured."
    )
    parser.add_argument("corpus", choices=CORPORA, metavar="CORPUS", help="one of those below")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="data/downloads/CORPUS")
    parser.add_argument(
        "--languages", nargs="+", default=[], metavar="CODE", help="only the files of these"
    )
    parser.add_argument("--dry-run", action="store_true", help="print files and addresses only")


def run(args: argparse.Namespace) -> int:
    """Download, and print the paths."""
    folder = args.out or ROOT / "data" / "downloads" / args.corpus
    if args.dry_run:
        for file in CORPORA[args.corpus].select(args.languages):
            print(f"would download {' or '.join(file.urls)} to {folder / file.name}")
        return 0
    print(*fetch(args.corpus, folder, args.languages), sep="\n")
    return 0
