"""Growth of BranchNorm's branch weight during training and across checkpoints."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.models import build_model


def scales(model: Any) -> set[float]:
    return {value.item() for name, value in model.state_dict().items() if name.endswith(".scale")}


TRI_STAGE = [{"warmup_steps": 4}, {"phase_ratio": [0.4, 0.3, 0.3], "max_update": 10}]


@pytest.mark.parametrize("warmup", [{"warmup_updates": 4}, *TRI_STAGE])
@pytest.mark.parametrize("arch", ["transformer", "transformer_lm", "masked_lm"])
def test_branches_grow_to_one_over_the_warm_up_and_stay(arch: str, warmup: Any) -> None:
    """The scale is min(1, t / T) in update t; fairseq passes t - 1 finished updates."""
    options = {"residual_scheme": "branchnorm", "max_positions": 20, **warmup}
    model = build_model(f"deepnet_{arch}", **options)
    assert scales(model) == {1.0}
    actual = []
    for finished in range(6):
        model.set_num_updates(finished)
        actual.append(scales(model))
    assert actual == [{0.25}, {0.5}, {0.75}, {1.0}, {1.0}, {1.0}]


@pytest.mark.parametrize("options", [{}, {"warmup_updates": 0}], ids=str)
def test_without_a_warm_up_they_grow_for_4000_updates(options: dict[str, int]) -> None:
    model = build_model(residual_scheme="branchnorm", **options)
    model.set_num_updates(999)
    assert scales(model) == {0.25}
    # LN(x + a G) = LN(x / a + G), as needed for the bound of the update
    assert model.encoder.layers[0].residuals.ffn.alpha == 4.0


def test_a_model_computes_with_the_scale_of_its_checkpoint_which_never_falls(
    batch: dict[str, Tensor],
) -> None:
    """Neither the number of updates nor the order of calls changes a loaded scale.

    Fine-tuning counts updates from 0 but starts from the trained function.
    """
    model, again = (
        build_model(residual_scheme="branchnorm", warmup_updates=4, seed=seed) for seed in (1, 2)
    )
    model.set_num_updates(1)
    again.set_num_updates(2)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(**batch)[0], model.eval()(**batch)[0])
    actual = [scales(again)]
    for finished in range(4):
        again.set_num_updates(finished)
        actual.append(scales(again))
    assert actual == [{0.5}, {0.5}, {0.5}, {0.75}, {1.0}]
