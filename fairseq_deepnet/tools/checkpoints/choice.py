"""Which checkpoint stands for a run, which data folder it belongs to, and as what task."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint
from fairseq_deepnet.files import ROOT, inside_project, say, shown
from fairseq_deepnet.records import read_record, refuse_changed
from fairseq_deepnet.tools.checkpoints.average import average_checkpoints, last_checkpoints
from fairseq_deepnet.tools.configs import load_config
from fairseq_deepnet.tools.corpora.folder import MULTILINGUAL_TASK, DataFolder

BEST: Final = "checkpoint_best.pt"

WORDS: Final = {
    "subwords_sha256": ("spm*.model", "bpe.codes"),
    "dictionaries_sha256": ("dict*.txt", "languages.txt"),
}
"""Files that decide which words a model's numbers stand for, as environment.json records them."""

# How a model was told its languages; what a checkpoint was trained with holds for its use.
_TOKEN_OPTIONS: Final = ("encoder-langtok", "decoder-langtok", "lang-tok-style")


@dataclasses.dataclass
class Model:
    """What is to be scored: a checkpoint, and the run it belongs to (None if it is alone)."""

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
        """The checkpoint, averaged now if it is to be."""
        if self.sources != [self.path]:
            average_checkpoints(self.sources, self.path)
        return self.path


def newest_run(runs: Path) -> Path:
    """The run whose checkpoints were written last; FileNotFoundError where there is none."""
    written = {path.parents[1]: path.stat().st_mtime for path in runs.glob("*/checkpoints/*.pt")}
    if not written:
        raise FileNotFoundError(
            f"no trained run in {shown(runs)}: train one (bash scripts/train.sh CONFIG), "
            "or name a run or a checkpoint"
        )
    return max(
        written, key=lambda run: max(p.stat().st_mtime for p in run.glob("checkpoints/*.pt"))
    )


def task_options(checkpoint: Path) -> dict[str, Any]:
    """Return the options of fairseq's task that a checkpoint holds, which may be a mapping or a
    namespace there; its name is "_name".
    """
    task = (load_checkpoint(checkpoint).get("cfg") or {}).get("task") or {}
    return dict(task) if isinstance(task, dict) else dict(vars(task))


def choose_model(target: Path | None, average: int) -> Model:
    """The checkpoint that stands for `target`, a run folder or a checkpoint; None is the newest
    run, which is named on standard error.

    Of a run this is checkpoint_best.pt, checkpoint_last.pt where validation never ran, or with
    `average` > 0 the mean of that many last checkpoints. Raises FileNotFoundError for what is not
    there, ValueError for an average of a single checkpoint.
    """
    if target is None:
        target = newest_run(ROOT / "runs")
        say(f"newest run: {shown(target)}")
    if target.is_file():
        if average:
            raise ValueError(
                f"AVERAGE={average} needs a run folder, and {target} is one checkpoint"
            )
        folder = target.resolve().parent
        run = folder.parent if (folder.parent / "config.yaml").is_file() else None
        return Model(target, run, [target])
    folder = target / "checkpoints" if (target / "checkpoints").is_dir() else target
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run or checkpoint {target}")
    run = folder.resolve().parent if (folder.resolve().parent / "config.yaml").is_file() else None
    if average:
        return Model(folder / f"average_{average}.pt", run, last_checkpoints(folder, average))
    for name in (BEST, "checkpoint_last.pt"):
        if (folder / name).is_file():
            return Model(folder / name, run, [folder / name])
    raise FileNotFoundError(
        f"{shown(folder)} holds no checkpoint_best.pt or checkpoint_last.pt yet"
    )


def find_data(model: Model, given: Path | None) -> DataFolder:
    """The data folder: as given, as the run recorded it, or as the checkpoint remembers it.

    Raises ValueError for one whose dictionaries or subwords have changed since it was made, or are
    not those that the run was trained with.
    """
    if given is not None:
        data = inside_project(given)
        data = data if data.exists() else given  # as it was typed
    elif model.run is not None:
        data = ROOT / str(load_config(str(model.run / "config.yaml")).recipe.get("data", ""))
    else:
        recorded = task_options(model.sources[-1]).get("data", "")
        data = Path(str(recorded).split(os.pathsep)[0])
    folder = DataFolder.open(data)
    folder.refuse_changed(folder.model_files())
    if model.run is not None:
        refuse_other_words(model.run, folder.path)
    return folder


def refuse_other_words(run: Path, data: Path) -> None:
    """Raise ValueError where a folder's dictionaries or subwords are not those of the training.

    A run that recorded none, or whose record is gone, is taken as it is.
    """
    file = run / "environment.json"
    if not file.is_file():
        return
    shape = {"data?": {f"{key}?": dict for key in WORDS}}
    remedy = "copy it again, or remove it to go without what it records"
    recorded = read_record(file, shape, remedy).get("data") or {}
    for key in WORDS:
        refuse_changed(data, recorded.get(key), recorded.get(key) or (), file)


def task_arguments(checkpoint: Path, folder: DataFolder) -> list[str]:
    """fairseq's task for this model and data folder, as words of a command line.

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
