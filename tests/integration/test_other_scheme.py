"""A run does not resume from a checkpoint of another scheme unless an option allows it."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.errors import ConfigurationError
from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import train_here

COMMON = (*SMALL, *TRAIN, "--disable-validation", "--max-update=1")
OURS = "--arch=deepnet_transformer"
STOCK = "--arch=transformer"


def train(data: Path, folder: Path, *options: object) -> dict[str, Any]:
    return train_here(data, folder, *COMMON, *options)


@pytest.fixture(scope="module")
def trained(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a DeepNorm checkpoint."""
    folder = tmp_path_factory.mktemp("deepnorm")
    train(tiny_data, folder, OURS)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("options", "cause", "remedy"),
    [
        (
            [OURS, "--residual-scheme=post-ln"],
            r"was trained with deepnorm\(2L-2L, .*, not post-ln\(2L-2L",
            "give --residual-scheme deepnorm",
        ),
        (
            [OURS, "--decoder-layers=4"],
            r"deepnorm\(2L-2L, .*encoder alpha 1\.\d+, .*, not deepnorm\(2L-4L, .*encoder alpha",
            "--encoder-layers 2 --decoder-layers 2",
        ),
        ([OURS, "--encoder-attention-heads=4"], "-attention-heads 2, not 4", "the former"),
        ([OURS, "-s=yy", "-t=xx"], "--source-lang xx, not yy; --target-lang yy, not xx", "former"),
        ([OURS, "--residual-scheme=post-ln", "--allow-other-scheme"], "not post-ln", "--save-dir"),
        ([STOCK], r"not post-ln\(2L-2L", "--arch deepnet_transformer --residual-scheme deepnorm"),
    ],
    ids=["scheme", "depth", "options", "languages", "not even if allowed", "stock"],
)
def test_a_folder_with_another_scheme_is_refused_and_left_alone(
    trained: Path, tiny_data: Path, options: list[str], cause: str, remedy: str
) -> None:
    before = content(trained)
    with pytest.raises(ConfigurationError, match=cause) as refused:
        train(tiny_data, trained, *options, "--max-update=2")
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)
    assert content(trained) == before


@pytest.mark.parametrize("how", ["--restore-file", "--finetune-from-model"])
def test_weights_of_another_scheme_are_loaded_if_allowed(
    trained: Path, tiny_data: Path, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = trained / "checkpoint_last.pt"
    options = (OURS, "--residual-scheme=post-ln", f"{how}={path}", "--max-update=2", "--lr=1e-30")
    with pytest.raises(ConfigurationError, match=r"was trained with deepnorm.* --allow-other-sch"):
        train(tiny_data, tmp_path, *options)
    assert not any(tmp_path.iterdir())
    state = train(tiny_data, tmp_path, *options, "--allow-other-scheme")
    (warning,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert "was trained with deepnorm" in warning
    assert state["cfg"]["model"].residual_record["scheme"] == "post-ln"
    before = torch.load(path, weights_only=True)["model"]
    for name, weights in before.items():
        assert torch.allclose(state["model"][name], weights, atol=1e-6), name
    # the same command resumes the new run
    train(tiny_data, tmp_path, *options, "--allow-other-scheme", "--max-update=3")


def test_fairseqs_checkpoints_are_post_ln(tiny_data: Path, tmp_path: Path) -> None:
    stock = tmp_path / "stock"
    train(tiny_data, stock, STOCK)
    options = (OURS, f"--finetune-from-model={stock / 'checkpoint_last.pt'}")
    train(tiny_data, tmp_path / "post", *options, "--residual-scheme=post-ln")
    for scheme in ("deepnorm", "pre-ln"):
        with pytest.raises(ConfigurationError, match=r"was trained with post-ln\(2L-2L"):
            train(tiny_data, tmp_path / scheme, *options, f"--residual-scheme={scheme}")
    state = train(tiny_data, stock, OURS, "--residual-scheme=post-ln", "--max-update=2")
    assert state["optimizer_history"][-1]["num_updates"] == 2


def test_other_frozen_norms_require_an_optimiser_reset(
    trained: Path, tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    options = [OURS, "--freeze-norms=both", "--max-update=2"]
    with pytest.raises(ConfigurationError, match=r"--freeze-norms none, not both: use the former"):
        train(tiny_data, folder, *options)
    assert content(folder) == content(trained)
    caplog.clear()
    train(tiny_data, folder, *options, "--reset-optimizer")
    assert (
        "--freeze-norms both keeps the LayerNorms of the layers at their values in " in caplog.text
    )
    caplog.clear()
    train(tiny_data, folder, *options, "--max-update=3")
    assert "--freeze-norms" not in caplog.text
    other = [OURS, "--residual-scheme=post-ln", "--allow-other-scheme", "--freeze-norms=none"]
    other += [f"--restore-file={folder / 'checkpoint_last.pt'}"]
    with pytest.raises(ConfigurationError, match=r"--freeze-norms both, not none: use the former"):
        train(tiny_data, tmp_path / "other", *other, "--max-update=4")
