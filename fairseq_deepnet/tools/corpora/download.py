"""Download a corpus: resumable, in parallel, from several mirrors, and never unverified.

A file gets its name only once it is whole and right: until then it is FILE.part. Right means: the
length that the server announced; the size and checksum of the catalogue (sources.py) where somebody
published them; where nobody did, a whole gzip file, trusted on first use and recorded in
checksums.json, against which it is checked ever after.

Plain HTTP(S) by Python's urllib does the work. mtdata indexes most of these corpora (OPUS-100,
Flores-101, the TED talks, and Europarl v7 and Common Crawl of WMT 2013; not News Commentary v12,
Multi30k or IWSLT 2014), at the same addresses; but its downloader (0.5.1) neither resumes nor
checks lengths or checksums, and turns certificate checks off where they fail. So mtdata is asked
for addresses only (`--via mtdata`), which helps when one has moved; the transfer stays ours.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from .downloader import Downloader, DownloadError
from .sources import CATALOGUE, File


def indexed_by_mtdata(files: Sequence[File]) -> dict[str, tuple[str, ...]]:
    """File name -> the URLs that mtdata's index has for it. Takes seconds, as the index is large.

    Every year's WMT has a dev.tgz: without a checksum that tells them apart, an address counts only
    if nothing but its host is new. Raises ValueError if mtdata is not installed.
    """
    try:
        from mtdata.index import Index
    except ImportError as error:
        raise ValueError(
            "mtdata is not installed: pip install 'fairseq_deepnet[corpora]', or leave --via out"
        ) from error
    by_name = {file.name: file for file in files}
    found: dict[str, dict[str, None]] = {}
    for entry in Index.get_instance().get_entries():
        for url in entry.url if isinstance(entry.url, tuple | list) else (entry.url,):
            path = urlsplit(str(url)).path
            file = by_name.get(path.rsplit("/", 1)[-1])
            if file and (
                file.sha256 or file.md5 or path in (urlsplit(known).path for known in file.urls)
            ):
                found.setdefault(file.name, {})[str(url)] = None
    return {name: tuple(urls) for name, urls in found.items()}


def download(downloader: Downloader, files: tuple[File, ...], jobs: int = 4) -> list[Path]:
    """All the files, `jobs` at a time. Raises ValueError naming every one that could not be had."""
    downloader.folder.mkdir(parents=True, exist_ok=True)
    downloader.records.read()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(downloader.obtain, file) for file in files]
        failures: dict[str, DownloadError] = {}
        paths = []
        try:
            for file, future in zip(files, futures, strict=True):
                try:
                    paths.append(future.result())
                except DownloadError as error:
                    failures[file.name] = error
        except BaseException:
            downloader.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            for file in files:
                _remove_empty(downloader.folder / f"{file.name}.part")
    if failures:
        raise ValueError(_explain(downloader.corpus, len(files), failures))
    return paths


def _explain(corpus: str, count: int, failures: Mapping[str, DownloadError]) -> str:
    """One line: what is missing and why, and what to do about it."""
    offline = all(error.unreachable for error in failures.values())
    if offline:
        urls = [url for error in failures.values() for url in error.causes]
        cause = next(iter(next(iter(failures.values())).causes.values()))
        shown = " ".join(urls[:3]) + (f" and {len(urls) - 3} more, named above" * (len(urls) > 3))
        what = f"no connection ({cause}) to any of {shown}; set https_proxy if you need a "
        what += "proxy, "
    else:
        what = "; ".join(f"{name} ({error})" for name, error in failures.items()) + "; "
    return (
        f"{len(failures)} of {count} files of {corpus} could not be downloaded: {what}"
        "run again to go on, or fetch them in another way and give their folder to the script that"
        " prepares the corpus (RAW=FOLDER)"
    )


def _remove_empty(part: Path) -> None:
    if part.is_file() and part.stat().st_size == 0:
        part.unlink()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet download`."""
    names = "\n".join(f"  {name:<10} {corpus.what}" for name, corpus in CATALOGUE.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"corpora:\n{names}\n\n"
        'DEEPNET_MIRROR="URL ..." is tried first, as URL/CORPUS/FILE; with DEEPNET_MIRROR_ONLY=1\n'
        "nothing else is asked, and what it serves is trusted on first use whatever the catalogue\n"
        "says. http_proxy, https_proxy and no_proxy are honoured."
    )
    parser.add_argument("corpus", nargs="?", metavar="CORPUS", help="one of those named below")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: data/downloads/CORPUS")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="files at a time (4)")
    parser.add_argument(
        "--languages", nargs="+", default=[], metavar="CODE", help="only the files of these"
    )
    parser.add_argument("--via", choices=["mtdata"], help="ask mtdata's index for more addresses")
    parser.add_argument(
        "--accept-changed",
        action="store_true",
        help="take files whose checksum is not the known one, and record theirs",
    )
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="(30)")
    parser.add_argument(
        "--wait", type=float, default=1.0, metavar="SECONDS", help="before the second try (1)"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the files, sizes and URLs; download nothing"
    )


def _mirrors() -> tuple[tuple[str, ...], bool]:
    mirrors = tuple(os.environ.get("DEEPNET_MIRROR", "").split())
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise ValueError(
                f"DEEPNET_MIRROR has {mirror!r}; it must begin with http:// or https://"
            )
    only = os.environ.get("DEEPNET_MIRROR_ONLY", "0")
    if only not in ("0", "1"):
        raise ValueError(f"DEEPNET_MIRROR_ONLY is {only!r}; it must be 0 or 1")
    if only == "1" and not mirrors:
        raise ValueError("DEEPNET_MIRROR_ONLY=1 needs DEEPNET_MIRROR=URL")
    return mirrors, only == "1"


def run(args: argparse.Namespace) -> int:
    """Download, and print the paths; or print the catalogue."""
    if args.corpus not in CATALOGUE and not (args.list and args.corpus is None):
        known = ", ".join(CATALOGUE)
        raise ValueError(f"CORPUS is {args.corpus!r}; choose from {known}")
    if args.list:
        for name in [args.corpus] if args.corpus else CATALOGUE:
            for file in CATALOGUE[name].select(args.languages):
                print(f"{name}/{file.name}", file.size or "-", *file.urls, sep="\t")
        return 0
    for option in ("jobs", "timeout"):
        if getattr(args, option) <= 0:
            raise ValueError(f"--{option} is {getattr(args, option)}; it must be above 0")
    files = CATALOGUE[args.corpus].select(args.languages)
    mirrors, only = _mirrors()
    downloader = Downloader(
        args.corpus,
        args.out or Path("data/downloads") / args.corpus,
        mirrors,
        only,
        args.accept_changed,
        args.timeout,
        max(0.0, args.wait),
        indexed_by_mtdata(files) if args.via == "mtdata" else {},
    )
    try:
        paths = download(downloader, files, args.jobs)
    except OSError as error:  # a full disk, a folder that cannot be written to
        raise ValueError(f"cannot write to {downloader.folder}: {error}") from error
    print(*paths, sep="\n")
    return 0
