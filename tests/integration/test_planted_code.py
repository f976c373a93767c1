"""Code in checkpoints and data folders from strangers does not run."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import data_utils
from fairseq.data.fasta_dataset import FastaDataset

from fairseq_deepnet.checkpoints import save_checkpoint
from tests.integration.conftest import RunCommand
from tests.support.cells import write_config
from tests.support.runs import SENTENCES
from tests.support.shell import ROOT, Refused
from tests.support.trained import trained


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that only a planted payload creates."""
    return tmp_path / "ran"


def payload(mark: Path) -> str:
    return f"__import__('pathlib').Path({str(mark)!r}).touch()"


def planted(run: Path, data: Path, part: str, arch: str, options: dict[str, Any]) -> Path:
    """Write a run whose only checkpoint has these options in a part of its cfg."""
    _, state = trained(data=data, encoder_layers=1, decoder_layers=1)
    if part == "model":
        state["cfg"]["model"] = Namespace(
            **{**vars(state["cfg"]["model"]), "arch": arch, "_name": arch, **options}
        )
    else:
        state["cfg"][part] = {"_name": arch, **options}
    path = run / "checkpoints" / "checkpoint_best.pt"
    path.parent.mkdir(parents=True)
    save_checkpoint(state, path)
    shutil.copy(path, path.with_name("checkpoint1.pt"))
    write_config(run, data, arch="deepnet_transformer")
    return path


@pytest.mark.parametrize("command", ["translate", "check", "export", "average"])
def test_a_checkpoint_with_code_in_an_option_is_refused_in_one_line(
    command: str, data: Path, mark: Path, tmp_path: Path, refused: Refused
) -> None:
    path = planted(tmp_path / "run", data, "optimizer", "adam", {"adam_betas": payload(mark)})
    text = tmp_path / "text"
    text.write_text(SENTENCES[0] + "\n", encoding="utf-8")
    out = tmp_path / "out.pt"
    words = {
        "translate": [tmp_path / "run", text, "--threads", 1],
        "check": [path],
        "export": [path, "--to", "fairseq", "--out", out],
        "average": [path, "--out", out],
    }[command]
    error = refused(command, *words)
    assert "checkpoint_best.pt: adam_betas is \"__import__('pathlib')" in error
    assert not mark.exists()
    assert not out.exists()


def test_fairseq_generate_refuses_a_checkpoint_with_code(
    data: Path, mark: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    path = planted(tmp_path / "run", data, "model", "fconv", {"encoder_layers": payload(mark)})
    command = ["fairseq-generate", data, "--path", path, "--cpu"]
    result = run_command(*command, "--user-dir", ROOT / "fairseq_deepnet", cwd=tmp_path)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert "encoder_layers is \"__import__('pathlib')" in result.stderr.strip().splitlines()[-1]
    assert not mark.exists()


@pytest.mark.parametrize(
    "reference", ["https://x/${oc.env:HOME}", "${oc.${bpe.kind}:HOME}", "${ oc.env :HOME}"]
)
def test_a_checkpoint_may_not_refer_to_the_environment(
    reference: str, data: Path, tmp_path: Path, refused: Refused
) -> None:
    path = planted(tmp_path / "run", data, "bpe", "gpt2", {"vocab": reference, "kind": "env"})
    assert f"vocab is {reference!r}" in refused("check", path)


def test_the_name_of_a_data_file_reaches_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "train.$(touch ran)-yy.yy"  # fairseq derives the languages from file names
    (tmp_path / f"{name}.fasta").write_text(">one\nAC\n", encoding="utf-8")
    assert data_utils.infer_language_pair(str(tmp_path)) == ["$(touch ran)", "yy"]
    FastaDataset(str(tmp_path / name))
    assert not (tmp_path / "ran").exists()


def test_worker_processes_import_nothing_from_the_working_folder(
    mark: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    (tmp_path / "socket.py").write_text(payload(mark), encoding="utf-8")
    program = tmp_path.with_suffix(".py")  # in another folder
    code = "import multiprocessing; from fairseq_deepnet import cli; cli.main()"
    code += "; multiprocessing.get_context('forkserver').Queue()"
    program.write_text(code, encoding="utf-8")
    run_command(sys.executable, program, cwd=tmp_path)
    assert not mark.exists()


def test_torchscale_is_not_imported_from_tmp(
    mark: Path, tmp_path: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchscale-0.3.0" / "torchscale-0.3.0.dist-info").mkdir(parents=True)
    (tmp_path / "torchscale-0.3.0" / "torchscale.py").write_text(payload(mark), encoding="utf-8")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code = "import subprocess, check_torchscale as c; subprocess.run = print; c.install()"
    run_command(sys.executable, "-c", f"{code}; import torchscale", cwd=ROOT / "benchmarks")
    assert not mark.exists()
