"""A run's test set translated by its own engine and, exported, by Hugging Face's transformers.

    python benchmarks/huggingface_gap.py RUN [--data FOLDER] [--beam 5] [--sentences 1000]

The folder is written as `deepnet export --to huggingface` does, loaded by the Auto classes, and
asked for the same search. Printed are the number of sentences whose token lists differ, the largest
difference of a log-probability given the references, and every hypothesis that differs with both
scores (log-probability over length). One thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

try:
    import torchaudio  # noqa: F401  (transformers imports fairseq's, if there is one)
except (ImportError, OSError):  # built for another torch
    sys.modules["torchaudio"] = None  # type: ignore[assignment]
import transformers

from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.export.export import to_huggingface
from fairseq_deepnet.tools.trained_model import choose_model, find_data
from fairseq_deepnet.tools.translation.engine import Search
from fairseq_deepnet.tools.translation.fairseq_engine import Translator
from fairseq_deepnet.tools.translation.translate import EngineOptions, open_engine

BATCH = 50


def token_lists(engine: Translator, lines: list[str], language: str) -> list[list[int]]:
    """The numbers of every line's subwords and of its end, as fairseq has them."""
    dictionary = engine.task.source_dictionary
    if language == engine.folder.languages[-1]:
        dictionary = engine.task.target_dictionary
    encoded = engine.folder.encode(lines, language)
    return [
        dictionary.encode_line(line, add_if_not_exist=False).long().tolist() for line in encoded
    ]


@torch.no_grad()
def probability_gap(
    ours: Any, theirs: Any, sources: list[list[int]], due: list[list[int]]
) -> float:
    """The largest difference of a log-probability of a target word, given those before it."""
    largest = 0.0
    for source, words in zip(sources, due, strict=True):
        read, target = torch.tensor([source]), torch.tensor([words])
        before = target.roll(1, dims=1)  # the end stands before the beginning
        mine = ours(read, torch.tensor([len(source)]), before)[0]
        other = theirs(input_ids=read, decoder_input_ids=before, use_cache=False).logits
        gap = (mine.log_softmax(-1) - other.log_softmax(-1)).gather(2, target.unsqueeze(-1))
        largest = max(largest, float(gap.abs().max()))
    return largest


@torch.no_grad()
def translations(
    model: Any, tokenizer: Any, lines: list[str], beam: int
) -> list[tuple[str, float]]:
    """Text and score of every line, in order."""
    order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
    found: dict[int, tuple[str, float]] = {}
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        batch = tokenizer([lines[n] for n in numbers], return_tensors="pt", padding=True)
        result = model.generate(
            **batch, num_beams=beam, return_dict_in_generate=True, output_scores=True
        )
        texts = tokenizer.batch_decode(result.sequences, skip_special_tokens=True)
        found |= dict(
            zip(numbers, zip(texts, result.sequences_scores.tolist(), strict=True), strict=True)
        )
    return [found[number] for number in range(len(lines))]


def read_pair(data: DataFolder, sentences: int) -> list[list[str]]:
    """The first sentences of both sides of the test set."""
    direction = Direction(*data.languages)
    return [
        list(read_lines(data.text("test", direction, language)))[:sentences]
        for language in direction
    ]


def main() -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = choose_model(args.run, 0)
    data = find_data(model, args.data)
    source, target = read_pair(data, args.sentences)
    opened = open_engine(args.run, Search(beam=args.beam), EngineOptions(data=args.data))
    engine: Any = opened.engine
    ours = [best[0] for best in engine.hypotheses(source, opened.direction)]
    with tempfile.TemporaryDirectory() as place:
        folder = to_huggingface(model, Path(place) / "model", args.data)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    numbers = token_lists(engine, source, data.languages[0])
    others = [one != other for one, other in zip(numbers, tokenizer(source).input_ids, strict=True)]
    print(f"transformers {transformers.__version__}, {len(source)} sentences, beam {args.beam}")
    print(f"token lists that differ: {sum(others)}")
    due = token_lists(engine, target, data.languages[1])
    gap = probability_gap(engine.models[0], theirs, numbers[:BATCH], due[:BATCH])
    print(f"largest difference of a log-probability, {BATCH} sentences: {gap:.1e}")
    found = translations(theirs, tokenizer, source, args.beam)
    pairs = list(zip(ours, found, strict=True))
    differing = [(one, other) for one, other in pairs if one.text != other[0]]
    equal = [abs(one.score - other[1]) for one, other in pairs if one.text == other[0]]
    print(
        f"hypotheses that differ: {len(differing)}; of the equal ones the scores differ by at most"
    )
    print(f"{max(equal, default=0.0):.1e}")
    for one, (text, score) in differing:
        print(f"ours   {one.score:.6f} {one.text}\ntheirs {score:.6f} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
