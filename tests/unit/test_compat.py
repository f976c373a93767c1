"""The fairseq guard and the checkpoint classes that torch may load."""

import argparse
import collections
import importlib.metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_deepnet import compat


def test_the_guard_and_setup_name_the_same_fairseq() -> None:
    setup = Path(__file__).parents[2] / "setup.py"
    assert compat.FAIRSEQ in setup.read_text(encoding="utf-8")


def test_another_fairseq_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match=r"pip install --no-build-isolation fairseq-fixed=="):
        compat.require_fairseq()


def test_another_release_of_fairseq_fixed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.2")
    with pytest.raises(ImportError, match=r"tested with .*found 0\.12\.2"):
        compat.require_fairseq()


def test_what_fairseq_checkpoints_hold_loads_with_weights_only(tmp_path: Path) -> None:
    held = {
        "cfg": {
            "model": argparse.Namespace(arch="deepnet_transformer", residual_alphas=[1.4, 2.1])
        },
        "extra_state": {"metrics": collections.OrderedDict(counts=np.array([3, 2, 1, 0]))},
        "model": {"encoder.version": torch.tensor([3.0])},
    }
    torch.save(held, tmp_path / "checkpoint.pt")
    found = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert found["cfg"]["model"] == held["cfg"]["model"]
    assert found["extra_state"]["metrics"]["counts"].tolist() == [3, 2, 1, 0]


def test_a_checkpoint_with_any_other_class_is_refused(tmp_path: Path) -> None:
    torch.save({"cfg": Path("x"), "model": {}}, tmp_path / "checkpoint.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "checkpoint.pt", weights_only=True)
