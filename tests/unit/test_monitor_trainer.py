"""Notifications of a trainer's observers; options and records of the monitor."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterating

from fairseq_deepnet.divergence import detectors
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.observers import Observer
from fairseq_deepnet.trainer import DeepNetTrainer
from tests.support.rig import Rig


class Diary(Observer):
    """Observer that lists its notifications."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def begin(self, trainer: Any, update: int, samples: Any) -> None:
        self.entries.append(("begin", update, len(samples)))

    def gradients(self, trainer: Any, update: int) -> None:
        self.entries.append(("gradients", update))

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        self.entries.append(("end", update, updated))


def test_observers_are_notified_in_order_and_failed_attempts_keep_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, diary = Rig(tmp_path), Diary()
    rig.trainer.observers = [diary]
    outcomes = ["scale too high", "out of memory", "updated", "updated"]

    def train_step(trainer: Any, samples: Any, raise_oom: bool = False) -> None:
        outcome = outcomes.pop(0)
        if outcome != "out of memory":
            trainer.clip_grad_norm(0.0)
        if outcome == "updated":
            trainer.set_num_updates(trainer.get_num_updates() + 1)

    monkeypatch.setattr(DeepNetTrainer.__base__, "train_step", train_step)
    while outcomes:
        rig.trainer.train_step([1, 2])
    assert diary.entries == [
        *[("begin", 1, 2), ("gradients", 1), ("end", 1, False)],
        *[("begin", 1, 2), ("end", 1, False)],
        *[("begin", 1, 2), ("gradients", 1), ("end", 1, True)],
        *[("begin", 2, 2), ("gradients", 2), ("end", 2, True)],
    ]


def test_a_warm_up_longer_than_all_epochs_causes_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Rig(tmp_path, "--max-epoch=4", "--warmup-updates=400", "--update-freq=2,4").trainer
    batches = range(299)  # 150 updates of two batches, then 75 of four
    for update, trainer.epoch_itr in ((0, batches), (150, batches), (0, EpochBatchIterating())):
        trainer.set_num_updates(update)
        trainer.begin_epoch(1)
    assert caplog.text.count("--warmup-updates 400 is not below the run's 375 updates") == 1


def test_a_failing_observer_is_switched_off_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        detached = 0

        def begin(self, trainer: Any, update: int, samples: Any) -> None:
            raise OSError("disk full")

        def detach(self) -> None:
            self.detached += 1

    rig, diary, broken = Rig(tmp_path), Diary(), Broken()
    rig.trainer.observers = [broken, diary]
    rig.update()
    rig.update()
    assert diary.entries[2::3] == [("end", 1, True), ("end", 2, True)]
    assert broken.detached == 1
    assert caplog.text.count("Broken failed and is switched off") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--amp"], "not supported: --amp"),
        (["--store-ema"], "not supported: --store-ema"),
        (["--valid-subset=valid,train"], "--valid-subset with the training set"),
        (["--best-checkpoint-metric=bleu"], "--best-checkpoint-metric bleu without --maximize-"),
        (["--maximize-best-checkpoint-metric"], "--best-checkpoint-metric loss with --maximize-"),
        (["--use-sharded-state"], "not supported: --use-sharded-state"),
        (["--monitor-interval=-1"], "--monitor-interval -1: the minimum is 0 (never)"),
        (["--monitor-interval=2", "--monitor=loss"], "unknown loss; choose all or some of"),
        (["--monitor-interval=2", "--monitor=,"], "--monitor ','"),
        (["--monitor=gradient_norm"], "--monitor gradient_norm needs --monitor-interval"),
        (["--fallbacks=lr*0.5"], "--fallbacks needs --on-divergence fallback"),
        (["--on-divergence=fallback"], "--on-divergence fallback needs `deepnet train`"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_refused_in_one_line(
    options: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Rig(tmp_path, *options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("has_gpu", "is_half"), [(True, False), (False, True)])
def test_varlen_attention_without_a_gpu_or_half_precision_is_refused(
    has_gpu: bool, is_half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    rig.cfg.model.varlen_attention, rig.cfg.common.bf16 = True, is_half
    with pytest.raises(ConfigurationError, match="--varlen-attention needs a GPU and half"):
        rig.trainer.refuse_options(rig.cfg, rig.model, rig.trainer.criterion)


def test_non_finite_numbers_are_words_of_strict_json(tmp_path: Path) -> None:
    file = tmp_path / records.NAME
    inf = float("inf")
    records.append(file, {"update": 1, "values": {"a": float("nan"), "b": [inf, -inf, 1.0]}})

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    line = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert line["values"] == {"a": "nan", "b": ["inf", "-inf", 1.0]}
    (record,) = records.read(file)
    assert record["values"]["a"] != record["values"]["a"]
    assert record["values"]["b"] == [inf, -inf, 1.0]


def test_a_resumed_run_drops_later_records_and_an_unfinished_line(tmp_path: Path) -> None:
    file = tmp_path / records.NAME
    records.keep_until(file, 5)
    assert not file.exists()
    for update in range(1, 5):
        records.append(file, {"update": update, "values": {"model_update": 0.1 * update}})
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines) + '{"update": 5, "values": {"model_up', encoding="utf-8")
    assert [record["update"] for record in records.read(file)] == [1, 2, 3, 4]
    for update in (4, 2):
        records.keep_until(file, update)
        assert file.read_text(encoding="utf-8") == "".join(lines[:update])


def test_the_checkpoints_of_a_run_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").symlink_to("/")
    assert records.run_folder(tmp_path / "checkpoints") == tmp_path


@pytest.mark.parametrize(
    ("scheme", "arch", "is_reported"),
    [
        ("deepnorm", "deepnet_transformer", True),
        ("pre-ln", "deepnet_transformer", False),
        ("deepnorm", "deepnet_masked_lm", False),
    ],
)
def test_a_rank_collapse_is_reported_of_a_post_ln_encoder_with_a_decoder(
    scheme: str, arch: str, is_reported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detectors, "LOW_RANK", math.inf)
    options = ["--monitor-interval=1", "--monitor=token_rank", f"--residual-scheme={scheme}"]
    Rig(tmp_path, *options, arch=arch).update()
    assert (tmp_path / "divergence.jsonl").is_file() == is_reported
