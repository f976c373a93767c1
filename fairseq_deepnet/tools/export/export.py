"""`deepnet export`: a run or a checkpoint for stock fairseq, CTranslate2 or Hugging Face.

`to_fairseq`, `to_ctranslate2` and `to_huggingface` write to `output`, by default under the usual
name in the run's export/, unless it is there and up to date. `data` is the data folder where
neither run nor checkpoint says it; `force` replaces what is there. ValueError says why a model
cannot be exported, what is to be installed, or what is not to be overwritten.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, save_checkpoint
from fairseq_deepnet.files import say, shown
from fairseq_deepnet.tools.export import record
from fairseq_deepnet.tools.export.layout import (
    HUGGINGFACE,
    NO_CTRANSLATE2,
    NO_SAFETENSORS,
    QUANTIZATIONS,
    ctranslate2_name,
    exports_of,
    folder_name,
)
from fairseq_deepnet.tools.export.stock import stock_checkpoint
from fairseq_deepnet.tools.trained_model import TrainedModel, choose_model, find_data

FORMATS: Final = ("fairseq", "ctranslate2", HUGGINGFACE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet export`."""
    parser.epilog = "Example: deepnet export runs/multi30k --to ctranslate2 --quantization int8"
    parser.add_argument("target", type=Path, help="run (its best checkpoint) or checkpoint")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        required=True,
        help="fairseq: a checkpoint of its own transformer; ctranslate2: a folder; huggingface: a"
        " folder that transformers loads, with a model card",
    )
    parser.add_argument(
        "--out", type=Path, help="file or folder to write (of a run: in its export/)"
    )
    parser.add_argument(
        "--quantization",
        metavar="TYPE",
        help=f"of weights in CTranslate2, the first by default: {', '.join(QUANTIZATIONS)}",
    )
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="redo it, or replace a file or a CTranslate2 model of others; never another folder",
    )


def run(args: argparse.Namespace) -> int:
    """Export, and print what was written, or what was there and up to date."""
    if args.to != "ctranslate2" and args.quantization:
        raise ValueError("--quantization is CTranslate2's: leave it out, or --to ctranslate2")
    model = choose_model(args.target, args.average)
    if args.to == "fairseq":
        output = to_fairseq(model, args.out, args.force)
    elif args.to == HUGGINGFACE:
        output = to_huggingface(model, args.out, args.data, args.force)
    else:
        quantization = args.quantization or QUANTIZATIONS[0]
        output = to_ctranslate2(model, args.out, quantization, args.data, args.force)
    print(output)
    return 0


def to_fairseq(model: TrainedModel, output: Path | None = None, force: bool = False) -> Path:
    """Write a checkpoint of fairseq's own model, called as the checkpoint is."""
    request = record.make_request(model, "fairseq")

    def write(part: Path, state: dict[str, Any]) -> None:
        result = stock_checkpoint(state)
        result["export"] = record.describe(model, state, request)
        save_checkpoint(result, part)

    return _export(model, output or f"{model.path.stem}.pt", force, request, write)


def to_ctranslate2(
    model: TrainedModel,
    output: Path | None = None,
    quantization: str = QUANTIZATIONS[0],
    data: Path | None = None,
    force: bool = False,
) -> Path:
    """Write a CTranslate2 folder with weights of this type."""
    with _needing("ctranslate2", NO_CTRANSLATE2):
        from fairseq_deepnet.tools.export import ctranslate2_folder
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ValueError(
            f"--quantization {quantization} is unknown; choose one of {known}"
            " (in scripts: QUANTIZATION)"
        )
    folder = find_data(model, data)
    request = record.make_request(
        model, "ctranslate2", quantization=quantization, data=record.data_digests(folder)
    )

    def write(part: Path, state: dict[str, Any]) -> None:
        ctranslate2_folder.write_folder(part, model, folder, state, request)

    return _export(model, output or ctranslate2_name(model, quantization), force, request, write)


def to_huggingface(
    model: TrainedModel, output: Path | None = None, data: Path | None = None, force: bool = False
) -> Path:
    """Write a folder that Hugging Face's transformers loads."""
    with _needing("safetensors", NO_SAFETENSORS):
        from fairseq_deepnet.tools.export import huggingface_folder, model_card
    folder = find_data(model, data)
    request = record.make_request(
        model,
        HUGGINGFACE,
        data=record.data_digests(folder),
        scores=model_card.read_scores(model),
    )

    def write(part: Path, state: dict[str, Any]) -> None:
        huggingface_folder.write_folder(part, model, folder, state, request)

    return _export(model, output or folder_name(model, HUGGINGFACE), force, request, write)


def export_for_ctranslate2(model: TrainedModel, data: Path | None, quantization: str) -> Path:
    """Return a model's CTranslate2 folder under its usual name, written where it is not up to date.

    Raises:
        ValueError: for a model that CTranslate2 does not compute, with the reason, and where
            nothing can be written.
    """
    place = exports_of(model)
    try:
        output = place / ctranslate2_name(model, quantization)
        return to_ctranslate2(model, output, quantization, data)
    except PermissionError as error:
        raise ValueError(
            f"{shown(place)} cannot be written ({error.strerror}): export the model elsewhere with "
            "deepnet export --to ctranslate2 --out FOLDER, and name that folder"
        ) from error


@contextmanager
def _needing(package: str, message: str) -> Iterator[None]:
    """Say what to install where an import fails for want of a package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ValueError(message) from error


def _export(
    model: TrainedModel,
    output: Path | str,
    force: bool,
    request: dict[str, Any],
    write: Callable[[Path, dict[str, Any]], None],
) -> Path:
    """Write an export where there is not the same already; a name alone is one in the model's run.

    Args:
        write: takes where to write, and the checkpoint.
    """
    if isinstance(output, str):
        if model.run is None:
            raise ValueError(f"{shown(model.path)} belongs to no run: say where to, with --out")
        output = exports_of(model) / output
    if output.resolve() in {path.resolve() for path in (model.path, *model.sources)}:
        raise ValueError(f"--out {shown(output)} is the checkpoint itself; choose another file")
    with record.export_lock(model):
        if not record.may_write(output, request, force):
            say(f"already exported: {shown(output)}")
            return output
        if output.exists():
            say(f"replacing {shown(output)}")
        state = load_checkpoint(model.make(), entire=True)
        with record.in_place_of(output) as part:
            write(part, state)
    return output
