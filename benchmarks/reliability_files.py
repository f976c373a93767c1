"""What damaged files and full disks do: every kind of file, flipped, cut, misshapen, taken away.

    python benchmarks/reliability_files.py                       # all; an hour on one core
    python benchmarks/reliability_files.py --only 'dict*' --flips 10 --truncations 5

A data folder, a training of 12 updates, exports and scores of it are made in a temporary folder.
Then, try after try, one file is damaged, one command that reads it runs in a process of its own,
and what it does is compared with what it does to the whole file:

    told       exit status 1 or 2 and one line that says why
    same       the output is that of the whole file: the damage is where nobody looks
    other      another output, of a file that has no digest: what a person writes, and logs
    traceback  a traceback, a crash, a hang, or a failure without a word
    silent     another output of a file that has a digest

A full disk is a limit on the size of files (RLIMIT_FSIZE), at ten sizes; read-only folders are
without write permission. There "told" is exit status 2, one line, and nothing left behind that is
not whole. Exit status 1 where anything is in the last two columns. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import importlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

os.environ |= {"OMP_NUM_THREADS": "1", "DEEPNET_SKIP_SETUP": "1", "MPLBACKEND": "agg"}

COLUMNS = ("told", "same", "other", "traceback", "silent")
PATIENCE = 120  # seconds: no command takes 20
SHAPE = (
    "--encoder-layers=2 --decoder-layers=2 --encoder-embed-dim=16 --decoder-embed-dim=16"
    " --encoder-ffn-embed-dim=16 --decoder-ffn-embed-dim=16 --encoder-attention-heads=2"
    " --decoder-attention-heads=2"
)
TINY = f"{SHAPE} --max-update=12 --save-interval-updates=6 --warmup-updates=2 --max-tokens=1000"
TINY += " --monitor-interval=4"

WORDS = {
    "GENERATE": "--path=run/checkpoints/checkpoint_best.pt --beam=1 --cpu",
    "TRAIN": f"{SHAPE} --arch=deepnet_transformer --optimizer=adam --lr=0.001"
    " --max-update=1 --max-tokens=1000 --no-save --cpu --log-format=none --save-dir=OUT"
    " --source-lang=de --target-lang=en",
    "RESUME": "--restore-file=run/checkpoints/checkpoint_last.pt --reset-dataloader"
    " --reset-optimizer",
    "RECORD": "deepnet train --record-only config.yaml --run=run --data=data --gpus=0",
    "TRANSLATE": "deepnet translate run raw/test.de --beam=1 --scores",
    "SERVE": "deepnet translate ct2 raw/test.de --beam=1 --scores",
    "TO_CT2": "deepnet export run --to=ctranslate2 --out=OUT/model",
    "AVERAGE": "deepnet average run --last=2 --out=OUT/mean.pt",
    "SCORE": "deepnet evaluate run --engine=ctranslate2 --beam=1 --out=OUT",
    "PERPLEXITY": "deepnet perplexity run_lm --gpus=0 --out=OUT",
    "PLOT": "deepnet plot run --out=OUT/page.html",
    "PAIR": "deepnet preprocess pair --src=de --tgt=en --train=raw/train --valid=raw/valid"
    " --vocab-size=100 --out=OUT/c --workers=1",
    "PAIRS": "deepnet preprocess pairs pairs.tsv --vocab-size=150 --out=OUT/p --workers=1",
    "MONOLINGUAL": "deepnet preprocess language --lang-code=de --train=raw/valid --valid=raw/test"
    " --vocab-size=100 --out=OUT/m",
    "BLEU": "deepnet score --hypotheses=raw/test.de --references=raw/test.en",
    "SWEEP": "deepnet sweep sweep.yaml --gpus=0 --data=data max-update=4 monitor-interval=2",
    "BEST": "run/checkpoints/checkpoint_best.pt",
    "LAST": "run/checkpoints/checkpoint_last.pt",
}
"""Short names of the table below; OUT is an empty folder."""

# kind of file | file | command that reads it | "-" where no digest of the file is recorded
CASES = """
checkpoint             | BEST                    | TRANSLATE
checkpoint             | BEST                    | deepnet export run --to=fairseq --out=OUT/m.pt
checkpoint             | BEST                    | deepnet check BEST
checkpoint             | run/checkpoints/checkpoint_1_6.pt | AVERAGE
checkpoint             | BEST                    | fairseq-generate data GENERATE
checkpoint             | LAST                    | fairseq-train data TRAIN RESUME
checkpoint             | LAST                    | RECORD
stock export           | stock.pt                | fairseq-generate data --path=stock.pt --beam=1
dictionary             | data/dict.de.txt        | TRANSLATE
dictionary             | data/dict.en.txt        | TO_CT2
dictionary             | data/dict.en.txt        | fairseq-generate data GENERATE
dictionary             | data/dict.de.txt        | fairseq-train data TRAIN
dictionary             | data/dict.de.txt        | RECORD
dictionary, no record  | bare/dict.en.txt        | fairseq-generate bare GENERATE
subword model          | data/spm.model          | TRANSLATE
subword model          | data/spm.model          | TO_CT2
.bin                   | data/test.de-en.de.bin  | fairseq-generate data GENERATE
.bin                   | data/train.de-en.en.bin | fairseq-train data TRAIN
.bin                   | lm/test.bin             | PERPLEXITY
.bin, no record        | bare/test.de-en.de.bin  | fairseq-generate bare GENERATE | -
.idx                   | data/test.de-en.de.idx  | fairseq-generate data GENERATE
.idx                   | data/train.de-en.en.idx | fairseq-train data TRAIN
.idx, no record        | bare/test.de-en.de.idx  | fairseq-generate bare GENERATE
corpus.json            | data/corpus.json        | TRANSLATE
corpus.json            | data/corpus.json        | RECORD
environment.json       | run/environment.json    | TRANSLATE
export.json            | ct2/export.json         | SERVE
model.bin of an export | ct2/model.bin           | SERVE
vocabulary of an export | ct2/shared_vocabulary.json | SERVE
references             | data/text/test.en       | SCORE
scores                 | cells/1l/scores/test.best.json | deepnet report cells
scores                 | cells/1l/scores/test.best.json | deepnet report cells two --significance
scores of directions   | many/de-en.json         | deepnet directions many
result.json            | cells/1l/result.json   | deepnet report cells
cell.json              | cells/1l/cell.json     | SWEEP --runs=cells --dry-run
fallback.json          | run/fallback.json       | fallbacks run
config.yaml of a run   | run/config.yaml         | TRANSLATE | -
config.yaml of a run   | run/config.yaml         | RECORD | -
config                 | config.yaml             | deepnet args config.yaml | -
config                 | config.yaml             | deepnet plan config.yaml | -
config                 | config.yaml             | RECORD | -
sweep's definition     | sweep.yaml              | SWEEP --runs=other --dry-run | -
monitor.jsonl          | run/monitor.jsonl       | PLOT | -
train.log              | run/train.log           | PLOT | -
text                   | raw/train.de            | PAIR | -
text                   | raw/valid.de            | MONOLINGUAL | -
text                   | raw/test.de             | SERVE | -
text                   | raw/valid.de            | MONOLINGUAL | -
text                   | raw/test.de             | BLEU | -
table of pairs         | pairs.tsv               | PAIRS | -
"""
# not PERPLEXITY: the shared memory of its workers is files, too, and the limit would hold for them
WRITERS = """
AVERAGE
TO_CT2
deepnet export run --to=fairseq --out=OUT/m.pt
SCORE
PLOT
PAIR
PAIRS
MONOLINGUAL
SERVE --out=OUT/text
deepnet directions many
deepnet report cells --csv=OUT/t.csv --markdown=OUT/t.md
deepnet check BEST --json=OUT/found.json
deepnet train --record-only config.yaml --run=OUT/run --data=data --gpus=0
"""


def expand(text: str, out: Path | None = None) -> list[str]:
    """The words of a command, short names written out."""
    for _ in range(2):
        for name, words in WORDS.items():
            text = re.sub(rf"(?<![\w/-]){name}(?![\w.])", words, text)
    return [word.replace("OUT", str(out)) for word in text.split()]


def make_world(world: Path) -> None:
    """Everything that the cases read, by the project's own commands."""
    from sample_corpus import write_sample

    from fairseq_deepnet.records import write_record
    from fairseq_deepnet.tools.training.fallbacks import FallbackState

    write_sample(world / "raw", train=600, valid=60, test=12)
    raw = {name: f"raw/{name.lower()}" for name in ("TRAIN", "VALID", "TEST")}
    sizes = {"VOCAB_SIZE": "200", "WORKERS": "1"}
    _script(world, "preprocess.sh", SRC="de", TGT="en", OUT="data", **raw, **sizes)
    _script(world, "preprocess_lm.sh", LANG_CODE="en", OUT="lm", **raw, **sizes)
    for run, data, config, words in (
        ("run", "data", "multi30k", TINY.split()),
        ("run_lm", "lm", "multi30k_lm", [word for word in TINY.split() if "encoder" not in word]),
    ):
        place = {"DATA": str(world / data), "RUN": str(world / run), "GPUS": "0"}
        _script(world, "train.sh", config, *words, **place)
    shutil.copytree(world / "data", world / "bare")
    (world / "bare" / "corpus.json").unlink()
    shutil.copy(world / "run" / "config.yaml", world / "config.yaml")
    shutil.copy(world / "data" / "spm.model", world / "spm.model")
    for words in (
        ("export", "run", "--to=ctranslate2", "--out=ct2"),
        ("export", "run", "--to=fairseq", "--out=stock.pt"),
        ("evaluate", "run", "--beam=1"),
    ):
        subprocess.run(["deepnet", *words], cwd=world, check=True, capture_output=True)
    (world / "pairs.tsv").write_text(
        "train\tde\ten\traw/train\nvalid\tde\ten\traw/valid\n", encoding="utf-8"
    )
    (world / "sweep.yaml").write_text(
        "title: one\nconfig: multi30k_tiny\ncell: '{depth}l'\nscore: false\nfactors:\n"
        "  depth: {set: [encoder-layers, decoder-layers], values: [1]}\n"
        "  scheme: {set: residual-scheme, values: [deepnorm]}\n"
        "tables:\n- {rows: scheme, columns: depth, measure: valid_nll}\n",
        encoding="utf-8",
    )
    subprocess.run(expand("SWEEP --runs=cells"), cwd=world, check=True, capture_output=True)
    for run in (world / "cells" / "1l", world / "two"):
        shutil.copytree(world / "run" / "scores", run / "scores")
        (score,) = (run / "scores").glob("test.*.json")
        for ending in (".json", ".txt"):
            score.with_suffix(ending).rename(score.with_name(f"test.best{ending}"))
    shutil.copy(world / "config.yaml", world / "two")
    values = {"bleu": 20.0, "chrf": 40.0, "lines": 12, "bleu_signature": "nrefs:1"}
    (world / "many").mkdir()
    for name in ("de-en", "en-de"):
        write_record(world / "many" / f"{name}.json", values | {"direction": name, "request": {}})
    FallbackState(step=1, overrides={"lr": "0.001"}).write(world / "run")


def _script(world: Path, name: str, *words: str, **variables: str) -> None:
    command = ["bash", str(ROOT / "scripts" / name), *words]
    done = subprocess.run(
        command,
        cwd=world,
        env=os.environ | variables,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")


def call(words: list[str]) -> int:
    """Run a command in this process, as its console script does; its exit status."""
    from fairseq_deepnet import cli
    from fairseq_deepnet.tools.training import fallbacks

    name, *rest = words
    if name == "deepnet":
        return cli.main(rest)
    if name == "fallbacks":
        print(fallbacks.read(Path(rest[0])))
        return 0
    # fairseq imports nothing of a user-dir whose name has been imported
    import fairseq_deepnet.models  # noqa: F401

    # isort: split
    import fairseq_cli.generate
    import fairseq_cli.train

    module = {"fairseq-train": fairseq_cli.train, "fairseq-generate": fairseq_cli.generate}[name]
    sys.argv = [*words, "--user-dir", str(ROOT / "fairseq_deepnet")]
    module.cli_main()
    return 0


def work(words: list[str], world: Path, prepare: Callable[[], None], ends: list[int]) -> NoReturn:
    """The child: run a command as Python runs a program, its output into two pipes."""
    status = 1
    try:
        for number, end in enumerate(ends, 1):
            os.dup2(end, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
        os.chdir(world)
        prepare()
        status = call(words)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 2
    except BaseException as error:
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as left:  # as `errors.show_in_one_line` leaves
            status = int(str(left.code))
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


class Outcome(NamedTuple):
    """What a command did: its exit status, what it printed, and what it wrote into OUT."""

    status: int
    output: str
    errors: str
    files: dict[str, bytes]

    @property
    def is_told(self) -> bool:
        """Whether it failed with one line that says why."""
        shown = self.errors + self.output
        if "Traceback" in shown or "Exception ignored" in shown:
            return False
        lines = sum("error: " in line for line in self.errors.splitlines())
        # `deepnet check` and `directions` say by exit status 1 that they found faults
        return lines == 1 if self.status == 2 else self.status == 1 and bool(self.output)

    def result(self) -> tuple[object, ...]:
        """What must not differ: not times, which some outputs hold."""
        texts = {name: _TIMES.sub("", text.decode("latin-1")) for name, text in self.files.items()}
        return self.status, _TIMES.sub("", self.output), texts


_TIMES = re.compile(
    r'"(seconds|made|modified|started)": \S+|\d+\.\d+ ?(s\b|sentences/s|tokens/s)|[\d-]+[T ][\d:,]+'
)


def contents(path: Path) -> bytes:
    """What a file holds; of a checkpoint the weights: it also says when it was made."""
    if path.suffix != ".pt":
        return path.read_bytes()
    from fairseq_deepnet.checkpoints import load_checkpoint

    weights = load_checkpoint(path)["model"]
    return b"".join(weights[name].numpy().tobytes() for name in sorted(weights))


def attempt(world: Path, command: str, prepare: Callable[[], None] = lambda: None) -> Outcome:
    """Run a command in a forked process; `prepare` is called there before."""
    out = world / "out"
    out.mkdir(exist_ok=True)
    pipes = [os.pipe(), os.pipe()]
    child = os.fork()
    if not child:
        work(expand(command, out), world, prepare, [end for _, end in pipes])
    for _, end in pipes:
        os.close(end)
    texts = {read: b"" for read, _ in pipes}
    waiting, limit = set(texts), time.monotonic() + PATIENCE
    while waiting:
        ready = select.select(waiting, [], [], max(0.0, limit - time.monotonic()))[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
            break
        for read in ready:
            block = os.read(read, 1 << 16)
            texts[read] += block
            if not block:
                waiting.discard(read)
    for read in texts:
        os.close(read)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output, errors = (text.decode("utf-8", "replace") for text in texts.values())
    found = (path for path in sorted(out.rglob("*")) if path.is_file())
    files = {str(path.relative_to(out)): contents(path) for path in found}
    return Outcome(status, output, errors, files)


def misshapen(text: bytes, rng: random.Random) -> bytes | None:
    """A JSON record with one value gone, or another; without the digest of itself."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict | list) or not content:
        return None
    if isinstance(content, dict):
        content.pop("sha256", None)
    if rng.random() < 0.2:
        return json.dumps(rng.choice([[], {}, None, "text", 7, [content]])).encode()
    part: Any = content
    while True:
        key = rng.choice(list(part)) if isinstance(part, dict) else rng.randrange(len(part))
        if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.5:
            break
        part = part[key]
    if rng.random() < 0.4:
        del part[key]
    else:
        part[key] = rng.choice([None, [], {}, "", "x", -1, 0, 1e308, 10**30, True, [1], {"a": 1}])
    return json.dumps(content, indent=2).encode()


def damages(whole: bytes, counts: dict[str, int]) -> Iterator[tuple[str, bytes | None]]:
    """(attack, content), as many as asked for; None: there is no such file."""
    rng = random.Random(len(whole))
    for _ in range(counts["flips"]):
        bit = rng.randrange(8 * len(whole))
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        yield "flip", bytes(content)
    lengths = [
        0,
        len(whole) - 1,
        *(rng.randrange(len(whole)) for _ in range(counts["truncations"])),
    ]
    for length in lengths[: counts["truncations"]]:
        yield "cut", whole[:length]
    for _ in range(counts["shapes"]):
        content_or_none = misshapen(whole, rng)
        if content_or_none is not None:
            yield "shape", content_or_none
    yield "gone", None


def restore(world: Path, whole: Path) -> None:
    """The world as it was made, times of files included."""
    shutil.rmtree(world, ignore_errors=True)
    shutil.copytree(whole, world)


def try_case(
    world: Path, whole: Path, line: str, counts: dict[str, int]
) -> dict[str, Counter[str]]:
    """Damage a file in all ways; what came of it, by attack."""
    kind, name, command, *flags = (part.strip() for part in line.split("|"))
    file = expand(name)[0]
    restore(world, whole)
    expected = attempt(world, command)
    if expected.status not in (0, 1) or "Traceback" in expected.errors:
        sys.exit(f"{command}: does not work on whole files:\n{expected.errors}")
    found: dict[str, Counter[str]] = {}
    for attack, content in damages((whole / file).read_bytes(), counts):
        restore(world, whole)
        times = (world / file).stat()
        (world / file).unlink()
        if content is not None:
            (world / file).write_bytes(content)
            os.utime(world / file, ns=(times.st_atime_ns, times.st_mtime_ns))
        outcome = attempt(world, command)
        if outcome.result() == expected.result():
            word = "same"
        elif outcome.is_told:
            word = "told"
        elif outcome.status == 0:
            word = "other" if flags or attack in ("shape", "gone") else "silent"
        else:
            word = "traceback"
        found.setdefault(attack, Counter())[word] += 1
        if word in ("traceback", "silent"):
            report(f"{kind} | {file} | {attack}", command, outcome, content, world)
    return found


def report(what: str, command: str, outcome: Outcome, content: bytes | None, world: Path) -> None:
    """A fault, with all that is needed to see it again, on standard error."""
    kept = world.parent / "faults" / f"{time.monotonic_ns()}"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(content or b"")
    said = outcome.errors.strip().splitlines()[-3:]
    print(f"FAULT {what} | {command} | {kept}\n  {outcome.status}: {said}", file=sys.stderr)


def full(size: int) -> Callable[[], None]:
    """No file may grow beyond so many bytes."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def read_only(world: Path) -> Callable[[], None]:
    """Nothing in the world can be written."""

    def close() -> None:
        for folder in [world, *(path for path in world.rglob("*") if path.is_dir())]:
            folder.chmod(0o555)
        if os.geteuid() == 0:  # whom modes do not bind, unless it gives up CAP_DAC_OVERRIDE
            library, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
            sets = (ctypes.c_uint32 * 6)()
            library.capget(header, sets)
            sets[0] &= ~2
            library.capset(header, sets)

    return close


def try_writer(world: Path, whole: Path, command: str, sizes: int) -> dict[str, Counter[str]]:
    """Fill the disk at so many sizes, then make it read-only; what came of it."""
    restore(world, whole)
    expected = attempt(world, command)
    lengths = {name: len(content) for name, content in expected.files.items()}
    largest = max(lengths.values(), default=4096)
    found: dict[str, Counter[str]] = {}
    attacks = [("disk full", full(largest * step // sizes)) for step in range(sizes)]
    for attack, prepare in [*attacks, ("read-only", read_only(world))]:
        restore(world, whole)
        outcome = attempt(world, command, prepare)
        for folder in [world, *world.rglob("*")]:
            if folder.is_dir():
                folder.chmod(0o755)
        left = {  # OUT.part is where the next call goes on
            name: len(content) for name, content in outcome.files.items() if ".part" not in name
        }
        half = [name for name, size in left.items() if size < 0.9 * lengths.get(name, 0)]
        if outcome.status == 0 and not half:
            word = "same"
        else:
            word = "told" if outcome.status == 2 and outcome.is_told and not half else "traceback"
        found.setdefault(attack, Counter())[word] += 1
        if word == "traceback":
            report(f"{attack}; half-written: {half}", command, outcome, None, world)
    return found


def main() -> int:
    """Print the table; exit status 1 where there is a traceback or a silent difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flips", type=int, default=50, help="flipped bits a file (50)")
    parser.add_argument("--truncations", type=int, default=30, help="lengths a file (30)")
    parser.add_argument("--shapes", type=int, default=30, help="other values in a JSON file (30)")
    parser.add_argument("--sizes", type=int, default=10, help="sizes of a full disk (10)")
    parser.add_argument("--only", nargs="+", default=["*"], help="files or commands: 'dict*'")
    parser.add_argument("--world", type=Path, help="folder to make the files in, once; kept")
    args = parser.parse_args()
    counts = {"flips": args.flips, "truncations": args.truncations, "shapes": args.shapes}
    with tempfile.TemporaryDirectory() as folder:
        place = (args.world or Path(folder)).resolve()
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
        world, whole = place / "world", place / "whole"
        if not whole.is_dir():
            shutil.rmtree(world, ignore_errors=True)
            make_world(world)
            (world / "run" / "done").unlink()  # so that the training goes on
            world.rename(whole)
            restore(world, whole)
        import torch

        from fairseq_deepnet.cli import SUBCOMMANDS

        for module, _ in SUBCOMMANDS.values():
            importlib.import_module(f"fairseq_deepnet.{module}")

        torch.set_num_threads(1)
        print(
            f"| file | command | attack | tries | {' | '.join(COLUMNS)} |\n|{'---|' * 9}",
            flush=True,
        )
        bad = 0
        works: list[tuple[str, str, Callable[[], dict[str, Counter[str]]]]] = []
        for line in CASES.strip().splitlines():
            kind, _, command, *_ = (part.strip() for part in line.split("|"))
            works.append((kind, command, lambda line=line: try_case(world, whole, line, counts)))
        for line in WRITERS.strip().splitlines():
            works.append(
                ("output", line, lambda line=line: try_writer(world, whole, line, args.sizes))
            )
        for kind, command, tries in works:
            if any(fnmatch.fnmatch(name, one) for name in (kind, command) for one in args.only):
                for attack, words in tries().items():
                    cells = " | ".join(str(words[word]) for word in COLUMNS)
                    print(
                        f"| {kind} | {command} | {attack} | {words.total()} | {cells} |", flush=True
                    )
                    bad += words["traceback"] + words["silent"]
    print(f"{bad} tracebacks and silent differences", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
