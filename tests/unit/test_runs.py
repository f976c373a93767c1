"""`deepnet train` before the child starts: plan, records and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from fairseq_deepnet import cli, ended, files
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from fairseq_deepnet.ended import DIVERGED
from fairseq_deepnet.tools.training import settle, train
from tests.support.runs import TINY, make_checkpoint, make_data


class Recorder:
    """Runs `deepnet train` on one run folder until the child would start."""

    def __init__(
        self,
        run: Path,
        data: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.run, self.data, self.capsys = run, data, capsys
        self.output = ""
        self.commands: list[list[str]] = []
        for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED"):
            monkeypatch.setenv(name, "1")
        monkeypatch.setattr(train, "planned_apart", settle.plan_run)
        monkeypatch.setattr(train.Child, "train", lambda child, _: self._start(child.command))

    def _start(self, command: list[str]) -> int:
        self.commands.append(command)
        return 1

    def train(self, *extra: str, config: str = "multi30k", **settings: str) -> int:
        """Return the exit status."""
        options = {"run": str(self.run), "data": str(self.data), "gpus": "0", **settings}
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value]
        words += [f"--{key}" for key, value in options.items() if not value]
        shape = [] if config != "multi30k" else TINY
        status = cli.main(["train", *words, config, "--", *shape, *extra])
        self.output = self.capsys.readouterr().err
        return status

    def __call__(self, *extra: str, config: str = "multi30k", **settings: str) -> list[str] | None:
        """Return the command, an empty list if the run is complete, or None for a refusal."""
        self.commands.clear()
        status = self.train(*extra, config=config, **settings)
        if self.commands:
            return self.commands[0]
        assert status in (0, 2)
        return [] if status == 0 else None


@pytest.fixture
def record(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Recorder:
    return Recorder(tmp_path / "run", data, capsys, monkeypatch)


def option(command: list[str] | None, name: str) -> str:
    assert command is not None
    words = [word for part in command for word in part.split("=", 1)]
    return words[words.index(name) + 1]


def test_the_recorded_config_starts_the_same_run(record: Recorder) -> None:
    command = record("--lr", "5e-4", "--seed=7")
    assert command is not None
    assert (option(command, "--lr"), option(command, "--seed")) == ("5e-4", "7")
    # 2,048 tokens per update, 200 per step
    assert (option(command, "--max-tokens"), option(command, "--update-freq")) == ("200", "10")
    assert option(command, "--user-dir") == str(files.PACKAGE)
    assert option(command, "--save-dir") == str(record.run / "checkpoints")
    assert option(command, "--tensorboard-logdir") == str(record.run / "tensorboard")
    assert option(command, "--source-lang") == "de"
    assert "--cpu" in command
    again = record(config=str(record.run / "config.yaml"))
    assert again is not None
    assert sorted(again) == sorted(command)
    lines = (record.run / "command.txt").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line[0] != "#"]
    assert len(commands) == 2
    assert commands[0].startswith(f"fairseq-train {record.data} --user-dir ")


def test_varlen_attention_is_combined_with_the_precision(
    record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    for _ in range(2):  # the second start compares the configs
        command = record("--varlen-attention", gpus="1", precision="bf16")
        assert command is not None, record.output
        assert {"--varlen-attention", "--bf16"} <= set(command)


def test_the_environment_records_what_a_repetition_needs(record: Recorder) -> None:
    record()
    facts = json.loads((record.run / "environment.json").read_text(encoding="utf-8"))
    assert facts["versions"]["torch"]
    assert facts["versions"]["fairseq-fixed"]
    assert facts["seed"] == 1
    assert facts["devices"] == "1 CPU process"
    digests = {f"{name}_sha256" for name in ("corpus", "text", "subwords", "dictionaries")}
    assert set(facts["data"]) == {"folder", *digests}
    assert len(facts["data"]["subwords_sha256"]["spm.model"]) == 64


def test_other_nodes_do_not_write_in_the_run_folder(
    record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node0")
    first = record(node_rank="0", nodes="2")
    assert first is not None
    written = {path: path.read_bytes() for path in record.run.iterdir() if path.is_file()}
    second = record(node_rank="1", nodes="2")
    assert second == [word.replace("--node-rank=0", "--node-rank=1") for word in first]
    assert first[0] == "torchrun"
    assert {path: path.read_bytes() for path in written} == written


def test_settings_may_change_until_there_is_a_checkpoint(record: Recorder) -> None:
    assert record("--lr", "0.1")
    assert record("--lr", "0.2")
    make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 100)
    recorded = (record.run / "config.yaml").read_bytes()

    assert record("--lr", "0.3", "--max-update", "9000") is None
    assert "lr [0.2] -> [0.3]; max-update" in record.output
    assert "set RUN=FOLDER" in record.output
    assert (record.run / "config.yaml").read_bytes() == recorded

    assert record("--encoder-layers", "7", resume="") is None
    assert "contains a different model (encoder-layers" in record.output
    assert (record.run / "config.yaml").read_bytes() == recorded

    # options that change no number may differ
    assert record("--lr", "2e-1", "--log-interval", "7", "--checkpoint-activations-every", "auto")
    assert "resuming from update 100" in record.output
    assert record("--lr", "0.3", resume="")
    assert "resuming with new settings: lr [0.2] -> [0.3]" in record.output
    assert yaml.safe_load((record.run / "config.yaml").read_text(encoding="utf-8"))["lr"] == "0.3"


def test_a_schedule_that_does_not_fit_the_run_causes_one_warning(record: Recorder) -> None:
    record("--max-update", "8000", "--total-num-update", "2400", **{"dry-run": ""})
    (warning,) = (line for line in record.output.splitlines() if line.startswith("warning: "))
    assert "--total-num-update 2,400 is below the run's 8,000 updates" in warning
    assert "the learning rate is 0 in the last 5,600;" in warning


def test_other_settings_start_again_after_the_checkpoints_were_removed(record: Recorder) -> None:
    assert record("--max-update", "300")
    last = make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 300)
    assert record("--max-update", "300") == []
    last.unlink()
    assert record("--max-update", "300") == []  # nothing has changed
    assert record("--max-update", "300", "--lr", "0.1")
    assert "is complete" not in record.output
    assert not ended.is_complete(record.run)


def test_a_second_start_in_a_new_folder_is_refused(
    record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock precedes the plan, even in a new folder."""
    monkeypatch.setattr(train, "ENDING", 0.0)
    with train._locked(record.run, needed=True):
        assert record("--lr", "0.2") is None
        assert "another process uses" in record.output
        assert [path.name for path in record.run.iterdir()] == [".lock"]
    assert record() is not None


def test_the_next_start_falls_back_if_the_supervisor_was_killed(record: Recorder) -> None:
    options = ["--lr", "0.1", "--on-divergence", "fallback", "--fallbacks", "lr*0.5"]
    assert record(*options)
    checkpoints = record.run / "checkpoints"
    make_checkpoint(checkpoints / "checkpoint_1_100.pt", 100)
    make_checkpoint(checkpoints / "checkpoint_last.pt", 150)
    ended.write(record.run, ended.Why.DIVERGED, 150, attempt=0, started=140)
    command = record(*options)
    assert command is not None
    assert command[-2:] == ["--lr=0.05", "--fallback-step=1"]
    assert option(command, "--on-divergence") == "stop"  # the supervisor performs the fallback
    assert "--fallbacks" not in command
    assert "fallback 1: lr*0.5 from update 100 on" in record.output
    assert num_updates(load_checkpoint(checkpoints / "checkpoint_last.pt")) == 100
    # a further start repeats the command
    assert record(*options) == command
    plain = record("--lr", "0.1")  # without fallbacks
    assert plain is not None
    assert plain[-2:] == command[-2:]
    ended.write(record.run, ended.Why.DIVERGED, 150, attempt=1, started=140)
    assert record.train(*options) == DIVERGED
    assert "no fallback remains after 1" in record.output
    command = record(*options[:-1], "lr*0.5, lr*0.1")  # more steps than before
    assert command is not None
    assert command[-2:] == ["--lr=0.005", "--fallback-step=2"]


def test_a_run_stopped_for_a_divergence_does_not_resume_inside_it(record: Recorder) -> None:
    assert record("--on-divergence", "stop")
    make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 150)
    ended.write(record.run, ended.Why.DIVERGED, 150, attempt=0, started=140)
    assert record.train("--on-divergence", "stop") == DIVERGED
    assert "diverged at update 150: set RUN=FOLDER" in record.output
    assert ended.read(record.run)["started"] == 140
    assert record("--on-divergence", "stop", resume="")


def test_a_run_with_a_checkpoint_of_the_last_update_is_complete(record: Recorder) -> None:
    record("--max-update", "300")
    last = make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 300)
    assert record("--max-update", "300") == []
    assert "is complete at update 300" in record.output
    assert ended.is_complete(record.run)
    assert record("--max-update", "400", resume="")  # more updates remain
    assert not ended.is_complete(record.run)
    # the run was preempted before its last validation
    owed = {"preempted": {"epoch": 1, "end_of_epoch": False}}
    save_checkpoint({**load_checkpoint(last), "extra_state": owed}, last)
    assert record("--max-update", "300", resume="")
    assert not ended.is_complete(record.run)


def test_a_run_from_another_checkpoint_resumes_with_the_same_command(record: Recorder) -> None:
    first = make_checkpoint(record.run.parent / "first.pt", 100)
    words = ["--max-update", "300", "--restore-file", str(first), "--reset-optimizer"]
    began = record(*words)
    assert option(began, "--continue-once") == str(first)
    assert "--restore-file" not in began
    assert "--reset-optimizer" in began
    folder = record.run / "checkpoints"
    make_checkpoint(folder / "checkpoint_1_110.pt", 110)  # a kill left no checkpoint_last.pt
    first.unlink()  # only the first start reads it
    resumed = record(*words)
    assert resumed == [word for word in began if word != "--reset-optimizer"]
    assert "resuming from update 110" in record.output
    assert num_updates(load_checkpoint(folder / "checkpoint_last.pt")) == 110
    second = make_checkpoint(record.run.parent / "second.pt", 100)
    assert record("--max-update", "300", "--restore-file", str(second), resume="") is None
    assert "already has checkpoints" in record.output


@pytest.mark.parametrize(
    ("extra", "settings", "message"),
    [
        (["--max-token", "5"], {}, "did you mean --max-tokens?"),
        (["--residual-scheme", "nonsense"], {}, "nonsense"),
        (["--lr"], {}, "--lr: expected one argument"),
        (["stray"], {}, "'stray' belongs to no option"),
        (["--save-dir", "x"], {}, "save-dir: deepnet train sets this option from RUN"),
        (["--criterion=smoothed"], {}, "'smoothed'; fairseq-train --help lists the valid names"),
        (["--reset-optimizer"], {"resume": ""}, "--reset-optimizer would apply whenever the run"),
        ([], {"gpus": "64"}, "GPUS=64, but only"),
        (["--on-divergence=fallback", "--fallbacks=lr/2"], {}, "'lr/2' is not a step"),
        (["--fallbacks=lr*0.5"], {}, "--fallbacks needs --on-divergence fallback"),
        ([], {"nodes": "2"}, "NODES=2: run this on every node with NODE_RANK=0 to 1"),
        ([], {"precision": "fp16"}, "PRECISION=fp16 needs a GPU"),
        ([], {"data": "/nowhere"}, "no training data in /nowhere: correct DATA (--data) or run"),
        (["--source-lang=fr"], {}, "(languages de, en) is not for --task translation, --source-"),
        ([], {"config": "multi30k_lm"}, "is not for --task language_modeling: choose"),
        ([], {"config": "multi30k_multilingual"}, "is not for --task translation_multi"),
        ([], {"config": "multi40k"}, "a name in configs/: analysis"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run_folder(
    record: Recorder, extra: list[str], settings: dict[str, str], message: str
) -> None:
    assert record(*extra, **settings) is None
    assert message in record.output
    assert record.output.count("\n") == 1
    assert not record.run.exists()


@pytest.mark.parametrize("name", ["train.de-en.de.bin", "valid.de-en.de.bin"])
def test_text_that_changed_between_stop_and_resume_is_refused(
    name: str, record: Recorder, tmp_path: Path
) -> None:
    record.data = make_data(tmp_path / "own")
    describe_files(record.data)
    assert record()
    make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 100)
    describe_files(record.data, test="3")  # rebuilt with another test set
    assert record()
    recorded = (record.run / "environment.json").read_bytes()
    describe_files(record.data, **{name: "other"})
    assert record("--lr", "0.3") is None  # RESUME=1 would not help
    assert f"text than {record.data} now contains: set RUN=FOLDER" in record.output
    assert "RESUME=1" not in record.output
    assert record(resume="") is None
    assert (record.run / "environment.json").read_bytes() == recorded


def test_a_dictionary_that_changed_since_preprocessing_is_refused(
    record: Recorder, tmp_path: Path
) -> None:
    record.data = make_data(tmp_path / "own")
    describe_files(record.data, **{"dict.de.txt": "the digest of another dictionary"})
    assert record() is None
    assert "dict.de.txt differs from the file recorded in" in record.output
    assert not record.run.exists()


def test_more_processes_with_the_same_batch_each_are_other_settings(record: Recorder) -> None:
    assert record("--update-freq=2")
    make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 100)
    assert record("--update-freq=2", cpu_processes="4") is None
    assert "with other settings (tokens per update 400 -> 1,600): set RUN=FOLDER" in record.output
    assert record("--update-freq=2", cpu_processes="4", resume="")


def test_data_without_a_record_in_other_languages_do_not_suggest_to_resume(
    record: Recorder, tmp_path: Path
) -> None:
    record.data = make_data(tmp_path / "own")
    (record.data / "corpus.json").unlink()
    assert record()
    make_checkpoint(record.run / "checkpoints" / "checkpoint_last.pt", 100)
    other = tmp_path / "other"
    other.mkdir()
    for path in record.data.glob("*.*"):
        shutil.copy(path, other / path.name.replace("de", "ru"))
    assert record(data=str(other)) is None
    assert "RESUME=1" not in record.output
    assert f"{other} has other words or subwords than {record.data}" in record.output


def test_a_data_folder_is_relative_to_the_working_folder(
    record: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert record(data="data/sample") is None
    assert f"no training data in {tmp_path}/data/sample: " in record.output


def describe_files(data: Path, **digests: str) -> None:
    manifest = data / "corpus.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    content["files"] = {"train.de-en.de.bin": "1", "valid.de-en.de.bin": "2", **digests}
    manifest.write_text(json.dumps(content | {"made": str(digests)}), encoding="utf-8")
