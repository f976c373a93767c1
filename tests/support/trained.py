"""Models with weights as after training, and their checkpoints and runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.schemes.admin import AdminResidual
from fairseq_deepnet.tools import standalone
from fairseq_deepnet.tools.fairseq_options import quiet
from tests.support.cells import write_config
from tests.support.corpus import write_lines
from tests.support.models import SYMBOLS, small, stir
from tests.support.runs import SENTENCES


def task(data: Path | None = None) -> Any:
    """Return a task with an invented dictionary, or with a data folder's dictionaries."""
    result: Any = standalone.VocabularyTask(4 + SYMBOLS)
    if data is not None and (data / "dict.txt").is_file():  # many languages
        result.source_dictionary = result.target_dictionary = Dictionary.load(
            str(data / "dict.txt")
        )
        for language in (data / "languages.txt").read_text(encoding="utf-8").split():
            result.source_dictionary.add_symbol(f"__{language}__")
    elif data is not None:
        result.source_dictionary = Dictionary.load(str(data / "dict.de.txt"))
        result.target_dictionary = Dictionary.load(str(data / "dict.en.txt"))
    return result


def trained(
    arch: str = "deepnet_transformer",
    data: Path | None = None,
    about: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Return a model with weights as after training, and the content of its checkpoint.

    `about` contains the options of its task, by default German to English.
    """
    torch.manual_seed(1)
    args = Namespace(arch=arch, _name=arch, **small(**options))
    with quiet():
        ARCH_CONFIG_REGISTRY[arch](args)
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, task(data)).eval()
    stir(model)
    for module in model.modules():
        if isinstance(module, AdminResidual):
            module.offset.fill_(0.7)  # as profiling sets it
    about = about or {"_name": "translation", "source_lang": "de", "target_lang": "en"}
    state = {
        "args": None,
        "cfg": {"model": args, "task": {**about, "data": str(data)}},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 7, "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 2}, "metrics": [1]},
        "last_optimizer_state": {"state": torch.ones(2)},
    }
    return model, state


def make_trained_run(run: Path, data: Path, **options: Any) -> Any:
    """Write a run folder with one checkpoint of a `trained` model, and return the model."""
    model, state = trained(data=data, **options)
    (run / "checkpoints").mkdir(parents=True)
    save_checkpoint(state, run / "checkpoints" / "checkpoint_best.pt")
    write_config(run, data, arch="deepnet_transformer")
    return model


def make_multilingual_data(place: Path) -> Path:
    """Write a data folder for en-xx and en-yy in both directions, with a test set of xx-yy."""
    sides = {
        "en": SENTENCES * 8,
        "xx": [line.upper() for line in SENTENCES * 8],
        "yy": [" ".join(reversed(line.split())) for line in SENTENCES * 8],
    }
    for language, lines in sides.items():
        write_lines(place / f"text.{language}", lines)
    rows = [f"test\txx\tyy\t{place}/text\n"]
    for pair in ("en\txx", "en\tyy"):
        rows += [f"{split}\t{pair}\t{place}/text\n" for split in ("train", "valid", "test")]
    (place / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    words = [f"--table={place / 'pairs.tsv'}", f"--out={place / 'data'}"]
    assert cli.main(["preprocess", "pairs", *words, "--vocab-size=70", "--workers=1"]) == 0
    return place / "data"
