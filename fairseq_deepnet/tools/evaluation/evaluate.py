"""`deepnet evaluate`: from a run or a checkpoint to scores, translated, detokenised, recorded.

fairseq translates, with the options of fairseq-generate; or CTranslate2, for which the run is
exported first, once for each checkpoint and type of weights.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.files import inside_project, say, shown
from fairseq_deepnet.records import fingerprint, made_now, read_record, sha256
from fairseq_deepnet.tools import scores
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, BareFolder, DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import find_side
from fairseq_deepnet.tools.devices import (
    all_cores,
    choose_devices,
    gpu_gib,
    machine_gib,
    threads_of,
    visible_gpus,
)
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.evaluation.directions import Job, Summary, summarise, translate_all
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.trained_model import TrainedModel, choose_model, find_data, is_own_data
from fairseq_deepnet.tools.translation.engines import (
    ENGINES,
    QUANTIZATION,
    CTranslate2Model,
    Engine,
    Search,
    Translator,
)

TOKENS: Final = 4000
"""Source tokens per batch, where memory allows it."""
FEWEST_TOKENS: Final = 256
_CACHE_BYTES: Final = 16
"""Memory of decoding per source token, decoder layer, channel and hypothesis: keys and values in
fp32 and what reorders them; measured at 500L-500L with beam 5, 2.5 MB per source token."""
_SET_HERE: Final = {
    *("--beam", "--lenpen", "--path", "--gen-subset", "--max-tokens", "--post-process"),
    "--remove-bpe",
}
"""Options of fairseq-generate that are set by options of this command, or undo its work."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet evaluate`."""
    parser.add_argument("--split", default="test", help="part of the data (test)")
    text = "folder with SPLIT.A-B.A to translate and SPLIT.A-B.B to score against (the data's)"
    parser.add_argument("--text", type=inside_project, help=text)
    add_scoring_arguments(parser)


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of any scoring: the model, the data, the search."""
    parser.add_argument("target", nargs="?", type=Path, help="run or checkpoint (the newest run)")
    parser.add_argument("extra", nargs="*", help="options of fairseq-generate, after --")
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--spm", metavar="FILE", help=SPM_HELP)
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty (1)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument("--batch", type=int, help="source tokens per batch (by memory)")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="(fairseq)")
    parser.add_argument("--quantization", help=f"ctranslate2: float32, int8 ... ({QUANTIZATION})")
    parser.add_argument("--threads", type=int, help="cores to use (all)")
    parser.add_argument("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    parser.add_argument("--processes", type=int, help="processes on the CPU (one per core)")
    parser.add_argument("--directions", default="", help="only these, as in de-en,en-de (all)")
    parser.add_argument("--tokenizer", help="BLEU's tokenizer (by target language)")
    parser.add_argument("--out", type=Path, help="folder of the scores (scores/ in the run)")


def run(args: argparse.Namespace) -> int:
    """Score a model, or print the scores that it has; JSON and hypotheses are kept."""
    settle_engine(args)
    model = choose_model(args.target, args.average)
    data = find_data(model, args.data, args.spm)
    if data.is_monolingual:
        raise ValueError(f"{shown(data.path)} has text of one language; run deepnet perplexity")
    name = score_name(args, model.path.stem, other_text(args, model))
    if data.is_multilingual or args.text:
        print(score_directions(args, model, data, name).text)
        return 0
    (job,) = chosen(args, jobs_of(args, model, data, args.out or model.scores, name))
    translate(args, model, data, [job])
    facts = read_record(job.record)
    print(
        f"{scoring.numbers(facts)}  {args.split}, {facts['lines']:,} sentences, {facts['model']}"
        f" (update {facts['updates']:,}), {scores.decoding(facts)}  [{facts['bleu_signature']}]"
    )
    if scoring.TOKENISED in facts:
        bleu, signature = facts[scoring.TOKENISED], facts[f"{scoring.TOKENISED}_signature"]
        print(f"tokenised BLEU {bleu:.2f} of Moses tokens, which is not sacreBLEU  [{signature}]")
    return 0


def settle_engine(args: argparse.Namespace) -> None:
    """Fill in the type of weights. ValueError for options that contradict the engine."""
    if args.spm == "none":
        raise ValueError("--spm none: BLEU is of text, not of tokens; give the sentencepiece model")
    for word in args.extra:
        if word.partition("=")[0] in _SET_HERE:
            raise ValueError(f"{word}: use an option of deepnet evaluate; subwords are joined here")
    if args.engine == "ctranslate2":
        args.quantization = args.quantization or QUANTIZATION
        if args.extra:
            raise ValueError(f"{args.extra[0]}: options of fairseq-generate need ENGINE=fairseq")
    elif args.quantization:
        raise ValueError(f"QUANTIZATION={args.quantization} needs ENGINE=ctranslate2")


def engine_facts(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the engine that decide a score; none for fairseq, the default."""
    if args.engine == "fairseq":
        return {}
    return {"engine": args.engine, "quantization": args.quantization}


def score_name(args: argparse.Namespace, checkpoint: str, text: Path | None = None) -> str:
    """Return the name of a score by a checkpoint, of `text` if that is not the data's own."""
    words = [args.split, checkpoint, f"beam{args.beam}", f"lenpen{args.lenpen:g}"]
    words += ["-".join(engine_facts(args).values()), scores.option_words(args.extra)]
    return scores.score_name([*words, f"tok-{args.tokenizer}" if args.tokenizer else ""], text)


def other_text(args: argparse.Namespace, model: TrainedModel) -> Path | None:
    """Return --text, or --data if the model was trained on other data; otherwise None."""
    if args.text is not None or args.data is None:
        return args.text
    data = inside_project(args.data)
    return None if is_own_data(model, data) else data


def texts_of(
    folder: DataFolder, split: str, place: Path | None = None
) -> dict[Direction, tuple[Path, Path]]:
    """Return source and reference of every direction that there is text of.

    Args:
        place: another folder, with SPLIT.A-B.A and SPLIT.A-B.B, plain or .gz; they serve B-A too,
            where there is no SPLIT.B-A.B.

    Raises ValueError for a language that is not the model's, FileNotFoundError for missing text.
    """
    texts = {}
    for direction in folder.directions(split) if place is None else []:
        source, target = (folder.text(split, direction, language) for language in direction)
        texts[direction] = (source, target)
    files = place.glob(f"{split}.*-*.*") if place else []
    names = [path.name.removesuffix(".gz").removeprefix(f"{split}.") for path in files]
    pairs = {name.rsplit(".", 1)[0] for name in names}
    for pair in sorted(pairs):
        forth = Direction.parse(pair)
        back = Direction(forth.target, forth.source)
        if unknown := sorted(set(forth) - set(folder.languages)):
            raise ValueError(f"{place}: {pair}: the model does not know {', '.join(unknown)}")
        for direction in [forth] if str(back) in pairs else [forth, back]:
            if folder.is_multilingual or direction in folder.directions("train"):
                prefix = f"{place}/{split}.{pair}"
                source, target = (find_side(prefix, language) for language in direction)
                texts[direction] = (source, target)
    if not texts:
        raise FileNotFoundError(
            f"{shown(place or folder.path)} has no text of the {split} set: choose another with"
            f" --split (SPLIT=), or name a folder with {split}.A-B.A and {split}.A-B.B by --text"
        )
    return texts


def jobs_of(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, out: Path, name: str = ""
) -> list[Job]:
    """Return a job for each direction; its record is called `name`, or as the direction."""
    if args.text and data.is_moses:
        raise ValueError(f"{shown(data.path)} contains Moses tokens; --text needs sentencepiece")
    wanted, texts = request(args, model, data), texts_of(data, args.split, args.text)
    return [
        Job(pair, *sides, out / f"{name or pair}.json", data, args.split, args.tokenizer, wanted)
        for pair, sides in texts.items()
    ]


def chosen(args: argparse.Namespace, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of --directions; ValueError for one that there is no text of."""
    names = [name for name in args.directions.split(",") if name]
    known = [str(job.direction) for job in jobs]
    if lacking := [name for name in names if name not in known]:
        raise ValueError(f"no {args.split} text of {', '.join(lacking)}, but of {listed(known, 8)}")
    return [job for job in jobs if not names or str(job.direction) in names]


def request(args: argparse.Namespace, model: TrainedModel, data: DataFolder) -> dict[str, Any]:
    """Return all that decides the scores besides texts and tokenizer."""
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
) -> Summary:
    """Score the directions of a split or a folder of text, and sum up all with a score."""
    out = (args.out or model.scores) / name
    every = jobs_of(args, model, data, out)
    translate(args, model, data, chosen(args, every))
    recorded = scores.read_directions(out)
    done = {job.direction: recorded[job.direction] for job in every if job.is_done()}
    return summarise(out, done, [job.direction for job in every], data.training_lines())


def translate(
    args: argparse.Namespace, model: TrainedModel, data: DataFolder, jobs: Sequence[Job]
) -> None:
    """Translate and score what is not scored yet."""
    used = {file for job in jobs for file in job.files if file.is_relative_to(data.path)}
    data.refuse_changed(str(file.relative_to(data.path)) for file in sorted(used))
    todo = [job for job in jobs if not job.is_done()]
    out = jobs[0].record.parent
    if len(todo) < len(jobs):
        say(f"already scored: {len(jobs) - len(todo)} of {len(jobs)} in {shown(out)}")
    if not todo:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / scores.SUMMARY).unlink(missing_ok=True)  # none of an interrupted evaluation
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
    gpus = choose_devices(args.gpus, 1, 1, len(visible_gpus())).gpus
    cores = args.threads or all_cores()
    alone = args.engine == "ctranslate2" and len(todo) == 1  # its threads share the weights
    processes = gpus or args.processes or (1 if alone else cores)
    threads = threads_of(processes, cores)
    say(
        f"model {shown(model.path)}, data {shown(data.path)}, {args.split} set:"
        f" {listed([job.direction for job in todo])}, {processes} at a time"
    )
    load = loader(args, model, data, processes, threads, gpus)
    # seconds to import; CTranslate2 needs none of it
    preload = ("fairseq_deepnet.models",) if args.engine == "fairseq" else ()
    translate_all(todo, facts, load, threads, processes, gpus, preload)
    say(f"scores and hypotheses: {shown(out)}")


def loader(
    args: argparse.Namespace,
    model: TrainedModel,
    data: DataFolder,
    processes: int,
    threads: int,
    gpus: int,
) -> Callable[..., Engine]:
    """Return a function of `cpu` that loads the engine in a process."""
    if args.engine == "ctranslate2":
        from fairseq_deepnet.tools.export.export import export  # imports all models

        if data.is_moses:
            raise ValueError(f"{shown(data.path)} contains Moses tokens; set ENGINE=fairseq")
        exported = export(model, "ctranslate2", None, data.path, args.spm, args.quantization)
        search = Search(args.beam, args.lenpen, batch_tokens=args.batch)
        return functools.partial(CTranslate2Model, exported, search, threads=threads)
    batch = args.batch or batch_tokens(args.beam, model, processes, gpus)
    words = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}", "--max-tokens", str(batch)]
    folder = BareFolder.of_tokens(data) if data.is_moses else data
    return functools.partial(Translator, model.path, folder, [*words, *args.extra])


def batch_tokens(beam: int, model: TrainedModel, processes: int, gpus: int) -> int:
    """Return as many source tokens per batch as half the memory allows, up to TOKENS."""
    options = vars(model_arguments(load_checkpoint(model.path)) or argparse.Namespace())
    layers, width = options.get("decoder_layers") or 6, options.get("decoder_embed_dim") or 512
    memory = gpu_gib(gpus) if gpus else machine_gib() / processes
    bytes_per_token = _CACHE_BYTES * layers * width * beam
    return max(FEWEST_TOKENS, min(TOKENS, int((memory or 8.0) * 2**30 / 2 / bytes_per_token)))
