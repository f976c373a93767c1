"""`deepnet evaluate`: translate a test set with fairseq, detokenise it, and score it.

Further options of fairseq-generate can follow `--`.
"""

import argparse
import functools
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.errors import positive, real
from fairseq_deepnet.files import say, shown
from fairseq_deepnet.records import fingerprint, made_now, read_record, sha256
from fairseq_deepnet.tools import devices, scores, trained_model
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, BareFolder, DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import find_side
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.evaluation.directions import Job, summarise, translate_all
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.trained_model import TrainedModel
from fairseq_deepnet.tools.translation.engines import Translator

TOKENS: Final = 4000
"""Default maximum number of source tokens per batch."""
TOKENS_TIMES_LAYERS: Final = 400_000
"""Maximum of default batch size times decoder layers: 33 GB of cache (fp32, width 1024, beam 5)."""
_OWN: Final = ("beam", "lenpen", "path", "gen-subset", "max-tokens", "post-process", "remove-bpe")
_UNUSED: Final = ("lm-path", "model-overrides", "prefix-size", "constraints", "replace-unk", "seed")
REFUSED: Final = {
    **{
        f"--{name}": "is set by deepnet evaluate; use an option before -- (in scripts, BEAM=...)"
        for name in _OWN
    },
    **{f"--{name}": "has no effect in deepnet evaluate; use fairseq-generate" for name in _UNUSED},
}
"""Reasons to refuse options of fairseq-generate."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet evaluate`."""
    parser.add_argument("--split", default="test", help="split to score (test)")
    text = "folder with sources SPLIT.A-B.A and references SPLIT.A-B.B (the data folder's)"
    parser.add_argument("--text", type=Path, help=text)
    add_scoring_arguments(parser)


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that all scoring commands share: model, data and beam search."""
    add = parser.add_argument
    add("target", type=Path, help="run folder or checkpoint")
    add("extra", nargs="*", default=[], help="options of fairseq-generate, after --")
    add("--data", type=Path, help="data folder (the run's)")
    add("--spm", metavar="FILE", help=SPM_HELP)
    add("--beam", type=positive, default=5, help="beam size (5)")
    add("--lenpen", type=real, default=1.0, help="length penalty (1)")
    add("--average", type=int, default=0, metavar="N", help="average the last N checkpoints (0)")
    add("--batch", type=positive, help=f"source tokens per batch ({TOKENS}, fewer over 100 layers)")
    add("--gpus", default="all", help="GPUs to use; 0 uses the CPU (all visible)")
    add("--processes", type=positive, help="number of CPU processes (one per core)")
    add("--directions", default="", help="directions to score, such as de-en,en-de (all)")
    add("--tokenizer", choices=scoring.TOKENIZERS, help="BLEU's tokenizer (by target language)")
    add("--out", type=Path, help="folder for the scores (the run's scores/)")


def run(args: argparse.Namespace) -> int:
    """Score a model and print the score."""
    print(score(args)[1])
    return 0


def score(args: argparse.Namespace) -> tuple[Path, str]:
    """Score a model, unless the same score already exists.

    Returns the path of the score (a folder if there are many directions) and the text to print.
    """
    if args.spm == "none":
        raise ValueError("--spm none: scores need text, not tokens; give the sentencepiece model")
    check_options(args.extra)
    model = trained_model.choose_model(args.target, args.average)
    data = trained_model.find_data(model, args.data, args.spm)
    if data.is_monolingual:
        raise ValueError(f"{shown(data.path)} is monolingual; run deepnet perplexity")
    text = args.text
    if text is None and args.data is not None and not trained_model.is_own_data(model, data.path):
        text = data.path
    words = [args.split, model.path.stem, f"beam{args.beam}", f"lenpen{args.lenpen:g}"]
    words += [scores.option_words(args.extra), f"tok-{args.tokenizer}" if args.tokenizer else ""]
    name = scores.score_name(words, text)
    out = args.out or model.scores
    if data.is_multilingual or args.text:
        return out / name, score_directions(args, model, data, out / name)
    (job,) = jobs = create_jobs(args, model, data, out, name)
    translate(args, model, data, jobs)
    facts = job.read()
    lines = [
        f"{scoring.numbers(facts)}  {args.split}, {facts['lines']:,} sentences, {facts['model']}"
        f" (update {facts['updates']:,}), {scores.decoding(facts)}  [{facts['bleu_signature']}]"
    ]
    if scoring.TOKENISED in facts:
        bleu, signature = facts[scoring.TOKENISED], facts[f"{scoring.TOKENISED}_signature"]
        lines.append(f"tokenised BLEU {bleu:.2f}, on Moses tokens, not sacreBLEU  [{signature}]")
    return job.record, "\n".join(lines)


def check_options(extra: Sequence[str]) -> None:
    """Raise ValueError if options of fairseq-generate contain a refused one."""
    for word in extra:
        if reason := REFUSED.get(word.partition("=")[0]):
            raise ValueError(f"{word} {reason}")


def find_texts(
    folder: DataFolder, split: str, place: Path | None = None
) -> dict[Direction, tuple[Path, Path]]:
    """Return the paths of the source and the reference of each direction that has text.

    Args:
        place: folder to read instead of `folder`, with SPLIT.A-B.A[.gz] and SPLIT.A-B.B[.gz].

    Raises FileNotFoundError if there is no text.
    """
    directions = folder.directions("train" if place else split)
    if place and folder.is_multilingual:
        directions = [Direction(*pair) for pair in permutations(folder.languages, 2)]
    texts = {}
    for direction in directions:
        source, target = (folder.text(split, direction, language) for language in direction)
        if place:
            prefix = f"{split}.{direction}"
            if not any(place.glob(f"{prefix}.*")):
                continue
            source, target = (find_side(f"{place}/{prefix}", language) for language in direction)
        texts[direction] = (source, target)
    if not texts:
        raise FileNotFoundError(
            f"{shown(place or folder.path)} has no text of the {split} set: choose another with"
            f" --split (SPLIT=), or set --text to a folder with {split}.A-B.A and {split}.A-B.B"
        )
    return texts


def create_jobs(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, out: Path, name: str = ""
) -> list[Job]:
    """Return a job per direction; its score is named `name`, or by default after the direction."""
    if args.text and data.is_moses:
        raise ValueError(f"{shown(data.path)} has Moses tokens; --text needs a sentencepiece model")
    subwords = {data.subword_model(language) for language in data.languages}
    request = {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {path.name: sha256(path) for path in sorted(subwords)},
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "options": args.extra,
        "tokenizer": args.tokenizer,
    }
    pairs = trained_model.task_options(model.sources[-1]).get("lang_pairs")
    trained = pairs or list(map(str, data.directions("train")))
    return [
        Job(d, *sides, out / f"{name or d}.json", data, request, zero_shot=str(d) not in trained)
        for d, sides in find_texts(data, args.split, args.text).items()
    ]


def score_directions(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, out: Path
) -> str:
    """Score the selected directions of a test set; return the table of all scores of the set."""
    jobs = create_jobs(args, model, data, out)
    translate(args, model, data, jobs)
    records = {job.direction: job.read() for job in jobs}
    return summarise(out, records, [job.direction for job in jobs if not job.zero_shot])


def translate(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, jobs: Sequence[Job]
) -> None:
    """Translate and score the selected directions that have no score yet."""
    present = [str(job.direction) for job in jobs]
    names = list(filter(None, args.directions.split(","))) or present
    if missing := [name for name in names if name not in present]:
        texts = f"{listed(missing)}, only for {listed(present, 8)}"
        raise ValueError(f"no {args.split} text for {texts}")
    jobs = [job for job in jobs if str(job.direction) in names]
    used = {file for job in jobs for file in job.files if file.is_relative_to(data.path)}
    data.refuse_changed(str(file.relative_to(data.path)) for file in sorted(used))
    todo = [job for job in jobs if not job.read()]
    out = jobs[0].record.parent
    if not out.is_relative_to(model.scores):  # a run may have been moved with its own scores
        for record in (job.record for job in todo if job.record.is_file()):
            if (other := read_record(record).get("model")) != shown(model.path):
                raise ValueError(f"{shown(record)} is a score of {other}: choose another --out")
    if len(todo) < len(jobs):
        say(f"already scored: {len(jobs) - len(todo)} of {len(jobs)} in {shown(out)}")
    if not todo:
        return
    gpus = devices.choose_devices(args.gpus, 1, 1, len(devices.visible_gpus())).gpus
    processes = gpus or args.processes or devices.all_cores()
    out.mkdir(parents=True, exist_ok=True)
    (out / scores.SUMMARY).unlink(missing_ok=True)  # out of date from now on
    state = load_checkpoint(model.make())
    facts = {
        "model": shown(model.path),
        "averaged": state.get("averaged"),
        "updates": num_updates(state),
        "beam": args.beam,
        "lenpen": args.lenpen,
        **made_now(),
    }
    say(
        f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set:"
        f" {listed([job.direction for job in todo])}, {processes} at a time"
    )
    layers = getattr(model_arguments(state), "decoder_layers", 6)
    batch = args.batch or min(TOKENS, TOKENS_TIMES_LAYERS // layers)
    words = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}", "--max-tokens", str(batch)]
    folder = BareFolder(data.path, data.record) if data.is_moses else data  # takes subwords
    checkpoints = jobs[0].options["checkpoints"]
    load = functools.partial(load_model, model, checkpoints, folder, [*words, *args.extra])
    threads = devices.threads_of(processes, devices.all_cores())
    translate_all(todo, facts, load, threads, processes, gpus)
    say(f"scores and hypotheses: {shown(out)}")


def load_model(
    model: TrainedModel,
    checkpoints: Sequence[Any],
    folder: DataFolder,
    arguments: Sequence[str],
    cpu: bool,
) -> Translator:
    """Load a model; raise ValueError if its checkpoint no longer has the expected fingerprint.

    During training, a newer checkpoint can replace the file before it is read.
    """
    translator = Translator(model.path, folder, arguments, cpu)
    model.refuse_replaced(checkpoints)
    return translator
