"""Minimal data folders and checkpoints that the scripts accept."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import torch

from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.tools.corpora.binarise import binarise
from fairseq_deepnet.tools.corpora.subwords import load_model, train_model, write_dictionary
from fairseq_deepnet.tools.corpora.text import Recipe, read_lines
from tests.support.cells import write_config
from tests.support.corpus import write_lines

SENTENCES = [
    "Two men play chess.",
    "A dog runs over the green grass.",
    "The little girl reads a book.",
    "An old woman sells flowers at the market.",
]
"""The target side of the test set."""

TINY = [
    *("--encoder-layers", "1", "--decoder-layers", "1", "--max-tokens", "200"),
    *("--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-attention-heads", "2"),
    *("--decoder-embed-dim", "8", "--decoder-ffn-embed-dim", "8", "--decoder-attention-heads", "2"),
]
"""fairseq-train options that make a model small enough for a test."""


def make_data(folder: Path) -> Path:
    """Write a data folder with the same few sentences on both sides of all splits."""
    for language in ("de", "en"):
        write_lines(folder / "text" / f"test.{language}", SENTENCES)
    train_model(read_lines(folder / "text" / "test.en"), folder / "spm", Recipe(vocab_size=60))
    model = load_model(folder / "spm.model")
    for language in ("de", "en"):
        write_dictionary(model, folder / f"dict.{language}.txt")
        path = folder / "text" / f"test.{language}"
        for split in ("train", "valid", "test"):
            binarise(folder / "spm.model", path, folder / f"{split}.de-en.{language}")
    manifest = {"source": "de", "target": "en", "lines": {"train": 4, "valid": 4, "test": 4}}
    (folder / "corpus.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def make_checkpoint(path: Path, updates: int, data: Path | None = None) -> Path:
    """Write a checkpoint with one weight, a number of updates and the name of a data folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "args": None,
        "cfg": {"model": Namespace(arch="transformer"), "task": {"data": str(data)}},
        "model": {"weight": torch.full((2,), float(updates))},
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"state": torch.ones(1)},
    }
    save_checkpoint(state, path)
    return path


TRANSLATIONS = ["Two men play chess.", "A dog runs over green grass.", "A girl reads.", "Flowers."]


def make_run(run: Path, data: Path) -> Path:
    """Write a run folder with checkpoints after 10, 20 (best) and 40 (last) updates."""
    for updates in (10, 20, 40):
        make_checkpoint(run / "checkpoints" / f"checkpoint_1_{updates}.pt", updates)
    make_checkpoint(run / "checkpoints" / "checkpoint_best.pt", 20)
    make_checkpoint(run / "checkpoints" / "checkpoint_last.pt", 40)
    write_config(run, data, arch="transformer")
    return run
