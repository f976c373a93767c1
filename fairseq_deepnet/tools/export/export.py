"""`deepnet export`: convert a run or a checkpoint for stock fairseq, CTranslate2 or Hugging Face.

An export records its request: the content of checkpoint and data, and the options. Repeating the
request does nothing. Another request replaces the old export once the new one is complete.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from fairseq_deepnet.files import naming, put_folder_in_place, remove, say, shown
from fairseq_deepnet.records import fingerprint, installed, made_now, read_record
from fairseq_deepnet.tools.corpora.folder import SPM_HELP
from fairseq_deepnet.tools.export import (
    NO_CTRANSLATE2,
    NO_HUGGINGFACE,
    QUANTIZATIONS,
    RECORD,
)
from fairseq_deepnet.tools.export.stock import required_arguments, scheme_name, stock_checkpoint
from fairseq_deepnet.tools.export.vocabularies import data_digests
from fairseq_deepnet.tools.trained_model import BEST, TrainedModel, choose_model, find_data

FORMATS: Final = ("fairseq", "ctranslate2", "huggingface")
Write = Callable[[Path, dict[str, Any], dict[str, Any]], None]
"""Function of the output path, the checkpoint, and the record of the export."""


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
    parser.add_argument("--spm", metavar="FILE", help=SPM_HELP)
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument(
        "--force", action="store_true", help="export again, and replace a file that is no export"
    )


def run(args: argparse.Namespace) -> int:
    """Export, and print the path that was written or was already up to date."""
    if args.to != "ctranslate2" and args.quantization:
        raise ValueError("--quantization is CTranslate2's: leave it out, or --to ctranslate2")
    model = choose_model(args.target, args.average)
    if args.to == "fairseq":
        output = to_fairseq(model, args.out, args.force)
    elif args.to == "huggingface":
        output = to_huggingface(model, args.out, args.data, args.force, args.spm)
    else:
        words = (args.out, args.quantization, args.data, args.force, args.spm)
        output = to_ctranslate2(model, *words)
    print(output)
    return 0


def to_fairseq(model: TrainedModel, output: Path | None = None, force: bool = False) -> Path:
    """Write a checkpoint of fairseq's own model, by default under the checkpoint's name.

    This function and the following ones return the path of the export. They raise ValueError if the
    model cannot be exported, a package is missing, or the output must not be replaced.
    """

    def write(part: Path, state: dict[str, Any], record: dict[str, Any]) -> None:
        result = stock_checkpoint(state, model.path)
        part.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(result | {"export": record}, part)

    output = output or exports_of(model) / f"{model.path.stem}.pt"
    return _export(model, output, force, {"format": "fairseq"}, write)


def to_ctranslate2(
    model: TrainedModel,
    output: Path | None = None,
    quantization: str | None = None,
    data: Path | None = None,
    force: bool = False,
    spm: str | None = None,
) -> Path:
    """Write a CTranslate2 folder with weights of this type."""
    try:
        from fairseq_deepnet.tools.export import ctranslate2_folder
    except ModuleNotFoundError as error:
        raise _not_installed(error, "ctranslate2") from error
    quantization = quantization or QUANTIZATIONS[0]
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"--quantization {quantization} is unknown; choose one of {', '.join(QUANTIZATIONS)}"
            " (in scripts: QUANTIZATION)"
        )
    folder = find_data(model, data, spm)

    def write(part: Path, state: dict[str, Any], record: dict[str, Any]) -> None:
        ctranslate2_folder.write_folder(part, model, folder, state, quantization, record)

    digests = data_digests(folder)
    request = {"format": "ctranslate2", "quantization": quantization, "data": digests}
    output = output or exports_of(model) / _folder_name(model, f"ctranslate2-{quantization}")
    return _export(model, output, force, request, write)


def to_huggingface(
    model: TrainedModel,
    output: Path | None = None,
    data: Path | None = None,
    force: bool = False,
    spm: str | None = None,
) -> Path:
    """Write a folder that Hugging Face's transformers loads."""
    try:
        from fairseq_deepnet.tools.export import huggingface_folder, model_card
    except ModuleNotFoundError as error:
        raise _not_installed(error, "safetensors", "huggingface_hub") from error
    folder, scores = find_data(model, data, spm), model_card.scores_of(model)

    def write(part: Path, state: dict[str, Any], record: dict[str, Any]) -> None:
        huggingface_folder.write_folder(part, model, folder, state, scores, record)

    request = {"format": "huggingface", "data": data_digests(folder), "scores": scores}
    output = output or exports_of(model) / _folder_name(model, "huggingface")
    return _export(model, output, force, request, write)


def export_for_ctranslate2(
    model: TrainedModel, data: Path | None, quantization: str, spm: str | None = None
) -> Path:
    """Return the path of a model's CTranslate2 folder, which is written unless it is up to date.

    Raises:
        ValueError: if CTranslate2 cannot compute the model.
    """
    place = (model.run or model.path.resolve().parent) / "export"
    output = place / _folder_name(model, f"ctranslate2-{quantization}")
    return to_ctranslate2(model, output, quantization, data, spm=spm)


def exports_of(model: TrainedModel) -> Path:
    """Return the folder of a run's exports; ValueError for a checkpoint without a run."""
    if model.run is None:
        raise ValueError(f"{shown(model.path)} belongs to no run: say where to, with --out")
    return model.run / "export"


def _folder_name(model: TrainedModel, name: str) -> str:
    """Return a folder's usual name, prefixed with the name of a checkpoint other than the best."""
    is_best = model.run is not None and model.path.name == BEST
    return name if is_best else f"{model.path.stem}.{name}"


def _not_installed(error: ModuleNotFoundError, *packages: str) -> Exception:
    """Return the exception for a failed import; for these packages it says how to install them."""
    package = (error.name or "").partition(".")[0]
    if package not in packages:
        return error
    message = NO_CTRANSLATE2 if package == "ctranslate2" else NO_HUGGINGFACE
    return ValueError(message.format(package=package))


def _export(
    model: TrainedModel, output: Path, force: bool, request: dict[str, Any], write: Write
) -> Path:
    """Write an export unless an equal one exists."""
    if output.resolve() in {path.resolve() for path in (model.path, *model.sources)}:
        raise ValueError(f"--out {shown(output)} is the checkpoint itself; choose another file")
    request = request | {"checkpoints": [fingerprint(path) for path in model.sources]}
    if output.exists():
        recorded = _recorded_request(output)
        if recorded is None and output.is_dir() and any(output.iterdir()):
            raise ValueError(
                f"{shown(output)} holds no export of this command's, which even --force does not"
                " replace: choose another --out"
            )
        if recorded == request and not force:
            say(f"already exported: {shown(output)}; --force exports it again")
            return output
        if recorded is None and not force:
            raise ValueError(
                f"{shown(output)} is there and no export of this command's: choose another --out,"
                " or --force to replace it"
            )
    state = load_checkpoint(model.make(), entire=True)
    environment = made_now()
    record = {
        "checkpoint": model.path.name,
        "averaged": model.averaged,
        "num_updates": num_updates(state),
        "scheme": scheme_name(required_arguments(state)),
        "request": request,
        **environment,
        "versions": environment["versions"] | {"ctranslate2": installed("ctranslate2")},
    }
    part = output.with_name(output.name + ".part")
    try:
        with naming(output):
            remove(part)  # of an interrupted export
            write(part, state, record)
            if output.exists():
                say(f"replacing {shown(output)}")
            put_folder_in_place(part, output)
    finally:
        remove(part)
    return output


def _recorded_request(output: Path) -> dict[str, Any] | None:
    """Return the request of an existing export; None if there is none or it is unreadable."""
    try:
        is_folder = output.is_dir()
        record = read_record(output / RECORD) if is_folder else load_checkpoint(output)["export"]
        return dict(record["request"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
