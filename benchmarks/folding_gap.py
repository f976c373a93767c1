"""What folding a trained model changes: log-probabilities of its test set, in three engines.

    python benchmarks/folding_gap.py RUN... [--sentences 50]

Each run is read as deepnet export reads it, folded, and built as fairseq's own model and (where
ctranslate2 is installed) as a CTranslate2 model in float32. The table shows the largest difference
of a target word's log-probability, given the reference before it, from the model's own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
from fairseq_deepnet.tools import fairseq_options

# isort: split
import fairseq.models
import torch
from fairseq import tasks

from fairseq_deepnet.checkpoints import load_checkpoint
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.export.export import to_ctranslate2
from fairseq_deepnet.tools.export.stock import fold_model, required_arguments, scheme_name
from fairseq_deepnet.tools.fairseq_options import quiet
from fairseq_deepnet.tools.trained_model import choose_model, find_data, task_arguments

Pieces = list[list[str]]


def read_pairs(data: DataFolder, sentences: int) -> tuple[Pieces, Pieces]:
    """The first sentences of the test set as subwords, both sides."""
    direction = Direction(*data.languages)
    sides = []
    for language in direction:
        lines = list(read_lines(data.text("test", direction, language)))[:sentences]
        sides.append([line.split() for line in data.encode(lines, language)])
    return sides[0], sides[1]


@torch.no_grad()
def log_probabilities(model: Any, task: Any, source: Pieces, target: Pieces) -> list[torch.Tensor]:
    """Of every target word and of the sentence's end."""
    found = []
    for words, reference in zip(source, target, strict=True):
        read, due = (
            torch.tensor([[symbols.index(piece) for piece in line] + [symbols.eos()]])
            for symbols, line in (
                (task.source_dictionary, words),
                (task.target_dictionary, reference),
            )
        )
        before = due.roll(1, dims=1)  # the end stands before the beginning
        logits = model(read, torch.tensor([read.numel()]), before)[0][0]
        found.append(logits.log_softmax(-1).gather(1, due.T)[:, 0])
    return found


def gap(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference."""
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def built(args: Any, weights: dict[str, torch.Tensor], task: Any) -> Any:
    with quiet():
        model = fairseq.models.build_model(args, task).eval()
    model.load_state_dict(weights)
    return model


def engine_gap(
    model: Any, ours: list[torch.Tensor], source: Pieces, target: Pieces
) -> float | None:
    """The same for CTranslate2; None without it."""
    try:
        import ctranslate2
    except ModuleNotFoundError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        place = to_ctranslate2(model, Path(folder) / "model")
        translator = ctranslate2.Translator(str(place), intra_threads=1)
        scored = translator.score_batch(source, target)
    return gap(ours, [torch.tensor(one.log_probs) for one in scored])


def measure(run: Path, sentences: int) -> str:
    """A row of the table."""
    model = choose_model(run, 0)
    data = find_data(model, None)
    with quiet():
        words = [str(data.path), *task_arguments(model.path, data), "--path", str(model.path)]
        task = tasks.setup_task(fairseq_options.parse_generation(words).task)
    state = load_checkpoint(model.path)
    source, target = read_pairs(data, sentences)
    args = required_arguments(state)
    ours = log_probabilities(built(args, state["model"], task), task, source, target)
    folded, stock_args = fold_model(state)
    stock = built(stock_args, folded.weights, task)
    gaps = (
        gap(ours, log_probabilities(stock, task, source, target)),
        engine_gap(model, ours, source, target),
    )
    depth = f"{args.encoder_layers}L-{args.decoder_layers}L"
    return row(scheme_name(args), depth, *gaps)


def row(*cells: str | float | None) -> str:
    """A line of the table; empty where an engine is missing."""
    told = (
        "" if cell is None else cell if isinstance(cell, str) else f"{cell:.1e}" for cell in cells
    )
    return f"| {' | '.join(told)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="what folding trained models changes")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sentences", type=int, default=50, help="of the test set (50)")
    args = parser.parse_args()
    print("| scheme | depth | stock fairseq | CTranslate2 float32 |\n|---|---|---:|---:|")
    for run in args.runs:
        print(measure(run, args.sentences), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
