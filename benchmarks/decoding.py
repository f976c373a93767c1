"""Compare the decoding speed of one model: stock fairseq, this plugin and CTranslate2.

    python benchmarks/decoding.py runs/multi30k

The model is exported (`deepnet export`), so that all systems have the same weights. Each system
runs in its own process with one thread. The test set is sorted by length in subwords and batched as
in fairseq-generate. The systems translate each batch in turn, from text to text, so that
disturbances of the machine affect all systems alike. Loading is not measured. The process of the
stock system never imports the plugin.

Systems are stock, ours, both in bf16 (stock-bf16, ours-bf16), and CTranslate2's types of weights
(float32, int8, ...). NAME@16 translates 16 sentences at a time instead of --batch. fairseq-generate
accepts --bf16 but ignores it; stock-bf16 shows the speed that bf16 would give.

A round is one pass over the test set. "sentences / s" is the median over rounds. "speed" is the
first system's processor time divided by the system's: the median and range over rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

Translate = Callable[[list[str]], list[str]]
Seconds = dict[str, list[float]]
"""System -> its processor time per round."""


def stock(setting: dict[str, Any]) -> Translate:
    """Load fairseq's transformer and SequenceGenerator as fairseq-generate does."""
    import sentencepiece
    import torch
    from fairseq import checkpoint_utils, options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    # torch loads only weights; a stock checkpoint also contains its options
    torch.serialization.add_safe_globals([argparse.Namespace])
    words = [setting["data"], "--path", setting["fairseq"], "--cpu"]
    words += ["--source-lang", setting["source"], "--target-lang", setting["target"]]
    words += ["--beam", str(setting["beam"])]
    args = options.parse_args_and_arch(options.get_generation_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    models, _ = checkpoint_utils.load_model_ensemble([setting["fairseq"]], task=task)
    for model in models:
        if setting["bf16"]:
            model.to(dtype=torch.bfloat16)
        model.prepare_for_inference_(cfg)
    generator = task.build_generator(models, cfg.generation)
    encoder, decoder = (
        sentencepiece.SentencePieceProcessor(model_file=setting["subwords"][language])
        for language in (setting["source"], setting["target"])
    )
    words_of, text_of = task.source_dictionary, task.target_dictionary

    def translate_batch(lines: list[str]) -> list[str]:
        tokens = [
            words_of.encode_line(" ".join(pieces), add_if_not_exist=False).long()
            for pieces in encoder.encode(lines, out_type=str)
        ]
        dataset = task.build_dataset_for_inference(tokens, [len(line) for line in tokens])
        sample = dataset.collater([dataset[number] for number in range(len(tokens))])
        with torch.inference_mode():
            results = task.inference_step(generator, models, sample)
        texts = [""] * len(lines)
        for number, hypotheses in zip(sample["id"].tolist(), results, strict=True):
            pieces = text_of.string(hypotheses[0]["tokens"].int())
            texts[number] = decoder.decode(pieces.split())
        return texts

    def translate(lines: list[str]) -> list[str]:
        size = setting["batch"]
        batches = [lines[start : start + size] for start in range(0, len(lines), size)]
        return [text for batch in batches for text in translate_batch(batch)]

    return translate


def ours(setting: dict[str, Any]) -> Translate:
    """Load the checkpoint with this plugin."""
    from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
    from fairseq_deepnet.tools.translation.engines import Translator

    words = ["--beam", str(setting["beam"]), "--batch-size", str(setting["batch"])]
    words += ["--bf16"] * setting["bf16"]
    folder = DataFolder.open(Path(setting["data"]))
    translator = Translator(Path(setting["checkpoint"]), folder, words, cpu=True)
    direction = Direction(setting["source"], setting["target"])
    return lambda lines: translator.translate(lines, direction)


def ctranslate2(setting: dict[str, Any]) -> Translate:
    """Load an exported folder."""
    from fairseq_deepnet.tools.corpora.folder import Direction
    from fairseq_deepnet.tools.translation.engines import CTranslate2Model

    folder, search = Path(setting["folder"]), {"beam": setting["beam"], "batch": setting["batch"]}
    model = CTranslate2Model(folder, **search, threads=1, cpu=True)
    direction = Direction(setting["source"], setting["target"])
    return lambda lines: model.translate(lines, direction)


BF16: Final = "-bf16"
SYSTEMS: Final[dict[str, Callable[[dict[str, Any]], Translate]]] = {
    "stock": stock,
    "ours": ours,
}


def kind_of(name: str) -> str:
    """Return a system's name without batch size and precision."""
    return name.partition("@")[0].removesuffix(BF16)


def load(name: str, setting: dict[str, Any]) -> None:
    """Load a system in its process."""
    import logging
    import warnings

    import torch

    global _translate
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if kind_of(name) != "stock":
        import fairseq_deepnet.models  # noqa: F401
    _translate = SYSTEMS.get(kind_of(name), ctranslate2)(setting)
    if kind_of(name) == "stock" and "fairseq_deepnet" in sys.modules:
        raise RuntimeError("the stock system has imported the plugin")


def translate(lines: list[str]) -> tuple[float, list[str]]:
    """Translate a batch with the system of this process; return seconds and hypotheses."""
    start = time.process_time()
    hypotheses = _translate(lines)
    return time.process_time() - start, hypotheses


def settings(args: argparse.Namespace, names: Sequence[str], place: Path) -> dict[str, Any]:
    """Return the settings of each system, exporting the model to `place` as needed."""
    from fairseq_deepnet.tools.export import export
    from fairseq_deepnet.tools.trained_model import choose_model, find_data

    model = choose_model(args.model, 0)
    data = find_data(model, None)
    source, target = data.languages
    common = {"data": str(data.path.resolve()), "checkpoint": str(model.path.resolve())}
    common |= {"source": source, "target": target, "beam": args.beam, "batch": args.batch}
    common["subwords"] = {name: str(data.subword_model(name)) for name in data.languages}
    settings_of = {}
    for name in names:
        (precise, _, batch), kind = name.partition("@"), kind_of(name)
        settings_of[name] = common | {"bf16": precise.endswith(BF16)}
        settings_of[name] |= {"batch": int(batch)} if batch else {}
        if kind == "stock":
            path = export.export(model, "fairseq", place / f"{model.path.stem}.pt")
            settings_of[name]["fairseq"] = str(path)
        elif kind not in SYSTEMS:
            path = export.export(model, "ctranslate2", place / kind, data.path, quantization=kind)
            settings_of[name]["folder"] = str(path)
    return settings_of


def batches_of(lines: list[str], setting: dict[str, Any], size: int) -> list[list[int]]:
    """Return batches of line numbers, sorted by length in subwords, the longest first."""
    from sentencepiece import SentencePieceProcessor

    encoder = SentencePieceProcessor(model_file=setting["subwords"][setting["source"]])
    lengths = list(map(len, encoder.encode(lines)))
    ordered = sorted(range(len(lines)), key=lambda number: -lengths[number])
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def race(
    systems: dict[str, ProcessPoolExecutor], lines: list[str], batches: list[list[int]], rounds: int
) -> tuple[Seconds, dict[str, list[str]]]:
    """Return the seconds per round and the translations of each system.

    Args:
        batches: line numbers in each batch
    """
    names = list(systems)
    seconds: Seconds = {name: [0.0] * rounds for name in names}
    texts = {name: [""] * len(lines) for name in names}
    for system in systems.values():  # warm up
        system.submit(translate, [lines[number] for number in batches[-1]]).result()
    for current in range(rounds):
        for turn, batch in enumerate(batches):
            first = turn % len(names)
            for name in (*names[first:], *names[:first]):
                task = systems[name].submit(translate, [lines[number] for number in batch])
                duration, hypotheses = task.result()
                seconds[name][current] += duration
                for number, text in zip(batch, hypotheses, strict=True):
                    texts[name][number] = text
    return seconds, texts


def table(seconds: Seconds, texts: dict[str, list[str]], references: Sequence[str]) -> list[str]:
    """Return a row per system, with speeds relative to the first."""
    from sacrebleu import corpus_bleu
    from side_by_side.tables import head, line

    first = next(iter(seconds))
    cells = ["system", "sentences / s", "rounds", "speed", "rounds", "BLEU", "differ"]
    lines = head(cells, 1)
    for name, rounds in seconds.items():
        rates = [len(references) / duration for duration in rounds]
        speeds = [base / own for base, own in zip(seconds[first], rounds, strict=True)]
        differ = sum(a != b for a, b in zip(texts[first], texts[name], strict=True))
        cells = [name]
        for values, digits in ((rates, 1), (speeds, 2)):
            cells += [f"{statistics.median(values):.{digits}f}"]
            cells += [f"{min(values):.{digits}f}-{max(values):.{digits}f}"]
        cells += [f"{corpus_bleu(texts[name], [list(references)]).score:.2f}", str(differ)]
        lines.append(line(cells))
    return lines


def main() -> None:
    """Export the model, race the systems and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="run or checkpoint of one language pair")
    systems = "stock,stock@16,ours,float32,int8,int8@16"
    help_line = "NAME@16: 16 sentences per batch (%(default)s)"
    parser.add_argument("--systems", default=systems, help=help_line)
    parser.add_argument("--rounds", type=int, default=3, help="passes over the test set (3)")
    parser.add_argument("--sentences", type=int, default=1000, help="of the test set (1000)")
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--batch", type=int, default=64, help="sentences per batch (64)")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from fairseq_deepnet.tools.corpora.text import read_lines

    names = args.systems.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        chosen = settings(args, names, Path(temporary))
        data = Path(chosen[names[0]]["data"]) / "text"
        sides = [chosen[names[0]][side] for side in ("source", "target")]
        source, reference = (
            list(read_lines(data / f"test.{side}"))[: args.sentences] for side in sides
        )
        largest = max(setting["batch"] for setting in chosen.values())
        batches = batches_of(source, chosen[names[0]], largest)
        context = multiprocessing.get_context("spawn")
        running = {
            name: ProcessPoolExecutor(1, context, initializer=load, initargs=(name, setting))
            for name, setting in chosen.items()
        }
        seconds, texts = race(running, source, batches, args.rounds)
        for system in running.values():
            system.shutdown()
    from side_by_side.tables import machine

    print(
        f"{args.model}, {len(source):,} sentences, beam {args.beam}, batches of {args.batch}, "
        f"one thread, rounds: {args.rounds}, processor time, {machine()}\n"
    )
    print("\n".join(table(seconds, texts, reference)))


if __name__ == "__main__":
    main()
