"""fairseq-train with learned residuals, and Admin's profile of two processes."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.integration.conftest import SMALL, TRAIN
from tests.support.models import build_model
from tests.support.shell import ROOT
from tests.support.training import finish, free_port, logged, train_here

ARCH = ["--arch", "deepnet_transformer", "--disable-validation", "--log-interval=1"]
OPTIONS = [*ARCH, *SMALL, *TRAIN, "--log-format=json", "--residual-scheme"]


@pytest.mark.parametrize(
    ("scheme", "shown"), [("deepnorm", set()), ("dlcl", {"combination_newest"})]
)
def test_a_scheme_trains_and_logs_its_learned_values(
    scheme: str, shown: set[str], tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        train_here(tiny_data, tmp_path, *OPTIONS, scheme)
    lines = [r.getMessage() for r in caplog.records if r.name == "train_inner"]
    assert logged(lines, "num_updates") == [1, 2]
    assert all(math.isfinite(loss) for loss in logged(lines, "loss"))
    for side in ("encoder", "decoder"):
        for name in ("combination_newest", "residual_weight", "branch_weight"):
            mean = pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=0.01)  # of three combinations
            assert logged(lines, f"{side}_{name}") == ([mean, mean] if name in shown else [])


def test_two_processes_share_one_profile(tmp_path: Path) -> None:
    """Both processes use the mean of their variances and perform the same update."""
    port = free_port()
    files = [tmp_path / f"{rank}.pt" for rank in (0, 1)]
    module = [sys.executable, "-m", "tests.support.admin_process"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen([*module, str(rank), str(port), str(file)], cwd=ROOT, **pipes)
        for rank, file in enumerate(files)
    ]
    finish(*processes)
    first, second = (torch.load(file, weights_only=True) for file in files)
    for name, value in first["model"].items():
        assert torch.equal(second["model"][name], value), name

    def alone(batch: dict[str, Tensor]) -> Any:
        model = build_model(residual_scheme="admin").train()
        model(**batch)
        return model.encoder.layers[0].residuals["ffn"].omega[0].item()

    # In a single process, the second omega is sqrt(Var[x_0] + Var[f_1]).
    apart = [alone(checkpoint["batch"]) for checkpoint in (first, second)]
    together = 1 + first["model"]["encoder.layers.0.residuals.ffn.offset"].item()
    assert apart[0] != pytest.approx(apart[1], rel=1e-3)
    assert together**2 == pytest.approx((apart[0] ** 2 + apart[1] ** 2) / 2, rel=1e-5)
