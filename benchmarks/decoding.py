"""Decoding speed of one trained model: stock fairseq, this plugin, CTranslate2, side by side.

    python benchmarks/decoding.py runs/multi30k

The model is exported (`deepnet export`), so that all systems have the same weights, and each system
is loaded in a process of its own with one thread. The test set is sorted by length in subwords and
cut into batches, as fairseq-generate does; each system in turn translates a batch, from text to
text, so that what disturbs the machine meets all alike. Loading is not counted. The stock system's
process never imports the plugin: fairseq's own model, generator and loop. Prints Markdown.

Systems are stock, ours, both in bf16 (stock-bf16, ours-bf16), and CTranslate2's types of weights
(float32, int8 ...); NAME@16 takes 16 sentences at a time instead of --batch. fairseq-generate takes
--bf16 and forgets it; stock-bf16 is what it would do.

A round is a pass over the test set. Sentences a second are medians over rounds; the speed is the
median over rounds of stock's time for all sentences over the system's, and stock is the fastest of
its batch sizes. Beside it are the lowest and the highest over rounds, and the quartiles of the same
ratio batch by batch, in which a batch of short sentences counts as much as a long one.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

Translate = Callable[[list[str]], list[str]]
Seconds = dict[str, list[list[float]]]
"""By system, round and batch."""
CLOCKS: Final[dict[str, Callable[[], float]]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,
}


def stock(setting: dict[str, Any]) -> Translate:
    """fairseq's transformer and SequenceGenerator, as fairseq-generate runs them."""
    import ast

    import sentencepiece
    import torch
    from fairseq import checkpoint_utils, options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    # torch loads weights only; a stock checkpoint holds its settings, too
    torch.serialization.add_safe_globals([argparse.Namespace])
    words = [setting["data"], "--path", setting["fairseq"], "--cpu"]
    words += ["--source-lang", setting["source"], "--target-lang", setting["target"]]
    words += ["--beam", str(setting["beam"])]
    args = options.parse_args_and_arch(options.get_generation_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    models, _ = checkpoint_utils.load_model_ensemble(
        [setting["fairseq"]],
        task=task,
        arg_overrides=ast.literal_eval(cfg.common_eval.model_overrides),
    )
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
            found = task.inference_step(generator, models, sample)
        result = [""] * len(lines)
        for number, hypotheses in zip(sample["id"].tolist(), found, strict=True):
            pieces = text_of.string(hypotheses[0]["tokens"].int())
            result[number] = decoder.decode(pieces.split())
        return result

    def translate(lines: list[str]) -> list[str]:
        size = setting["batch"]
        batches = [lines[start : start + size] for start in range(0, len(lines), size)]
        return [text for batch in batches for text in translate_batch(batch)]

    return translate


def ours(setting: dict[str, Any]) -> Translate:
    """The checkpoint as it was trained, by this plugin."""
    from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
    from fairseq_deepnet.tools.translation.engines import Translator

    words = ["--beam", str(setting["beam"]), "--batch-size", str(setting["batch"])]
    words += ["--bf16"] * setting["bf16"]
    folder = DataFolder.open(Path(setting["data"]))
    translator = Translator(Path(setting["checkpoint"]), folder, words, cpu=True)
    direction = Direction(setting["source"], setting["target"])
    return lambda lines: translator.translate(lines, direction)


def ctranslate2(setting: dict[str, Any]) -> Translate:
    """An exported folder."""
    from fairseq_deepnet.tools.corpora.folder import Direction
    from fairseq_deepnet.tools.translation.engines import CTranslate2Model, Search

    search = Search(beam=setting["beam"], batch=setting["batch"])
    model = CTranslate2Model(Path(setting["folder"]), search, threads=1, cpu=True)
    direction = Direction(setting["source"], setting["target"])
    return lambda lines: model.translate(lines, direction)


BF16: Final = "-bf16"
SYSTEMS: Final[dict[str, Callable[[dict[str, Any]], Translate]]] = {
    "stock": stock,
    "ours": ours,
}


def kind_of(name: str) -> str:
    """A system without its batch size and precision, which are settings of it."""
    return name.partition("@")[0].removesuffix(BF16)


def serve(name: str, setting: dict[str, Any], clock: str, orders: Connection) -> None:
    """Load a system; translate a batch whenever one comes, and send hypotheses and seconds."""
    import logging
    import warnings

    import torch

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if kind_of(name) != "stock":
        import fairseq_deepnet.models  # noqa: F401
    translate = SYSTEMS.get(kind_of(name), ctranslate2)(setting)
    if kind_of(name) == "stock" and "fairseq_deepnet" in sys.modules:
        raise SystemExit("the stock system has imported the plugin")
    orders.send("ready")
    now = CLOCKS[clock]
    while (lines := orders.recv()) is not None:
        start = now()
        hypotheses = translate(lines)
        orders.send((now() - start, hypotheses))


class Running:
    """A system in a process of its own."""

    def __init__(self, name: str, setting: dict[str, Any], clock: str) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.orders, other = context.Pipe()
        arguments = (name, setting, clock, other)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.receive()

    def receive(self) -> Any:
        try:
            return self.orders.recv()
        except EOFError:
            self.process.join()
            raise SystemExit(f"{self.name} ended with status {self.process.exitcode}") from None

    def translate(self, lines: Sequence[str]) -> tuple[float, list[str]]:
        self.orders.send(list(lines))
        seconds, hypotheses = self.receive()
        return float(seconds), list(hypotheses)

    def end(self) -> None:
        self.orders.send(None)
        self.process.join()


def settings(args: argparse.Namespace, names: Sequence[str], place: Path) -> dict[str, Any]:
    """What each system is told; exports what it needs into `place`, if it is not there."""
    from fairseq_deepnet.tools.export import export
    from fairseq_deepnet.tools.trained_model import choose_model, find_data

    model = choose_model(args.model, 0)
    data = find_data(model, args.data)
    source, target = data.languages
    common = {"data": str(data.path.resolve()), "checkpoint": str(model.path.resolve())}
    common |= {"source": source, "target": target, "beam": args.beam, "batch": args.batch}
    common["subwords"] = {name: str(data.subword_model(name)) for name in data.languages}
    found = {}
    for name in names:
        (precise, _, batch), kind = name.partition("@"), kind_of(name)
        found[name] = common | {"bf16": precise.endswith(BF16)}
        found[name] |= {"batch": int(batch)} if batch else {}
        if kind == "stock":
            path = export.to_fairseq(model, place / f"{model.path.stem}.pt")
            found[name]["fairseq"] = str(path)
        elif kind not in SYSTEMS:
            path = export.to_ctranslate2(model, place / kind, kind, data.path)
            found[name]["folder"] = str(path)
    return found


def common_size(told: dict[str, Any]) -> int:
    """How many sentences a system is given at a time: as many as the largest batch.

    Ends the program where another would not cut it evenly: its last batches would all be short.
    """
    sizes = sorted({setting["batch"] for setting in told.values()})
    if any(sizes[-1] % size for size in sizes):
        raise SystemExit(f"batches of {', '.join(map(str, sizes))}: each has to divide the largest")
    return int(sizes[-1])


def subwords_of(lines: Sequence[str], setting: dict[str, Any]) -> list[int]:
    """How many each line of the source is."""
    from sentencepiece import SentencePieceProcessor

    encoder = SentencePieceProcessor(model_file=setting["subwords"][setting["source"]])
    return [len(pieces) for pieces in encoder.encode(list(lines))]


def batches_of(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Numbers of lines of such lengths, the longest first, `size` at a time."""
    ordered = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def race(
    systems: Sequence[Running], lines: Sequence[str], batches: Sequence[list[int]], rounds: int
) -> tuple[Seconds, dict[str, list[str]]]:
    """What each system took, and its translations of the lines. batches: numbers of lines."""
    seconds: Seconds = {system.name: [] for system in systems}
    texts = {system.name: [""] * len(lines) for system in systems}
    for system in systems:  # the first of all loads what it needs
        system.translate([lines[number] for number in batches[-1]])
    for _ in range(rounds):
        for system in systems:
            seconds[system.name].append([])
        for turn, batch in enumerate(batches):
            first = turn % len(systems)
            for system in (*systems[first:], *systems[:first]):
                taken, hypotheses = system.translate([lines[number] for number in batch])
                seconds[system.name][-1].append(taken)
                for number, text in zip(batch, hypotheses, strict=True):
                    texts[system.name][number] = text
    return seconds, texts


def base_of(seconds: Seconds) -> str:
    """The fastest batch size of the first system: speeds against any other would flatter."""
    kind = next(iter(seconds)).partition("@")[0]  # bf16 is another
    alike = [name for name in seconds if name.partition("@")[0] == kind]
    return min(alike, key=lambda name: statistics.median(map(sum, seconds[name])))


def span(values: Sequence[float], digits: int) -> str:
    """From the lowest to the highest, if there are several."""
    return f"{min(values):.{digits}f}-{max(values):.{digits}f}" if len(values) > 1 else ""


def speed_cells(base: list[list[float]], rounds: list[list[float]]) -> list[str]:
    """How many times as fast over all sentences: median and span of the rounds; then by batch."""
    from side_by_side.tables import quartiles, ratios

    whole = ratios([sum(batches) for batches in base], [sum(batches) for batches in rounds])
    single = ratios(*([taken for batches in side for taken in batches] for side in (base, rounds)))
    return [f"{statistics.median(whole):.2f}", span(whole, 2), quartiles(single, 2)]


def table(seconds: Seconds, texts: dict[str, list[str]], references: Sequence[str]) -> list[str]:
    """A line a system; speeds are relative to the base."""
    from sacrebleu import corpus_bleu
    from side_by_side.tables import head, line

    first, base = next(iter(seconds)), seconds[base_of(seconds)]
    cells = ["system", "sentences / s", "rounds", "speed", "rounds", "batches", "BLEU", "differ"]
    lines = head(cells, 1)
    for name, rounds in seconds.items():
        rates = [len(references) / sum(batches) for batches in rounds]
        differ = sum(a != b for a, b in zip(texts[first], texts[name], strict=True))
        cells = [name, f"{statistics.median(rates):.1f}", span(rates, 1)]
        cells += speed_cells(base, rounds)
        cells += [f"{corpus_bleu(texts[name], [list(references)]).score:.2f}", str(differ)]
        lines.append(line(cells))
    return lines


def main() -> None:
    """Export, race, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="run or checkpoint of one language pair")
    systems = "stock,stock@16,stock@128,ours,float32,int8,int8@16"
    help_line = "NAME@16: 16 sentences per batch (%(default)s)"
    parser.add_argument("--systems", default=systems, help=help_line)
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--rounds", type=int, default=3, help="passes over the test set (3)")
    parser.add_argument("--sentences", type=int, default=1000, help="of the test set (1000)")
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--batch", type=int, default=64, help="sentences per batch (64)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of a busy machine")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    names = args.systems.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        told = settings(args, names, Path(temporary))
        data = Path(told[names[0]]["data"]) / "text"
        sides = [told[names[0]][side] for side in ("source", "target")]
        source, reference = (
            (data / f"test.{side}").read_text(encoding="utf-8").split("\n")[: args.sentences]
            for side in sides
        )
        batches = batches_of(subwords_of(source, told[names[0]]), common_size(told))
        running = [Running(name, told[name], args.clock) for name in names]
        seconds, texts = race(running, source, batches, args.rounds)
        for system in running:
            system.end()
    from side_by_side.tables import machine

    print(
        f"{args.model}, {len(source):,} sentences, beam {args.beam}, batches of {args.batch}, "
        f"one thread, {args.rounds} round{'s' * (args.rounds > 1)}, {args.clock} time, "
        f"{machine()}; speeds are relative to {base_of(seconds)}\n"
    )
    print("\n".join(table(seconds, texts, reference)))


if __name__ == "__main__":
    main()
