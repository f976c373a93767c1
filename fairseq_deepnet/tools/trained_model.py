"""A run's checkpoint and data, and averages of checkpoints.

The mean of a run's last checkpoints usually translates slightly better than any one of them
(Vaswani et al. 2017, section 6.1, average the last 5 to 20). `deepnet average` writes the mean.
"""

import argparse
import dataclasses
import fnmatch
import os
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch

from fairseq_deepnet import checkpoints
from fairseq_deepnet.files import ROOT, say, shown
from fairseq_deepnet.monitoring.records import run_folder
from fairseq_deepnet.records import ENVIRONMENT, fingerprint, read_record, refuse_changed, sha256
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.folder import MULTILINGUAL_TASK, BareFolder, DataFolder
from fairseq_deepnet.tools.export import RECORD as EXPORT

BEST: Final = "checkpoint_best.pt"
VOCABULARY_FILES: Final = {
    "subwords_sha256": ("spm*.model", "bpe.codes"),
    "dictionaries_sha256": ("dict*.txt", "languages.txt"),
}
"""Files that map a model's indices to words, by the key of their digests in environment.json."""

_SHAPES_THE_MODEL: Final = re.compile(
    r"arch|activation_fn|dictionary_record|layernorm_embedding|no_(scale|token|cross|decoder)_.*"
    r"|(source|target)_lang|residual_.*|(encoder|decoder|share)_(?!layerdrop).*"
)


@dataclasses.dataclass
class TrainedModel:
    """A checkpoint and its run folder; `run` is None for a checkpoint outside a run folder.

    Args:
        sources: the checkpoints to average, or only the checkpoint itself.
        average: fingerprint of the average that `make` has written.
    """

    path: Path
    run: Path | None
    sources: list[Path]
    average: Sequence[Any] = ()

    @property
    def scores(self) -> Path:
        """Folder of the model's scores."""
        return (self.run or self.path.resolve().parent) / "scores"

    def refuse_replaced(self, fingerprints: Sequence[Any]) -> None:
        """Raise ValueError if training, or another average, has replaced the checkpoint."""
        if [fingerprint(self.path)] != (self.average or fingerprints):
            raise ValueError(f"{shown(self.path)} was replaced before it was read; run this again")

    def make(self) -> Path:
        """Return the path of the checkpoint, which is computed first if it is an average.

        Raises ValueError if the weights are not finite.
        """
        if self.sources != [self.path]:
            average_checkpoints(self.sources, self.path)
            self.average = [fingerprint(self.path)]
        else:
            checkpoints.refuse_not_finite(checkpoints.load_checkpoint(self.path), shown(self.path))
        return self.path


def choose_model(target: Path, average: int) -> TrainedModel:
    """Return the model in a run folder or a checkpoint.

    The model of a run is checkpoint_best.pt, or checkpoint_last.pt if the run was never validated.
    If `average` > 0, the model is the mean of the run's last `average` checkpoints.

    Raises:
        FileNotFoundError: if there is no such run or checkpoint.
        ValueError: if a single checkpoint is to be averaged, or the folder is an export.
    """
    folder = target / "checkpoints" if (target / "checkpoints").is_dir() else target
    if target.is_file():  # the target may be a link
        folder = (target.resolve() if target.is_symlink() else target).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run or checkpoint {target}")
    places = (folder.absolute(), folder.resolve())  # checkpoints/ may be a link
    above = [run_folder(place).resolve() for place in places if run_folder(place) != place]
    run = above[0] if above else None
    if average:
        if target.is_file():
            raise ValueError(f"AVERAGE={average} needs a run folder; {target} is one checkpoint")
        path = folder / f"average_{average}.pt"
        return TrainedModel(path, run, last_checkpoints(folder, average))
    for path in [target] if target.is_file() else [folder / BEST, folder / checkpoints.LAST]:
        if path.is_file():
            return TrainedModel(path, run, [path])
    if (folder / EXPORT).is_file():
        raise ValueError(f"{shown(folder)} is an exported model: give the run instead")
    raise FileNotFoundError(
        f"{shown(folder)} has no checkpoint_best.pt or checkpoint_last.pt; name a run or checkpoint"
    )


def find_data(model: TrainedModel, path: Path | None, spm: str | None = None) -> DataFolder:
    """Return the data folder: `path`, or the folder recorded by the run or the checkpoint.

    Args:
        spm: if fairseq-preprocess wrote the folder, its sentencepiece model, or "none".

    Raises ValueError if the folder's dictionaries or subword models have changed since it was
    built, or differ from the run's.
    """
    if path is not None:
        data = path
    elif model.run is not None:
        data = recorded_config(model.run).data or ROOT
    else:
        data = _data_of_checkpoint(model)
    if spm is not None:
        if (data / "corpus.json").is_file():
            raise ValueError(f"{shown(data)} records its subword model; leave --spm out")
        return BareFolder(data, _languages_of(model), spm=None if spm == "none" else Path(spm))
    folder = DataFolder.open(data)
    if not (folder.is_multilingual or folder.is_monolingual):
        languages = _languages_of(model)  # training in the other direction is possible
        if {*languages.values()} == {*folder.languages}:
            folder = dataclasses.replace(folder, record=folder.record | languages)
    refuse_changed_vocabulary(folder)
    if model.run is not None:
        refuse_other_vocabulary(model.run, folder.path)
    return folder


def _languages_of(model: TrainedModel) -> dict[str, str]:
    """Return the source and the target language that a checkpoint's task names."""
    task = task_options(model.sources[-1])
    return {key: str(task.get(f"{key}_lang") or "") for key in ("source", "target")}


def _recorded_data(run: Path) -> dict[str, Any]:
    """Return the record of a run's training data in environment.json, or an empty dict."""
    file = run / ENVIRONMENT
    return (read_record(file).get("data") or {}) if file.is_file() else {}


def refuse_changed_vocabulary(folder: DataFolder) -> None:
    """Raise ValueError if a dictionary or subword model has changed since preprocessing."""
    names = folder.record.get("files") or ()
    for pattern in chain.from_iterable(VOCABULARY_FILES.values()):
        folder.refuse_changed(sorted(fnmatch.filter(names, pattern)))


def refuse_other_vocabulary(run: Path, data: Path) -> None:
    """Raise ValueError if the data's dictionaries or subword models differ from the run's."""
    recorded = _recorded_data(run)
    try:
        for key in VOCABULARY_FILES:
            refuse_changed(data, recorded.get(key), recorded.get(key) or (), run / ENVIRONMENT)
    except ValueError as error:
        raise ValueError(
            f"{shown(data)} has other words or subwords than {recorded.get('folder')}, the data"
            f" of {shown(run)}: {error}"
        ) from error


def is_own_data(model: TrainedModel, data: Path) -> bool:
    """Return True if a model was trained on this folder's data, even if the folder was moved.

    If the run has no record of its data, the result is True for any folder. For a checkpoint
    outside a run folder, it is True only for the folder that the checkpoint names.
    """
    if model.run is None:
        return _data_of_checkpoint(model).resolve() == data.resolve()
    recorded = _recorded_data(model.run)
    digest = recorded.get("corpus_sha256")
    return shown(data) == recorded.get("folder") or digest in (None, sha256(data / "corpus.json"))


def _data_of_checkpoint(model: TrainedModel) -> Path:
    return Path(str(task_options(model.sources[-1]).get("data", "")).split(os.pathsep)[0])


def task_options(checkpoint: Path) -> dict[str, Any]:
    """Return the task options stored in a checkpoint, with the task's name as "_name"."""
    task = (checkpoints.load_checkpoint(checkpoint).get("cfg") or {}).get("task") or {}
    return dict(task) if isinstance(task, dict) else dict(vars(task))


def task_arguments(checkpoint: Path, folder: DataFolder) -> list[str]:
    """Return the command-line arguments of fairseq's task for this model and data folder.

    Raises ValueError if only one of the two, the model or the data folder, is multilingual.
    """
    task = task_options(checkpoint)
    if (task.get("_name") == MULTILINGUAL_TASK) != folder.is_multilingual:
        pair, many = "one language pair", "many language pairs"
        trained, present = (pair, many) if folder.is_multilingual else (many, pair)
        raise ValueError(
            f"{checkpoint} was trained on {trained}, but {folder.path} contains {present}; select"
            " other data with --data (DATA)"
        )
    words = [word for name, value in folder.task_options().items() for word in (f"--{name}", value)]
    if longest := task.get("max_source_positions"):  # fairseq's default may be shorter
        words.append(f"--max-source-positions={longest}")
    if folder.is_multilingual:
        source, target = folder.directions("train")[0]  # fairseq needs any direction
        words += ["--task", MULTILINGUAL_TASK, "--source-lang", source, "--target-lang", target]
        words += checkpoints.language_tokens(task)
    return words


def last_checkpoints(folder: Path, count: int) -> list[Path]:
    """Return the `count` latest checkpoints, sorted by number of updates.

    These are periodic checkpoints, and checkpoint_last.pt if the run ended between two of them.

    Raises ValueError if there are fewer checkpoints, or if a checkpoint is damaged.
    """
    by_updates = {
        checkpoints.num_updates(checkpoints.load_checkpoint(path)): path
        for path in (*folder.glob(checkpoints.LAST), *checkpoints.periodic_checkpoints(folder))
    }
    if not 1 <= count <= len(by_updates):
        raise ValueError(
            f"{folder} has {len(by_updates)} checkpoints of different updates, not {count}: average"
            " fewer, or train with --keep-last-epochs or --save-interval-updates"
        )
    return [by_updates[updates] for updates in sorted(by_updates)[-count:]]


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Average the checkpoints in `paths` (oldest first) and write the result to `output`.

    The result has the configuration and the number of updates of the last checkpoint, but no
    optimiser state. It can be used to translate and fine-tune, but not to resume training.
    Means are computed in float64 and stored in the dtype of each weight. Integer tensors are copied
    from the last checkpoint. Raises ValueError if files are damaged or belong to different models.
    """
    states = [checkpoints.load_checkpoint(path, entire=True) for path in paths]
    first = _facts_of_model(states[0])
    for path, state in zip(paths, states, strict=True):
        checkpoints.refuse_not_finite(state, shown(path))
        facts = _facts_of_model(state)
        for key in sorted(first.keys() | facts.keys()):
            if first.get(key) != facts.get(key):
                raise ValueError(
                    f"{path} is a different model from {paths[0]}: {key} is {facts.get(key)!r}, not"
                    f" {first.get(key)!r}"
                )
    means = {}
    for name, last in states[-1]["model"].items():
        means[name] = last.clone()
        if last.is_floating_point():
            total = torch.zeros(last.shape, dtype=torch.float64)
            for state in states:
                total += state["model"][name]
            means[name] = (total / len(states)).to(last.dtype)
    output.parent.mkdir(parents=True, exist_ok=True)
    changes = {"last_optimizer_state": None, "averaged": [p.name for p in paths], "export": None}
    checkpoints.save_checkpoint(states[-1] | changes | {"model": means}, output)


def _facts_of_model(state: dict[str, Any]) -> dict[str, Any]:
    """Return the model options that affect weights or outputs, and the shapes of the weights."""
    options = vars(checkpoints.model_arguments(state) or argparse.Namespace()).items()
    shaping = {key: value for key, value in options if _SHAPES_THE_MODEL.fullmatch(key)}
    return shaping | {name: tuple(weight.shape) for name, weight in state["model"].items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet average`."""
    inputs = "checkpoints; with --last, a run folder or its checkpoints/"
    parser.add_argument("inputs", nargs="+", type=Path, help=inputs)
    parser.add_argument("--last", type=int, metavar="N", help="average the latest N checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")


def run(args: argparse.Namespace) -> int:
    """Average checkpoints, and print the path of the result."""
    paths: list[Path] = args.inputs
    if args.last is not None or any(path.is_dir() for path in paths):
        if len(paths) != 1 or (args.last or 0) < 1:
            raise ValueError("give checkpoints, or one run or its checkpoints/ with --last N >= 1")
        paths = choose_model(paths[0], args.last).sources
    average_checkpoints(paths, args.out)
    for path in paths:
        say(f"averaged {path}")
    print(args.out)
    return 0
