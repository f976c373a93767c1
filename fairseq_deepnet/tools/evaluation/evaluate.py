"""`deepnet evaluate`: from a run or a checkpoint to scores, translated, detokenised, recorded.

fairseq translates, with the options of fairseq-generate; or CTranslate2, for which the run is
exported first, once for each checkpoint and type of weights. Scores of both lie side by side: the
name of one by CTranslate2 ends in the engine and the type.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.files import inside_project, say, shown
from fairseq_deepnet.provenance import fingerprint, made_now, sha256
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, BareFolder, DataFolder, Direction
from fairseq_deepnet.tools.devices import (
    all_cores,
    choose_devices,
    gpu_gib,
    machine_gib,
    threads_of,
    visible_gpus,
)
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.evaluation.direction_scores import read_directions, summarise
from fairseq_deepnet.tools.evaluation.jobs import Job, texts_in, texts_of_folder, translate_all
from fairseq_deepnet.tools.run_scores import OTHER_TEXT
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.trained_model import (
    TrainedModel,
    choose_model,
    find_data,
    is_own_data,
)
from fairseq_deepnet.tools.translation.engines import (
    BATCH,
    CPU_BATCH,
    ENGINES,
    QUANTIZATION,
    Engine,
    Search,
)

MODELS: Final = ("fairseq_deepnet.models", "fairseq_deepnet.tools.translation.engines")
"""What translates with fairseq, which takes seconds to import."""
TOKENS: Final = 4000
"""Source tokens per batch, where memory allows it."""
_CACHE_BYTES: Final = 16
"""Memory of decoding per source token, decoder layer, channel and hypothesis: keys and values in
fp32 and what reorders them; measured at 500L-500L with beam 5, 2.5 MB per source token."""
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
    parser.add_argument("--directions", default="", help="only these, as in de-en,en-de (all)")
    parser.add_argument("--tokenizer", help="BLEU's tokenizer (by target language)")
    parser.add_argument("--out", type=Path, help="folder of the scores (scores/ in the run)")


def run(args: argparse.Namespace) -> int:
    """Score a model, or print the scores it has; JSON and hypotheses are kept."""
    settle_engine(args)
    model = choose_model(args.target, args.average)
    data = find_data(model, args.data, args.spm)
    if data.is_monolingual:
        raise ValueError(
            f"{shown(data.path)} holds text of one language, and nothing is translated;"
            " for a perplexity run deepnet perplexity"
        )
    name = score_name(args, model.path.stem, other_text(args, model))
    if data.is_multilingual or args.text:
        print(summarise(*score_directions(args, model, data, name)).text)
        return 0
    out = writable(args.out or model.scores)
    (job,) = chosen(args, jobs_of(args, model, data, out, name))
    translate(args, model, data, [job])
    scores = read_record(job.record)
    print(scoring.describe(scores, _what(scores)))
    if "bleu_tokenised" in scores:
        print(scoring.describe_tokens(scores))
    return 0


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
    tokenizer = f"tok-{args.tokenizer}" if args.tokenizer else ""
    words = [name, engine, option_words(args.extra), tokenizer]
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


def jobs_of(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, out: Path, name: str = ""
) -> list[Job]:
    """Return a job for each direction that there is text of; records are called as the direction,
    unless there is a name.
    """
    if args.text and data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and --text takes models of raw text; "
            "set DATA to a folder with a sentencepiece model"
        )
    if args.text:
        texts = texts_in(args.text, args.split, data)
    else:
        texts = texts_of_folder(data, args.split)
    wanted = request(args, model, data)
    return [
        Job(
            *text,
            out / f"{name or text.direction}.json",
            folder=data,
            split=args.split,
            tokenizer=args.tokenizer,
            request=wanted,
        )
        for text in texts
    ]


def chosen(args: argparse.Namespace, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of --directions; ValueError for one that there is no text of."""
    asked = [Direction.parse(name) for name in args.directions.split(",") if name]
    there = [job.direction for job in jobs]
    lacking = [str(direction) for direction in asked if direction not in there]
    if lacking:
        raise ValueError(
            f"{shown(args.text or jobs[0].folder.path)} has no {args.split} text of"
            f" {', '.join(lacking)} for this model, but of {listed(there, 8)}; name a folder with"
            " it by --text (TEXT=)"
        )
    return [job for job in jobs if job.direction in asked or not asked]


def request(args: argparse.Namespace, model: TrainedModel, data: DataFolder) -> dict[str, Any]:
    """Return all that decides the scores besides texts and tokenizer; where it is as recorded,
    there is nothing to do.
    """
    subwords = {data.subword_model(language) for language in data.languages}
    return {
        "checkpoints": [fingerprint(path) for path in model.sources],
        "data": {path.name: sha256(path) for path in sorted(subwords)},
        "split": args.split,
        "beam": args.beam,
        "lenpen": args.lenpen,
        "options": args.extra,
        **engine_facts(args),
    }


def score_directions(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, name: str
) -> tuple[Path, list[str], dict[str, int]]:
    """Score the directions of a split, or of a folder of text, under this name.

    Returns the folder of the scores, the directions to sum up, and the training lines by pair.
    Where some directions are asked for, those that are scored in the same way already join them.
    """
    out = writable((args.out or model.scores) / name)
    every = jobs_of(args, model, data, out)
    jobs = chosen(args, every)
    lacking = sorted({*data.directions("train")} - {job.direction for job in every})
    if args.text and lacking and not args.directions:
        say(f"{shown(args.text)} has no {args.split} text of {listed(lacking, 12)}")
    if not all(job.is_done() for job in jobs):
        # who is killed leaves no summary that says that all is there
        known = {*read_directions(out), *(job.direction for job in jobs)}
        out.mkdir(parents=True, exist_ok=True)
        write_record(out / "summary.json", {"complete": False, "expected": len(known)})
    translate(args, model, data, jobs)
    scored = (str(job.direction) for job in every if job in jobs or job.is_done())
    return out, list(scored), data.training_lines()


def translate(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, jobs: Sequence[Job]
) -> None:
    """Translate and score what is not scored yet."""
    used = {file for job in jobs for file in job.files if file.is_relative_to(data.path)}
    data.refuse_changed(str(file.relative_to(data.path)) for file in sorted(used))
    todo = [job for job in jobs if not job.is_done()]
    if len(jobs) > 1 and len(todo) < len(jobs):
        say(f"{len(jobs) - len(todo)} of {len(jobs)} directions are scored already")
    if not todo:
        say(f"already scored: {shown(jobs[0].record if len(jobs) == 1 else jobs[0].record.parent)}")
        return
    model.make()
    facts = {
        "model": shown(model.path),
        "averaged": model.averaged,
        "updates": num_updates(load_checkpoint(model.path)),
        "beam": args.beam,
        "lenpen": args.lenpen,
        "engine": args.engine,
        "quantization": args.quantization,
        **made_now(),
    }
    if args.engine != "fairseq":
        facts["versions"] |= {args.engine: metadata.version(args.engine)}
    gpus, cores = gpus_of(args), cores_of(args)
    alone = args.engine == "ctranslate2" and len(todo) == 1  # its threads share the weights
    processes = gpus or args.processes or (1 if alone else cores)
    threads = threads_of(processes, cores)
    load = loader(args, model, data, processes, threads, gpus)
    say(
        f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set:"
        f" {listed([job.direction for job in todo])}, {processes} at a time"
    )
    done = len(jobs) - len(todo)
    imported = MODELS if args.engine == "fairseq" else ()
    translate_all(todo, facts, load, threads, processes, gpus, done, imported)
    if len(jobs) == 1:
        say(f"scores and hypotheses: {shown(todo[0].record.with_suffix(''))}.{{json,txt}}")


def loader(
    args: argparse.Namespace,
    model: TrainedModel,
    data: DataFolder,
    processes: int,
    threads: int,
    gpus: int,
) -> Callable[..., Engine]:
    """Return what loads the engine in a process."""
    if args.engine == "ctranslate2":
        search = Search(args.beam, args.lenpen, batch_tokens=args.batch)
        return functools.partial(_on_ctranslate2, _exported(args, model, data), search, threads)
    words = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}"]
    words += ["--max-tokens", str(batch_tokens(args, model, processes, gpus)), *args.extra]
    folder = BareFolder.of_tokens(data) if data.is_moses else data
    return functools.partial(_on_fairseq, model.path, folder, words)


def _on_ctranslate2(folder: Path, search: Search, threads: int, cpu: bool) -> Engine:
    from fairseq_deepnet.tools.translation.engines import CTranslate2Model

    return CTranslate2Model(folder, search, threads=threads, cpu=cpu)


def _on_fairseq(checkpoint: Path, folder: DataFolder, words: Sequence[str], cpu: bool) -> Engine:
    from fairseq_deepnet.tools.translation.engines import Translator

    return Translator(checkpoint, folder, words, cpu)


def _what(scores: dict[str, Any]) -> str:
    """Say what was scored, and how."""
    engine = [scores["engine"], str(scores["quantization"])] if scores["quantization"] else []
    parts = [
        f"{scores['split']}, {scores['lines']:,} sentences",
        f"{scores['model']} (update {scores['updates']:,})",
        f"beam {scores['beam']}, lenpen {scores['lenpen']:g}",
        *([" ".join(engine)] if engine else []),
    ]
    return ", ".join(parts)


def writable(folder: Path) -> Path:
    """Return a folder that can be written or made; OSError before anything is translated if not."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryDirectory(dir=place):
        return folder


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
