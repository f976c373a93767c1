"""`deepnet export`: convert a run or a checkpoint for stock fairseq, CTranslate2 or Hugging Face.

A complete export replaces an earlier export at the same path, but no other file or folder.
"""

import argparse
import importlib
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from fairseq_deepnet.files import naming, shown, whole_folder
from fairseq_deepnet.records import fingerprint, made_now, sha256, write_json
from fairseq_deepnet.tools.corpora.build import folder_digests
from fairseq_deepnet.tools.corpora.folder import SPM_HELP
from fairseq_deepnet.tools.export import NO_CTRANSLATE2, NO_HUGGINGFACE, QUANTIZATIONS, RECORD
from fairseq_deepnet.tools.export.stock import required_arguments, stock_checkpoint
from fairseq_deepnet.tools.trained_model import BEST, TrainedModel, choose_model, find_data

FORMATS: Final = ("fairseq", "ctranslate2", "huggingface")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet export`."""
    parser.epilog = "Example: deepnet export runs/multi30k --to ctranslate2 --quantization int8"
    add = parser.add_argument
    add("target", type=Path, help="run folder (its best checkpoint) or checkpoint")
    formats = (
        "fairseq: a checkpoint for stock fairseq; ctranslate2: a folder; huggingface: a folder that"
        " transformers can load, with a model card"
    )
    add("--to", choices=FORMATS, required=True, help=formats)
    out = "file or folder to write (in the run's export/); replaces an earlier export"
    add("--out", type=Path, help=out)
    types = f"weight type for CTranslate2 ({QUANTIZATIONS[0]})"
    add("--quantization", choices=QUANTIZATIONS, metavar="TYPE", help=types)
    add("--data", type=Path, help="data folder (the run's)")
    add("--spm", metavar="FILE", help=SPM_HELP)
    add("--average", type=int, default=0, metavar="N", help="average the last N checkpoints (0)")


def run(args: argparse.Namespace) -> int:
    """Export a model, and print the path of the export."""
    if args.to != "ctranslate2" and args.quantization:
        raise ValueError("--quantization is an option of --to ctranslate2")
    model = choose_model(args.target, args.average)
    kind = args.quantization or QUANTIZATIONS[0]
    print(export(model, args.to, args.out, args.data, args.spm, kind))
    return 0


def export(
    model: TrainedModel,
    form: str,
    output: Path | None = None,
    data: Path | None = None,
    spm: str | None = None,
    quantization: str = QUANTIZATIONS[0],
) -> Path:
    """Export a model, and return the path of the export.

    Args:
        form: one of FORMATS.
        output: file or folder to write; by default, in export/ in the run's or checkpoint's folder.
        data, spm: data folder and subword model, as in `find_data`; ignored for fairseq.
        quantization: weight type in CTranslate2.

    Raises ValueError if the model cannot be exported, a package is missing, or `output` exists and
    is not an export.
    """
    request: dict[str, Any] = {"format": form, "checkpoints": [*map(fingerprint, model.sources)]}
    name = form
    if form == "ctranslate2":
        request["quantization"], name = quantization, f"ctranslate2-{quantization}"
    name = name if model.path.name == BEST else f"{model.path.stem}.{name}"
    if form == "fairseq":
        name = f"{model.path.stem}.pt"
    else:
        try:
            writer = importlib.import_module(f"fairseq_deepnet.tools.export.{form}_folder")
        except ModuleNotFoundError as error:
            text = NO_CTRANSLATE2 if form == "ctranslate2" else NO_HUGGINGFACE
            raise ValueError(text.format(package=str(error.name).partition(".")[0])) from error
        folder = find_data(model, data, spm)
        paths = {folder.path / "languages.txt", *folder.path.glob("dict*.txt")}
        paths |= set(map(folder.subword_model, folder.languages))
        request["data"] = {path.name: sha256(path) for path in sorted(paths)}
    if form == "huggingface":
        request["scores"] = writer.scores_of(model)
    output = output or (model.run or model.path.resolve().parent) / "export" / name
    if output.exists() and not _is_export(output):
        raise ValueError(
            f"{shown(output)} exists and is not an export; remove it, or choose another --out"
        )
    state = load_checkpoint(model.make(), entire=True)
    model.refuse_replaced(request["checkpoints"])
    record = {
        "checkpoint": model.path.name,
        "averaged": state.get("averaged"),
        "num_updates": num_updates(state),
        "scheme": getattr(required_arguments(state), "residual_scheme", "stock"),
        "request": request,
        **made_now(),
    }
    if form == "fairseq":
        result = stock_checkpoint(state) | {"export": record}
        output.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(result, output)
    else:
        with naming(output), whole_folder(output) as part:
            record |= writer.write_folder(part, model, folder, state, record)
            write_json(part / RECORD, record | {"files": folder_digests(part)})
    return output


def _is_export(output: Path) -> bool:
    """Return True if a file or folder was written by this command."""
    try:
        return (output / RECORD).is_file() or bool(load_checkpoint(output).get("export"))
    except (OSError, ValueError):
        return False
