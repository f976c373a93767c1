"""Download a corpus: resumable, in parallel, from several mirrors, and never unverified.

A file gets its name only once it is whole and right: until then it is FILE.part. Right means: the
length that the server announced; the size and checksum of the catalogue (published/) where somebody
published them; where nobody did, a whole gzip file, trusted on first use and recorded in
checksums.json (size, SHA-256, where from, why it was trusted), against which it is checked ever
after.

mtdata indexes most of these corpora, at the same addresses; but its downloader (0.5.1) neither
resumes nor checks lengths or checksums, and turns certificate checks off where they fail. So it is
asked for addresses only (`--via mtdata`), which helps when one has moved.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from fairseq_deepnet.files import ROOT, locked, write_json
from fairseq_deepnet.provenance import now
from fairseq_deepnet.records import lacking, read_record
from fairseq_deepnet.tools.corpora.archive import open_packed
from fairseq_deepnet.tools.corpora.published import Corpus, File, catalogue
from fairseq_deepnet.tools.corpora.transfer import SourceError, Transfer, log, size_of

RECORDS: Final = "checksums.json"


def checksum(path: Path, kind: str) -> str:
    """Return the hexadecimal SHA-256 or MD5 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(
            stream, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()


def damage(path: Path, name: str) -> str | None:
    """Return what is visibly wrong with the file that is to be called `name`, or None.

    A gzip file is read to its end, where it holds its own checksum and length.
    """
    if path.stat().st_size == 0:
        return "it is empty"
    if name.endswith((".gz", ".tgz")):
        try:
            with open_packed(path) as stream:
                while stream.read(1 << 20):
                    pass
        except ValueError as error:
            return str(error)
        except (OSError, EOFError, zlib.error) as error:
            return f"it is not a whole gzip file ({error})"
    return None


def judge(
    file: File, path: Path, record: dict[str, Any] | None, accept: bool = False
) -> dict[str, Any]:
    """Return size and checksum of the file at `path`, and why it is trusted, as a record has them.

    An earlier record comes before the catalogue, as the catalogue may be older; `accept` overrules
    both. Raises ValueError with what is wrong: size, checksum or a damaged archive.
    """
    size, sha256 = path.stat().st_size, checksum(path, "sha256")
    found = {"size": size, "sha256": sha256}
    if record and not accept:
        if sha256 != record["sha256"]:
            raise ValueError(
                f"its SHA-256 is {sha256[:12]}..., recorded in {RECORDS} is "
                f"{record['sha256'][:12]}..."
            )
        return found | {"trusted": str(record.get("trusted"))}
    if not accept:
        if file.size not in (None, size):
            raise ValueError(f"it has {size:,} bytes instead of {file.size:,}")
        for kind, known in (("sha256", file.sha256), ("md5", file.md5)):
            if not known:
                continue
            if (here := checksum(path, kind)) != known:
                raise ValueError(
                    f"its {kind.upper()} is {here[:12]}... instead of the {known[:12]}... of "
                    f"{file.published}"
                )
            return found | {"trusted": f"{kind} published by {file.published}"}
    if problem := damage(path, file.name):
        raise ValueError(problem)
    return found | {"trusted": "told to accept" if accept else "first use"}


class DownloadError(Exception):
    """Why one file could not be had: what each URL said, or what is wrong with the file there."""

    def __init__(self, causes: Mapping[str, str] | str, unreachable: bool = False) -> None:
        super().__init__(causes)
        self.causes = {"": causes} if isinstance(causes, str) else dict(causes)
        self.unreachable = unreachable

    def __str__(self) -> str:
        """Return the URLs by cause, as many say the same."""
        places: dict[str, list[str]] = {}
        for url, cause in self.causes.items():
            places.setdefault(cause, []).append(url)
        return "; ".join(
            f"{' '.join(urls)}: {cause}".lstrip(": ") for cause, urls in places.items()
        )


@dataclass
class Downloader:
    """Brings files of a corpus into `folder`, each from the first of its URLs that is good.

    Args:
        mirrors: URL prefixes tried before the catalogue's, as PREFIX/CORPUS/FILE.
        only_mirrors: ask nothing else, and trust what they serve on first use even where the
            catalogue knows a checksum, because a mirror of one's own may hold its own edition.
        accept: take files whose checksum is another than the known one.
        extra: more URLs, by the name of the file.
    """

    corpus: str
    folder: Path
    mirrors: tuple[str, ...] = ()
    only_mirrors: bool = False
    accept: bool = False
    timeout: float = 30.0
    wait: float = 1.0
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the records of checksums.json, by the name of the file; empty at first."""
        path, remedy = self.folder / RECORDS, "remove it to trust anew"
        if not path.is_file():
            return {}
        records = read_record(path, remedy=remedy)
        for name, held in records.items():
            if fault := lacking(held, {"sha256": str}):
                raise ValueError(f"{path} is damaged: {name}: {fault}; {remedy}")
        return records

    def _remember(self, name: str, found: dict[str, Any], source: str) -> None:
        """Record a file that was found to be right."""
        with self._lock:
            records = self.records() | {name: found | {"source": source, "checked": now()}}
            write_json(self.folder / RECORDS, dict(sorted(records.items())))

    def urls(self, file: File) -> list[str]:
        """Return where to look for a file, in order, each place once."""
        places = [f"{mirror.rstrip('/')}/{self.corpus}/{file.name}" for mirror in self.mirrors]
        if not self.only_mirrors:
            places += [*file.urls, *self.extra.get(file.name, ())]
        return list(dict.fromkeys(places))

    def expected(self, file: File) -> File:
        """Return the catalogue's entry, without its checksums where they do not count."""
        known = not (self.only_mirrors or self.accept)
        return file if known else replace(file, size=None, sha256=None, md5=None)

    def obtain(self, file: File) -> Path:
        """Return the path of a file that is there and right; download it if needed.

        Raises DownloadError with the cause for each URL, or InterruptedTransferError.
        """
        path = self.folder / file.name
        if path.is_file():
            return self._check_present(file, path)
        causes: dict[str, str] = {}
        unreachable = True
        try:
            with locked(path.with_name(f"{file.name}.part")) as stream:
                if path.is_file():  # another process has finished it meanwhile
                    return self._check_present(file, path)
                for url in self.urls(file):
                    try:
                        self._from(url, file, path, stream)
                        return path
                    except SourceError as error:
                        unreachable &= error.unreachable
                        causes[url] = str(error)
                        log(f"{file.name}: {url}: {error}")
        except BlockingIOError:
            raise DownloadError("another download of it is under way; wait for it") from None
        raise DownloadError(causes, unreachable)

    def _check_present(self, file: File, path: Path) -> Path:
        record = self.records().get(file.name)
        try:
            found = judge(self.expected(file), path, record, self.accept)
        except ValueError as error:
            raise DownloadError(
                f"{path} is there, but {error}; remove it to download it again"
            ) from error
        if not record or self.accept:
            self._remember(file.name, found, "found in the folder")
        log(f"{file.name}: there already, {size_of(found['size'])}, {found['trusted']}")
        return path

    def _from(
        self, url: str, file: File, path: Path, stream: BinaryIO, afresh: bool = False
    ) -> None:
        known = self.expected(file)
        part = path.with_name(f"{file.name}.part")
        checked = bool(known.sha256 or known.md5)
        transfer = Transfer(
            part, known.size, checked, timeout=self.timeout, wait=self.wait, stop=self.stop
        )
        record = self.records().get(file.name)
        resumed = transfer.fetch(url, stream)
        try:
            found = judge(known, part, record, self.accept)
        except ValueError as error:
            transfer.discard(stream)
            if afresh or not resumed:
                raise SourceError(f"refused, because {error}") from error
            log(f"{file.name}: what was continued does not fit together ({error}); starting afresh")
            self._from(url, file, path, stream, afresh=True)
            return
        os.fsync(stream.fileno())
        self._remember(file.name, found, url)
        part.replace(path)
        transfer.forget()
        trust = found["trusted"]
        if trust == "first use":
            trust = f"trusted on first use and recorded in {self.folder / RECORDS}"
        log(f"{file.name}: {size_of(found['size'])}, SHA-256 {found['sha256'][:12]}..., {trust}")


def indexed_by_mtdata(files: Sequence[File]) -> dict[str, tuple[str, ...]]:
    """Return the URLs that mtdata's index has for each file. Takes seconds: the index is large.

    Every year's WMT has a dev.tgz: without a checksum by which they differ, an address counts only
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
    """Bring all the files, `jobs` at a time; ValueError naming every one that could not be had."""
    downloader.folder.mkdir(parents=True, exist_ok=True)
    downloader.records()
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
                part = downloader.folder / f"{file.name}.part"
                if part.is_file() and part.stat().st_size == 0:
                    part.unlink()
    if failures:
        raise ValueError(_explain(downloader.corpus, len(files), failures))
    return paths


def _explain(corpus: str, count: int, failures: Mapping[str, DownloadError]) -> str:
    """Return one line: what is missing and why, and what to do about it."""
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


def fetch(
    corpus: str,
    folder: Path,
    languages: Sequence[str] = (),
    jobs: int = 4,
    via: str | None = None,
    **options: Any,
) -> list[Path]:
    """Download a corpus, or its files of some languages, and return their paths.

    `options` are further ones of `Downloader`; `via` asks mtdata's index for more addresses.
    """
    files = catalogue()[corpus].select(languages)
    mirrors, only = _mirrors()
    extra = indexed_by_mtdata(files) if via else {}
    downloader = Downloader(corpus, folder, mirrors, only, extra=extra, **options)
    try:
        return download(downloader, files, jobs)
    except OSError as error:  # a full disk, a folder that cannot be written to
        raise ValueError(f"cannot write to {folder}: {error}") from error


def downloadable() -> dict[str, Corpus]:
    """Return the corpora that have files to download, by name."""
    return {name: corpus for name, corpus in catalogue().items() if corpus.files}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deepnet download`."""
    names = "\n".join(f"  {name:<10} {corpus.what}" for name, corpus in downloadable().items())
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
    parser.add_argument("--dry-run", action="store_true", help="print what would be downloaded")
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
    corpora = downloadable()
    if args.corpus not in corpora and not (args.list and args.corpus is None):
        raise ValueError(f"CORPUS is {args.corpus!r}; choose from {', '.join(corpora)}")
    if args.list:
        for name in [args.corpus] if args.corpus else corpora:
            for file in corpora[name].select(args.languages):
                print(f"{name}/{file.name}", file.size or "-", *file.urls, sep="\t")
        return 0
    if args.dry_run:
        target = args.out or ROOT / "data" / "downloads" / args.corpus
        for file in corpora[args.corpus].select(args.languages):
            print(f"would download {file.urls[0]} to {target / file.name}")
        return 0
    for option in ("jobs", "timeout"):
        if getattr(args, option) <= 0:
            raise ValueError(f"--{option} is {getattr(args, option)}; it must be above 0")
    paths = fetch(
        args.corpus,
        args.out or ROOT / "data" / "downloads" / args.corpus,
        args.languages,
        args.jobs,
        args.via,
        accept=args.accept_changed,
        timeout=args.timeout,
        wait=max(0.0, args.wait),
    )
    print(*paths, sep="\n")
    return 0
