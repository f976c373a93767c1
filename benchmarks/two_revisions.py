"""Does a change cost time? Two checkouts of this project in turn: start, updates, saving, resuming.

    git worktree add /tmp/before 672b250
    python benchmarks/two_revisions.py /tmp/before                    # beside this checkout
    python benchmarks/two_revisions.py /tmp/before --layers 50 --rounds 5

Real fairseq-train processes on made-up pairs (data/sample), with one thread each, in turns, so
that what disturbs the machine meets both. Rows, in processor seconds of a process and its children:

    import      python -c "import fairseq_deepnet"
    start       fairseq-train until its first update is made
    update      a further one: of a process with --updates more, divided by them
    save        a checkpoint: of a process that saves after every update, less the updates
    resume      fairseq-train that goes on from a checkpoint for one update

Medians over rounds with the quartiles; the ratio is the median over rounds of this checkout's time
over the other's. Below 3 % it is noise here.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sample_corpus import write_sample
from side_by_side.tables import head, line, machine, quartiles

HERE: Final = Path(__file__).resolve().parents[1]
ROWS: Final = ("import", "start", "update", "save", "resume")
WORDS: Final = (
    "--arch=deepnet_transformer --optimizer=fused_adam --lr=0.001 --dropout=0.1 --cpu"
    " --max-tokens=1024 --criterion=chunked_label_smoothed_cross_entropy --label-smoothing=0.1"
    " --disable-validation"
    " --share-all-embeddings --no-epoch-checkpoints --log-interval=10 --log-format=simple"
    " --source-lang=de --target-lang=en"
)


def processor_seconds(root: Path, command: Sequence[str]) -> float:
    """Processor time of a command that imports the package of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, cwd=root, check=False)
    if done.returncode:
        raise SystemExit(f"{root}: {done.stderr.decode(errors='replace')[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_data(place: Path) -> Path:
    """fairseq's data folder of 4,000 made-up pairs."""
    write_sample(place / "text", train=4000, valid=20)
    words = ["fairseq-preprocess", "--source-lang=de", "--target-lang=en", "--joined-dictionary"]
    words += [f"--{split}pref={place / 'text' / split}" for split in ("train", "valid")]
    subprocess.run([*words, f"--destdir={place / 'data'}"], check=True, capture_output=True)
    return place / "data"


def measure(root: Path, data: Path, place: Path, options: argparse.Namespace) -> dict[str, float]:
    """One round of one checkout."""
    train = ["fairseq-train", str(data), f"--user-dir={root / 'fairseq_deepnet'}", *WORDS.split()]
    for side in ("encoder", "decoder"):
        train += [f"--{side}-layers={options.layers}", f"--{side}-attention-heads=2"]
        train += [
            f"--{side}-embed-dim={options.width}",
            f"--{side}-ffn-embed-dim={2 * options.width}",
        ]
    more = options.updates
    shutil.rmtree(place / "run", ignore_errors=True)
    saving = [*train, f"--save-dir={place / 'run'}"]
    found = {
        "import": processor_seconds(root, [sys.executable, "-c", "import fairseq_deepnet.models"])
    }
    found["start"] = processor_seconds(root, [*train, "--no-save", "--max-update=1"])
    longer = processor_seconds(root, [*train, "--no-save", f"--max-update={1 + more}"])
    found["update"] = (longer - found["start"]) / more
    every = ["--save-interval-updates=1", "--keep-interval-updates=1", f"--max-update={1 + more}"]
    found["save"] = (processor_seconds(root, [*saving, *every]) - longer) / (1 + more)
    found["resume"] = processor_seconds(root, [*saving, f"--max-update={2 + more}"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="another checkout of this project")
    parser.add_argument("--layers", type=int, default=18, help="a side (%(default)s)")
    parser.add_argument("--width", type=int, default=64, help="channels (%(default)s)")
    parser.add_argument("--updates", type=int, default=20, help="that are timed (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each (%(default)s)")
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / "fairseq_deepnet").is_dir():
        parser.error(f"{other} is no checkout of this project")
    if min(options.rounds, options.updates) < 1:
        parser.error("--rounds and --updates: 1 at the least")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = make_data(place)
        rounds = [
            {root: measure(root, data, place, options) for root in order}
            for order in [(HERE, other), (other, HERE)] * options.rounds
        ][: options.rounds]
    print(f"{machine()}, one thread, {options.layers}L-{options.layers}L, width {options.width}")
    cells = ["seconds of", "before", "quartiles", "now", "quartiles", "now / before", "quartiles"]
    print("\n".join(head(cells, 1)))
    for name in ROWS:
        before, now = ([taken[root][name] for taken in rounds] for root in (other, HERE))
        ratios = [one / two for one, two in zip(now, before, strict=True)]
        cells = [name]
        for values, digits in ((before, 3), (now, 3), (ratios, 2)):
            cells += [f"{statistics.median(values):.{digits}f}", quartiles(values, digits)]
        print(line(cells))


if __name__ == "__main__":
    main()
