"""`deepnet evaluate`: from a run or a checkpoint to scores, translated, detokenised, recorded.

fairseq-generate translates, in several processes; or CTranslate2, for which the run is exported
first, once for each checkpoint and type of weights. Scores of both lie side by side: the name of
one by CTranslate2 ends in the engine and the type.
"""

from __future__ import annotations

import argparse
import collections
import functools
import hashlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.files import PACKAGE, inside_project, say, shown, write_text
from fairseq_deepnet.provenance import fingerprint, made_now, sha256
from fairseq_deepnet.records import record_of, write_record
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, BareFolder, DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import is_blank, read_lines
from fairseq_deepnet.tools.devices import (
    all_cores,
    choose_devices,
    gpu_gib,
    machine_gib,
    threads_of,
    visible_gpus,
)
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.evaluation.direction_scores import summarise
from fairseq_deepnet.tools.run_scores import OTHER_TEXT
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.trained_model import (
    TrainedModel,
    choose_model,
    find_data,
    is_own_data,
)
from fairseq_deepnet.tools.translation import stream
from fairseq_deepnet.tools.translation.engine import (
    BATCH,
    CPU_BATCH,
    ENGINES,
    QUANTIZATION,
    WINDOW,
    Search,
    cut_message,
)
from fairseq_deepnet.tools.translation.fairseq_generate import generate

TOKENS: Final = 4000
"""Source tokens per batch, where memory allows it."""
_CACHE_BYTES: Final = 16
"""Memory of decoding per source token, decoder layer, channel and hypothesis: keys and values in
fp32 and what reorders them; measured at 500L-500L with beam 5, 2.5 MB per source token."""
_FEW_SENTENCES: Final = 20
_NEARLY_ALL: Final = 0.9
FEW_TOKENS: Final = 256
"""Of a batch: fewer are likely meant as sentences, which ctranslate2 counted once."""
_JOINED: Final = "subwords are joined to text here; leave it out"
_SET_HERE: Final = {
    **{f"--{name}": f"set {name.upper()} (--{name})" for name in ("beam", "lenpen")},
    "--path": "name the checkpoint in the run's place",
    "--gen-subset": "set SPLIT (--split)",
    "--max-tokens": "set BATCH (--batch)",
    "--post-process": _JOINED,
    "--remove-bpe": _JOINED,
}
"""Options of fairseq-generate that scores are named by, or that undo what is done here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet evaluate`."""
    parser.add_argument("--split", default="test", help="part of the data (test)")
    text = (
        "translate this folder's SPLIT.A-B.A and score against SPLIT.A-B.B; the scores' name begins"
        f" with {OTHER_TEXT}FOLDER"
    )
    parser.add_argument("--text", type=inside_project, help=text)
    add_scoring_arguments(parser)


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what any scoring of a model takes: which model, which data, how it translates."""
    parser.add_argument("target", nargs="?", type=Path, help="run or checkpoint (the newest run)")
    parser.add_argument("extra", nargs="*", help="options of fairseq-generate, after --")
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--spm", metavar="FILE", help=SPM_HELP)
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty (1)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument(
        "--batch",
        type=int,
        help=f"source tokens per batch ({TOKENS}, fewer where memory is short; of ctranslate2"
        f" {BATCH} sentences, on a CPU {CPU_BATCH})",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default=ENGINES[0], help="what decodes (fairseq)"
    )
    parser.add_argument(
        "--quantization", help=f"of ctranslate2's weights: float32, int8 ... ({QUANTIZATION})"
    )
    parser.add_argument("--threads", type=int, help="cores to use (all)")
    parser.add_argument("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    parser.add_argument("--processes", type=int, help="processes on the CPU (one a core)")
    parser.add_argument("--directions", default="", help="of many: only these, as in de-en,en-de")
    parser.add_argument("--tokenizer", help="of many: BLEU's tokenizer (by target language)")
    parser.add_argument("--out", type=Path, help="folder of the scores (scores/ in the run)")


def run(args: argparse.Namespace) -> int:
    """Score a model, or print the scores it has; JSON and hypotheses are kept."""
    settle_engine(args)
    model = choose_model(args.target, args.average)
    data = find_data(model, args.data, args.spm)
    if data.is_monolingual:
        raise ValueError(
            f"{shown(data.path)} holds text of one language, and nothing is translated;"
            " for a perplexity run scripts/eval_perplexity.sh"
        )
    if data.is_multilingual or args.text:
        name = score_name(args, model.path.stem, other_text(args, model))
        print(summarise(*score_directions(args, model, data, name)))
        return 0
    if args.directions:
        raise ValueError(f"{shown(data.path)} holds one direction; leave --directions out")
    if args.tokenizer:
        raise ValueError(
            f"--tokenizer {args.tokenizer}: {shown(data.path)} holds one direction, whose target"
            " language chooses it; leave it out, and count the hypotheses with `deepnet score"
            f" --tokenizer {args.tokenizer}` afterwards"
        )
    return _score_one(args, model, data)


def settle_engine(args: argparse.Namespace) -> None:
    """Fill in the type of weights. ValueError for options that are the other engine's."""
    if args.spm == "none":
        raise ValueError(
            "--spm none: BLEU is of text, not of tokens; give the sentencepiece model, or translate"
            " by `deepnet translate --spm none`, detokenise, and use `deepnet score`"
        )
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"THREADS={args.threads}; at least 1 is needed")
    for word in args.extra:
        if remedy := _SET_HERE.get(word.partition("=")[0]):
            raise ValueError(f"{word}: {remedy}")
    if args.engine == "ctranslate2":
        args.quantization = engine_facts(args)["quantization"]
        if args.extra:
            raise ValueError(
                f"{' '.join(args.extra)}: options of fairseq-generate; leave them out, or set "
                "ENGINE=fairseq"
            )
        if args.batch is not None and args.batch < FEW_TOKENS:
            say(f"BATCH={args.batch} are source tokens, with ctranslate2 too (they were sentences)")
    elif args.quantization:
        raise ValueError(f"QUANTIZATION={args.quantization} needs ENGINE=ctranslate2")


def engine_facts(args: argparse.Namespace) -> dict[str, str]:
    """Return what of the engine decides the scores; nothing for fairseq, whose were here first."""
    if args.engine == "fairseq":
        return {}
    return {"engine": args.engine, "quantization": args.quantization or QUANTIZATION}


def score_name(args: argparse.Namespace, checkpoint: str, text: Path | None = None) -> str:
    """Return the name of a score, which is its request: what was scored, and how.

    Each option of fairseq-generate adds a word, so that decoding in another way never replaces a
    score that is recorded.

    Args:
        checkpoint: its name, without `.pt`.
        text: a folder of other text than the data's.
    """
    name = f"{args.split}.{checkpoint}.beam{args.beam}.lenpen{args.lenpen:g}"
    engine = "-".join(engine_facts(args).values())
    words = [name, engine, option_words(args.extra)]
    return named_after(text, ".".join(filter(None, words)))


def option_words(options: Sequence[str]) -> str:
    """Return options of fairseq-generate as part of a file's name: max-len-a1.2.max-len-b10.

    What a name cannot hold, or not at that length, is a digest.
    """
    words: list[str] = []
    for option in options:
        if option.startswith("--") or not words:
            words.append(option.removeprefix("--").replace("=", "", 1))
        else:
            words[-1] += option
    name = ".".join(sorted(words))
    if re.fullmatch(r"[\w.,+-]{0,80}", name):
        return name
    return f"options-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def named_after(text: Path | None, name: str) -> str:
    """Return a score's name, before it that of the folder of other text, if it is of such."""
    if text is None:
        return name
    # two folders may have one name
    place = hashlib.sha256(shown(text).encode()).hexdigest()[:8]
    return f"{OTHER_TEXT}{text.resolve().name}-{place}.{name}"


def other_text(args: argparse.Namespace, model: TrainedModel) -> Path | None:
    """Return the folder of the text that is scored, unless it is the model's own data.

    That is --text, or --data if the model was trained on other data.
    """
    if args.text is not None or args.data is None:
        return args.text
    data = inside_project(args.data)
    return None if is_own_data(model, data) else data


def what_scores_depend_on(data: DataFolder, split: str) -> list[Path]:
    """Return the files of a data folder of one pair that a score of this split follows from."""
    target = data.languages[1]
    own = [data.path / "corpus.json", data.tokenised(split, target)] if data.is_moses else []
    text = sorted((data.path / "text").glob(f"{split}.*"))
    return [*text, data.subword_model(target), *own]


def binarised_source(data: DataFolder, split: str) -> list[Path]:
    """Return the files of a data folder of one pair from which fairseq-generate translates."""
    source, target = data.languages
    return [data.path / f"{split}.{source}-{target}.{source}.{end}" for end in ("bin", "idx")]


def request(args: argparse.Namespace, model: TrainedModel, files: Sequence[Path]) -> dict[str, Any]:
    """Return all that decides the scores; where it is as recorded, there is nothing to do."""
    digests = {
        # the reference in tokens is called as the one in text is
        f"tokenised/{path.name}" if path.parent.name == "tokenised" else path.name: sha256(path)
        for path in files
    }
    return {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": digests,
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "options": args.extra,
        **engine_facts(args),
    }


def _score_one(args: argparse.Namespace, model: TrainedModel, data: DataFolder) -> int:
    """Score a direction and print one line; of Moses tokens BLEU has a line of its own."""
    folder = writable(args.out or model.scores)
    name = score_name(args, model.path.stem, other_text(args, model))
    record, text = folder / f"{name}.json", folder / f"{name}.txt"
    refuse_missing_text(data, args.split)
    files = what_scores_depend_on(data, args.split)
    binarised = binarised_source(data, args.split) if args.engine == "fairseq" else []
    data.refuse_changed(str(path.relative_to(data.path)) for path in (*files, *binarised))
    wanted = request(args, model, files)
    if binarised:
        wanted["binarised"] = {path.name: sha256(path) for path in binarised}
    scores = record_of(record, wanted, "remove it to score again")
    if scores is not None and text.is_file():
        say(f"already scored: {shown(record)}")
    else:
        say(f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set")
        scores, hypotheses = evaluate(args, model, data)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(text, "".join(f"{line}\n" for line in hypotheses))
        scores |= {"hypotheses": text.name, "request": wanted}
        write_record(record, scores)
        say(f"scores and hypotheses: {shown(record.with_suffix(''))}.{{json,txt}}")
    print(scoring.describe(scores, scores["what"]))
    if "bleu_tokenised" in scores:
        print(scoring.describe_tokens(scores))
    return 0


def writable(folder: Path) -> Path:
    """Return a folder that can be written or made; OSError before anything is translated if not."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryDirectory(dir=place):
        return folder


def refuse_missing_text(data: DataFolder, split: str) -> None:
    """Raise FileNotFoundError for a split without text, with the splits that there are."""
    direction = Direction(*data.languages)
    sides = [data.text(split, direction, language) for language in direction]
    if all(side.is_file() for side in sides):
        return
    if isinstance(data, BareFolder):
        raise FileNotFoundError(
            f"{shown(data.path)} has no raw text to score against: name a folder of"
            f" {split}.{direction}.{direction.source} and .{direction.target} with --text"
        )
    others = {path.name.partition(".")[0] for path in (data.path / "text").glob("*.*")}
    raise FileNotFoundError(
        f"{shown(data.path)} has no {split} set: choose a split with --split (SPLIT=) from"
        f" {', '.join(sorted(others)) or 'none'}, give preprocess.sh a TEST set, or name a folder"
        " of text with --text (TEXT=)"
    )


def warn_of_degenerate(hypotheses: Sequence[str]) -> None:
    """Say so if nearly all translations are the same: the model ignores its source."""
    if len(hypotheses) < _FEW_SENTENCES:
        return
    text, count = collections.Counter(hypotheses).most_common(1)[0]
    if count >= _NEARLY_ALL * len(hypotheses):
        say(
            f"{count:,} of {len(hypotheses):,} translations are {text[:60]!r}: the model has not"
            " learnt to translate; train longer, or look at its loss (deepnet plot RUN)"
        )


def evaluate(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder
) -> tuple[dict[str, Any], list[str]]:
    """Translate and score; return the scores with what they are of, and the hypotheses."""
    direction = Direction(*data.languages)
    reference_file = data.text(args.split, direction, direction.target)
    references = list(read_lines(reference_file))
    source_file = data.text(args.split, direction, direction.source)
    sources = list(read_lines(source_file))
    if len(sources) != len(references):
        raise ValueError(
            f"{source_file} has {len(sources):,} lines and {reference_file} {len(references):,}:"
            " make the data folder anew"
        )
    model.make()
    updates = num_updates(load_checkpoint(model.path))
    started = time.monotonic()
    pieces: list[str] = []
    if args.engine == "ctranslate2":
        hypotheses = _translate_with_ctranslate2(args, model, data, direction, sources)
    else:
        found = _translate_with_fairseq(args, model, data, len(references))
        # of no words fairseq-generate makes some
        pieces = ["" if is_blank(line) else text for line, text in zip(sources, found, strict=True)]
        hypotheses = data.decode(pieces, direction.target)
    seconds = round(time.monotonic() - started, 1)
    warn_of_degenerate(hypotheses)
    scores = scoring.score(
        hypotheses, references, lowercase=data.is_lowercase, target_language=direction.target
    )
    if data.is_moses:
        tokens = list(read_lines(data.tokenised(args.split, direction.target)))
        scores |= scoring.score_tokens(pieces, tokens, data.is_lowercase)
    engine = engine_facts(args)
    what = (
        f"{args.split}, {len(references):,} sentences, {shown(model.path)} (update {updates:,}), "
        f"beam {args.beam}, lenpen {args.lenpen:g}"
    )
    what += f", {' '.join(engine.values())}" if engine else ""
    scores |= {
        "what": what,
        "model": shown(model.path),
        "averaged": model.averaged,
        "updates": updates,
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "engine": args.engine,
        "quantization": args.quantization,
        "reference": shown(reference_file),
        "seconds": seconds,
        **made_now(),
    }
    if engine:
        scores["versions"] |= {args.engine: metadata.version(args.engine)}
    return scores, hypotheses


def score_directions(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, name: str
) -> tuple[Path, list[str], dict[str, int]]:
    """Score every direction of a split, or of a folder of text, under this name.

    Returns the folder of the scores, the directions to sum up, and the training lines by pair.
    Where some directions are asked for, those that are scored in the same way already join them.
    """
    # what scores one direction needs none of these
    from fairseq_deepnet.tools.evaluation import many_directions
    from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model
    from fairseq_deepnet.tools.translation.fairseq_engine import Translator

    out = writable((args.out or model.scores) / name)
    wanted = request(args, model, [data.subword_model(language) for language in data.languages])
    only = [name for name in args.directions.split(",") if name]
    if args.text and data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and --text takes models of raw text; "
            "set DATA to a folder with a sentencepiece model"
        )
    if args.text:
        find = functools.partial(many_directions.texts_in, args.text, args.split, data)
        texts = find(only)
        lacking = sorted({*data.directions("train")} - {text.direction for text in texts})
        if lacking and not only:
            say(f"{shown(args.text)} has no {args.split} text of {listed(lacking, 12)}")
    else:
        find = functools.partial(many_directions.texts_of_folder, data, args.split)
        texts = find(only)
    asked = {text.direction for text in texts}
    every = find([]) if only else texts
    every_job = many_directions.make_jobs(data, every, args.tokenizer, out, wanted)
    jobs = [job for job in every_job if job.direction in asked]
    if not all(job.is_done() for job in jobs):
        model.make()
    sides = {path for job in jobs for path in (job.source, job.reference)}
    own = sorted(path for path in sides if path.is_relative_to(data.path))
    data.refuse_changed(str(path.relative_to(data.path)) for path in own)
    gpus, cores = gpus_of(args), cores_of(args)
    processes = gpus or args.processes or cores
    threads = threads_of(processes, cores)
    load: Callable[..., Any]
    if args.engine == "ctranslate2":
        exported, search = _exported(args, model, data), ctranslate2_search(args)
        load = functools.partial(CTranslate2Model, exported, search, threads=threads)
    else:
        options = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
        options += ["--max-tokens", str(batch_tokens(args, model, processes, gpus)), *args.extra]
        load = functools.partial(Translator, model.path, data, options)
    say(f"model {shown(model.path)}, {len(jobs)} directions of {args.split}, {processes} at a time")
    many_directions.translate_all(jobs, load, threads, processes, gpus)
    lines = data.lines("train")
    training = lines if isinstance(lines, dict) else {Direction(*data.languages).pair: lines}
    scored = (job.direction for job in every_job if job.direction in asked or job.is_done())
    return out, list(map(str, scored)), training


def batch_tokens(args: argparse.Namespace, model: TrainedModel, processes: int, gpus: int) -> int:
    """Return --batch, or as many source tokens as half the memory at hand allows, up to TOKENS."""
    if args.batch is not None:
        return int(args.batch)
    options = vars(model_arguments(load_checkpoint(model.path)) or argparse.Namespace())
    layers, width = options.get("decoder_layers") or 6, options.get("decoder_embed_dim") or 512
    memory = gpu_gib(gpus) if gpus else machine_gib() / processes
    bytes_per_token = _CACHE_BYTES * layers * width * args.beam
    return max(FEW_TOKENS, min(TOKENS, int((memory or 8.0) * 2**30 / 2 / bytes_per_token)))


def cores_of(args: argparse.Namespace) -> int:
    """Return the number of cores: as many as --threads says, or all that this process may use."""
    return args.threads or all_cores()


def gpus_of(args: argparse.Namespace) -> int:
    """Return the number of GPUs: as many as --gpus says, or all that are visible."""
    return choose_devices(args.gpus, 1, 1, len(visible_gpus())).gpus


def _exported(args: argparse.Namespace, model: TrainedModel, data: DataFolder) -> Path:
    """Return the folder of the model exported for CTranslate2, made now if need be."""
    if data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and ctranslate2 is given raw text here; set "
            "ENGINE=fairseq"
        )
    from fairseq_deepnet.tools.export.export import export_for_ctranslate2  # imports all models

    return export_for_ctranslate2(model, data.path, args.quantization, args.spm)


def ctranslate2_search(args: argparse.Namespace) -> Search:
    """Return how CTranslate2 searches."""
    return Search(args.beam, args.lenpen, batch_tokens=args.batch)


def _translate_with_ctranslate2(
    args: argparse.Namespace,
    model: TrainedModel,
    data: DataFolder,
    direction: Direction,
    lines: Sequence[str],
) -> list[str]:
    """Return a translation of each line."""
    from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model

    folder, threads = _exported(args, model, data), cores_of(args)
    engine = CTranslate2Model(
        folder, ctranslate2_search(args), threads=threads, cpu=args.gpus == "0"
    )
    windows = stream.full_windows(lines, WINDOW * threads)
    counter = stream.LineCounter(sys.stderr, len(lines))
    found = []
    for window in stream.translated(engine, windows, direction):
        for hypotheses in window:
            found.append(hypotheses[0].text)
            counter.add()
    counter.close()
    if engine.cut:
        say(cut_message(engine.cut))
    return found


def _translate_with_fairseq(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, sentences: int
) -> list[str]:
    """Return the subwords of each sentence, by fairseq-generate."""
    source, target = data.languages
    gpus, cores = gpus_of(args), cores_of(args)
    processes = min(gpus or args.processes or cores, max(1, sentences))
    arguments = [str(data.path.resolve()), "--path", str(model.path.resolve())]
    arguments += ["--user-dir", str(PACKAGE), "--gen-subset", args.split]
    arguments += ["--source-lang", source, "--target-lang", target]
    arguments += ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    arguments += ["--max-tokens", str(batch_tokens(args, model, processes, gpus))]
    arguments += ["--log-format", "none"]
    if processes > 1:
        # fairseq-generate fails where a process gets no batch at all
        arguments += ["--batch-size", str(max(1, sentences // (2 * processes)))]
    arguments += ([] if gpus else ["--cpu"]) + args.extra
    return generate(arguments, processes, gpus, sentences, threads_of(processes, cores))
