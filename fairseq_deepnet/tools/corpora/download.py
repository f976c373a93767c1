"""Resumable downloads of corpora from several addresses, with verified sizes and checksums.

A download is named FILE.part until it is verified: its size and checksum must equal the published
values, if any (published.yaml names their sources), and gzip files must be readable to their end.
"""

import argparse
import gzip
import hashlib
import http.client
import os
import shutil
import sys
import time
import urllib.request
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final

from tqdm import tqdm

from fairseq_deepnet.files import ROOT, locked, put_in_place
from fairseq_deepnet.tools.corpora.published import CORPORA, File

TRIES: Final = 5  # tries per address
PAUSE: Final = 2.0  # seconds before each second try; 2 * PAUSE before each third, and so on
_GZIP: Final = (".gz", ".tgz")


def verify(file: File, path: Path) -> None:
    """Raise ValueError if the file at `path` is incomplete or differs from the published file."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError("it is empty")
    if file.size not in (None, size):
        raise ValueError(f"it has {size:,} bytes instead of {file.size:,}")
    for algorithm, expected in (("sha256", file.sha256), ("md5", file.md5)):
        with path.open("rb") as stream:
            checksum = hashlib.file_digest(stream, algorithm).hexdigest() if expected else None
        if checksum != expected:
            raise ValueError(
                f"its {algorithm} is {checksum} instead of {expected} ({file.published})"
            )
    if file.name.endswith(_GZIP):
        try:
            with gzip.open(path) as stream:
                while stream.read(1 << 20):
                    pass
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"it is not a complete gzip file ({error})") from error


def _transfer(url: str, file: File, part: BinaryIO) -> None:
    """Download a URL to `part`; continue a partial download if the result can be verified."""
    begun = max(part.seek(0, os.SEEK_END) - 1, 0)  # servers refuse to send 0 bytes
    headers = {"User-Agent": "fairseq_deepnet", "Accept-Encoding": "identity"}
    if begun and (file.name.endswith(_GZIP) or file.sha256 or file.md5):
        headers["Range"] = f"bytes={begun}-"
    request = urllib.request.Request(url, headers=headers)
    # urlopen would keep the proxies that were set at its first call
    with urllib.request.build_opener().open(request, timeout=30) as response:
        if response.headers.get_content_type() == "text/html":
            raise OSError("the server sent a web page instead of the file")
        if response.status != 206:
            begun = 0
        part.truncate(begun)
        length = response.headers.get("Content-Length")
        total = begun + int(length) if length else None
        pause = 0.1 if sys.stderr.isatty() else 10
        bar = {"desc": file.name, "initial": begun, "total": total, "mininterval": pause}
        with tqdm.wrapattr(part, "write", leave=False, **bar) as out:
            shutil.copyfileobj(response, out, 1 << 18)
        part.flush()
    if total is not None and part.tell() != total:
        raise OSError(f"the connection ended after {part.tell():,} of {total:,} bytes")


def _obtain(corpus: str, file: File, folder: Path) -> Path:
    """Return the path of a verified file; download it if it does not exist.

    Raises ValueError if the existing file is invalid, or no address provides a valid file.
    """
    path, part_path = folder / file.name, folder / f"{file.name}.part"
    if path.is_file():
        try:
            verify(file, path)
        except ValueError as error:
            raise ValueError(f"{path} exists, but {error}; remove it") from error
        return path
    mirrors = os.environ.get("DEEPNET_MIRROR", "").split()
    urls = [f"{mirror.rstrip('/')}/{corpus}/{file.name}" for mirror in mirrors] or [*file.urls]
    causes = {}
    try:
        with locked(part_path) as part:
            for number, url in enumerate(urls * TRIES):
                time.sleep(PAUSE * (number // len(urls)))
                try:
                    _transfer(url, file, part)
                    verify(file, part_path)
                    put_in_place(part_path, path)
                    return path
                except (OSError, ValueError, http.client.HTTPException) as error:
                    causes[url] = f"{url}: {getattr(error, 'reason', None) or error}"
                    tqdm.write(f"[download] {causes[url]}", file=sys.stderr)
                    if isinstance(error, ValueError) or getattr(error, "code", None) == 416:
                        part.truncate(0)  # not the beginning of this file
    except BlockingIOError:
        raise ValueError("another process is downloading it") from None
    raise ValueError("; ".join(causes.values()))


def fetch(corpus: str, folder: Path, languages: Sequence[str] = ()) -> list[Path]:
    """Download a corpus, or only its files for certain languages; return the paths of the files.

    Raises ValueError if a file could not be downloaded; the message names each such file.
    """
    files = CORPORA[corpus].select(languages)
    folder.mkdir(parents=True, exist_ok=True)
    paths, failures = [], []
    pool = ThreadPoolExecutor(4)
    try:
        futures = [pool.submit(_obtain, corpus, file, folder) for file in files]
        for file, future in zip(files, futures, strict=True):
            try:
                paths.append(future.result())
            except ValueError as error:
                failures.append(f"{file.name} ({error})")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failures:
        raise ValueError(
            f"{len(failures)} of {len(files)} files of {corpus} could not be downloaded:"
            f" {'; '.join(failures)}; run again to resume (https_proxy sets a proxy), or download"
            " them in another way and set RAW=FOLDER (--raw)"
        )
    return paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet download`."""
    names = "\n".join(f"  {name:<10} {corpus.what}" for name, corpus in CORPORA.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"corpora:\n{names}\n\n"
        'DEEPNET_MIRROR="URL ..." replaces the addresses with URL/CORPUS/FILE; http_proxy,\n'
        "https_proxy and no_proxy are honoured."
    )
    parser.add_argument("corpus", choices=CORPORA, metavar="CORPUS", help="a name listed below")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder (data/downloads/CORPUS)")
    languages = "download only these languages"
    parser.add_argument("--languages", nargs="+", default=[], metavar="CODE", help=languages)


def run(args: argparse.Namespace) -> int:
    """Download a corpus, and print the paths of its files."""
    folder = args.out or ROOT / "data" / "downloads" / args.corpus
    print(*fetch(args.corpus, folder, args.languages), sep="\n")
    return 0
