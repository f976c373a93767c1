"""Which checkpoint stands for a run, which data belongs to it; and the mean of several checkpoints.

The mean of the last checkpoints of a run usually translates a little better than any one of them
(Vaswani et al. 2017, section 6.1, average the last 5 to 20). `deepnet average` writes it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from fairseq_deepnet.checkpoints import (
    LAST,
    load_checkpoint,
    model_arguments,
    num_updates,
    periodic_checkpoints,
    refuse_not_finite,
    save_checkpoint,
)
from fairseq_deepnet.files import ROOT, inside_project, say, shown
from fairseq_deepnet.records import read_record, refuse_changed, sha256
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.folder import MULTILINGUAL_TASK, BareFolder, DataFolder

BEST: Final = "checkpoint_best.pt"
ENVIRONMENT: Final = "environment.json"
"""What a run records of its data, versions and devices."""
VOCABULARY_FILES: Final = {
    "subwords_sha256": ("spm*.model", "bpe.codes"),
    "dictionaries_sha256": ("dict*.txt", "languages.txt"),
}
"""Files that decide which words a model's numbers stand for, as environment.json records them."""

# How languages are named to a model; what a checkpoint was trained with holds for its use.
_TOKEN_OPTIONS: Final = ("encoder-langtok", "decoder-langtok", "lang-tok-style")
_SHAPES_THE_MODEL: Final = re.compile(
    r"_name|arch|init|activation_fn|layernorm_embedding|(encoder|decoder|residual|share|no)_.*"
)
_ONLY_FOR_TRAINING: Final = re.compile(
    r"no_(seed_provided|progress_bar|save.*|.*_checkpoints)|.*_layerdrop"
)


@dataclasses.dataclass
class TrainedModel:
    """What is to be used: a checkpoint, and the run it belongs to (None if it is alone)."""

    path: Path
    run: Path | None
    sources: list[Path]
    """The checkpoints it is averaged from; the checkpoint itself where nothing is averaged."""

    @property
    def averaged(self) -> list[str] | None:
        """Names of the checkpoints that it is the mean of; None where it is of one."""
        return [path.name for path in self.sources] if len(self.sources) > 1 else None

    @property
    def scores(self) -> Path:
        """The folder where its scores are kept."""
        return (self.run or self.path.resolve().parent) / "scores"

    def make(self) -> Path:
        """Return the checkpoint, averaged now if it is to be.

        Raises ValueError for weights that are not finite.
        """
        if self.sources != [self.path]:
            folder, count = self.sources[0].parent, len(self.sources)
            for attempt in range(3):
                try:
                    average_checkpoints(self.sources, self.path)
                    break
                except FileNotFoundError:  # a training beside has removed one since
                    if attempt == 2:
                        raise
                    self.sources = last_checkpoints(folder, count)
        else:
            refuse_not_finite(load_checkpoint(self.path), shown(self.path))
        return self.path


def newest_run(runs: Path) -> Path:
    """Return the run whose checkpoints were written last; FileNotFoundError where there is none."""
    written = [(path.stat().st_mtime, path.parents[1]) for path in runs.glob("*/checkpoints/*.pt")]
    if not written:
        raise FileNotFoundError(
            f"no trained run in {shown(runs)}: train one (bash scripts/train.sh CONFIG), "
            "or name a run or a checkpoint"
        )
    return max(written)[1]


def checkpoint_folder(target: Path) -> Path:
    """Return the folder of checkpoints: a run's checkpoints/, else the folder itself."""
    inside = target / "checkpoints"
    return inside if inside.is_dir() else target


def choose_model(target: Path | None, average: int) -> TrainedModel:
    """Return the checkpoint that stands for `target`, a run folder or a checkpoint; None is the
    newest run, which is named on standard error.

    Of a run this is checkpoint_best.pt, checkpoint_last.pt where validation never ran, or with
    `average` > 0 the mean of that many last checkpoints. Raises FileNotFoundError for what is not
    there, ValueError for an average of a single checkpoint.
    """
    if target is None:
        target = newest_run(ROOT / "runs")
        say(f"newest run: {shown(target)}")
    # a link to a checkpoint may lie anywhere
    folder = target.resolve().parent if target.is_file() else checkpoint_folder(target)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run or checkpoint {target}")
    above = folder.resolve().parent
    run = above if (above / "config.yaml").is_file() else None
    if target.is_file():
        if average:
            raise ValueError(
                f"AVERAGE={average} needs a run folder, and {target} is one checkpoint"
            )
        return TrainedModel(target, run, [target])
    if average:
        return TrainedModel(
            folder / f"average_{average}.pt", run, last_checkpoints(folder, average)
        )
    for name in (BEST, LAST):
        if (folder / name).is_file():
            return TrainedModel(folder / name, run, [folder / name])
    raise FileNotFoundError(
        f"{shown(folder)} holds no checkpoint_best.pt or checkpoint_last.pt yet"
    )


def find_data(model: TrainedModel, given: Path | None, spm: str | None = None) -> DataFolder:
    """Return the data folder: as given, as the run recorded it, or as the checkpoint remembers it.

    Args:
        spm: the sentencepiece model of a folder written by fairseq-preprocess, or "none".

    Raises ValueError for one whose dictionaries or subwords have changed since it was made, or are
    not those that the run was trained with.
    """
    if given is not None:
        data = inside_project(given)
        data = data if data.exists() else given  # as it was typed
    elif model.run is not None:
        data = ROOT / str(recorded_config(model.run).recipe.get("data", ""))
    else:
        recorded = task_options(model.sources[-1]).get("data", "")
        data = Path(str(recorded).split(os.pathsep)[0])
    if spm is not None:
        return _open_bare(model, data, None if spm == "none" else Path(spm))
    folder = DataFolder.open(data)
    folder.refuse_changed(folder.model_files())
    if model.run is not None:
        if given is not None and not is_own_data(model, folder.path):
            _refuse_foreign_vocabulary(model.run, folder.path)
        refuse_other_vocabulary(model.run, folder.path)
    return folder


def _open_bare(model: TrainedModel, data: Path, spm: Path | None) -> DataFolder:
    """Return a folder written by fairseq-preprocess, with the checkpoint's languages."""
    if (data / "corpus.json").is_file():
        raise ValueError(f"--spm: {shown(data)} records its subword model itself; leave --spm out")
    if spm is not None and not spm.is_file():
        raise FileNotFoundError(f"--spm {spm}: there is no such file")
    task = task_options(model.sources[-1])
    languages = {key: str(task.get(f"{key}_lang") or "") for key in ("source", "target")}
    for language in languages.values():
        if not (data / f"dict.{language}.txt").is_file():
            raise FileNotFoundError(
                f"{data} has no dict.{language}.txt: name the folder of fairseq-preprocess with"
                " --data FOLDER"
            )
    return BareFolder(data, {**languages, "files": {}}, spm=spm)


def _refuse_foreign_vocabulary(run: Path, data: Path) -> None:
    """Raise ValueError for data with other dictionaries, naming the folder of the run's own."""
    try:
        refuse_other_vocabulary(run, data)
    except ValueError as error:
        own = _recorded_data(run).get("folder")
        raise ValueError(
            f"{shown(data)} has other words or subwords than those that {shown(run)} was trained"
            f" with; give the run's own data, {own}, or data made with its dictionary"
        ) from error


def _recorded_data(run: Path) -> dict[str, Any]:
    """Return what a run recorded of the data that it was trained on; empty where it has not."""
    file = run / ENVIRONMENT
    if not file.is_file():
        return {}
    remedy = "copy it again, or remove it to go without what it records"
    return read_record(file, remedy=remedy).get("data") or {}


def refuse_other_vocabulary(run: Path, data: Path) -> None:
    """Raise ValueError where a folder's dictionaries or subwords are not those that the run
    recorded; one that recorded none is taken as it is.
    """
    recorded = _recorded_data(run)
    for key in VOCABULARY_FILES:
        refuse_changed(data, recorded.get(key), recorded.get(key) or (), run / ENVIRONMENT)


def is_own_data(model: TrainedModel, data: Path) -> bool:
    """Return True if a model was trained on this data folder, wherever it is now.

    A run that records no data is taken at its word. A checkpoint without a run names its folder.
    """
    manifest = data / "corpus.json"
    if model.run is None:
        recorded = Path(str(task_options(model.sources[-1]).get("data", "")).split(os.pathsep)[0])
        if recorded.resolve() == data.resolve():
            return True
        digests = [sha256(folder / "corpus.json") for folder in (recorded, data)]
        return digests[0] is not None and digests[0] == digests[1]
    facts = _recorded_data(model.run)
    digest = facts.get("corpus_sha256")
    if digest is None or shown(data) == facts.get("folder"):
        return True
    return manifest.is_file() and sha256(manifest) == digest


def task_options(checkpoint: Path) -> dict[str, Any]:
    """Return the options of fairseq's task that a checkpoint holds; its name is "_name"."""
    task = (load_checkpoint(checkpoint).get("cfg") or {}).get("task") or {}
    return dict(task) if isinstance(task, dict) else dict(vars(task))


def task_arguments(checkpoint: Path, folder: DataFolder) -> list[str]:
    """Return fairseq's task for this model and data folder, as words of a command line.

    Raises ValueError for a model that was trained on one pair and a folder of many, or the reverse.
    """
    task = task_options(checkpoint)
    many = task.get("_name") == MULTILINGUAL_TASK
    if many != folder.is_multilingual:
        kinds = ("one language pair", "many language pairs")
        raise ValueError(
            f"{checkpoint} was trained on {kinds[many]}, and {folder.path} holds"
            f" {kinds[not many]}; set DATA=FOLDER"
        )
    words = [word for name, value in folder.task_options().items() for word in (f"--{name}", value)]
    if many:
        words += ["--task", MULTILINGUAL_TASK]
        for name in _TOKEN_OPTIONS:
            value = task.get(name.replace("-", "_"))
            if value:
                words.append(f"--{name}" if value is True else f"--{name}={value}")
    return words


def last_checkpoints(folder: Path, count: int) -> list[Path]:
    """Return the `count` latest by updates, of those fairseq writes each epoch or interval.

    Raises ValueError if there are fewer, or if one is damaged.
    """
    if count < 1:
        raise ValueError(f"{count} checkpoints cannot be averaged; ask for at least 1")
    by_updates = {}
    for path in periodic_checkpoints(folder):
        # a training beside removes old checkpoints between the listing and the reading
        with contextlib.suppress(FileNotFoundError):
            by_updates[num_updates(load_checkpoint(path))] = path
    if len(by_updates) < count:
        raise ValueError(
            f"{folder} holds {len(by_updates)} checkpoints of different updates, not {count}:"
            f" average fewer (N={len(by_updates)} of average.sh, --last, --average), or train with"
            " --keep-last-epochs or --save-interval-updates"
        )
    return [by_updates[updates] for updates in sorted(by_updates)[-count:]]


def average_checkpoints(paths: Sequence[Path], output: Path) -> dict[str, Any]:
    """Average the checkpoints in `paths` (oldest first) and write the result to `output`.

    The result carries the last one's configuration and number of updates, but no optimiser state:
    it can be translated with and fine-tuned from, not resumed. Raises ValueError for files that are
    damaged or not of one model.
    """
    states = [load_checkpoint(path, entire=True) for path in paths]
    for path, state in zip(paths, states, strict=True):
        refuse_not_finite(state, shown(path))
    refuse_different_models(paths, states)
    last = {key: value for key, value in states[-1].items() if key != "last_optimizer_state"}
    model = average_weights([state["model"] for state in states])
    averaged = {"last_optimizer_state": None, "averaged": [path.name for path in paths]}
    result = last | {"model": model} | averaged
    output.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(result, output)
    return result


def refuse_different_models(paths: Sequence[Path], states: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError, naming file and difference, unless all states are of one model."""
    first, expected, weights = paths[0], _shaping_options(states[0]), states[0]["model"]
    for path, state in zip(paths[1:], states[1:], strict=True):
        found = _shaping_options(state)
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                raise ValueError(
                    f"{path} is another model than {first}: "
                    f"{key} is {found.get(key)!r}, not {expected.get(key)!r}"
                )
        differing = sorted(weights.keys() ^ state["model"].keys())
        if differing:
            raise ValueError(f"{path} and {first} do not hold the same parameters: {differing[0]}")
        for name, tensor in state["model"].items():
            if tensor.shape != weights[name].shape:
                raise ValueError(
                    f"{path}: {name} is of shape {tuple(tensor.shape)}, in {first} of shape "
                    f"{tuple(weights[name].shape)}"
                )


def _shaping_options(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options in a checkpoint that decide what the model computes, if it holds any."""
    return {
        key: value
        for key, value in vars(model_arguments(state) or Namespace()).items()
        if _SHAPES_THE_MODEL.fullmatch(key) and not _ONLY_FOR_TRAINING.fullmatch(key)
    }


def average_weights(models: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the mean of each weight; tensors that share memory (tied ones) stay tied."""
    result: dict[str, torch.Tensor] = {}
    done: dict[tuple[Any, ...], torch.Tensor] = {}
    for name, first in models[0].items():
        tensors = [model[name] for model in models]
        place = tuple((tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in tensors)
        if first.numel() == 0 or place not in done:
            done[place] = _mean(tensors)
        result[name] = done[place]
    return result


def _mean(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean in the first's dtype, summed in float64; of other types, the last."""
    if not tensors[0].is_floating_point():
        return tensors[-1].clone()
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(tensors[0].dtype)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet average`."""
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        help="checkpoints; or with --last, one run or its checkpoints/",
    )
    parser.add_argument(
        "--last", type=int, metavar="N", help="the N latest epoch or update checkpoints"
    )
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")


def run(args: argparse.Namespace) -> int:
    """Average, and print the file written."""
    paths: list[Path] = args.inputs
    if args.last is not None:
        if len(paths) != 1 or not paths[0].is_dir():
            raise ValueError("--last takes one folder: a run, or its checkpoints/")
        paths = last_checkpoints(checkpoint_folder(paths[0]), args.last)
    elif any(path.is_dir() for path in paths):
        raise ValueError("a folder needs --last N; otherwise name the checkpoints")
    model = TrainedModel(args.out, None, paths)
    if args.last is None:
        average_checkpoints(paths, args.out)
    else:
        model.make()
    for path in model.sources:
        say(f"averaged {path}")
    print(args.out)
    return 0
