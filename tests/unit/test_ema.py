"""--store-ema: the moving average of weights, tied ones too, also of a training that is resumed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.rig import MORE, TRAIN, Rig

TIED = "--share-all-embeddings"
EMA = ("--store-ema", "--ema-decay=0.5", TIED)


def save(rig: Rig, name: str) -> str:
    file = Path(rig.cfg.checkpoint.save_dir) / name
    itr = {"epoch": 1, "iterations_in_epoch": 1, "version": 2}
    rig.trainer.consolidate_optimizer()
    rig.trainer.save_checkpoint(str(file), {"train_iterator": itr, "val_loss": None})
    return str(file)


def averages(rig: Rig) -> dict[str, Tensor]:
    held = rig.trainer.ema.get_model().state_dict()
    return {name: tensor.float().clone() for name, tensor in held.items()}


@pytest.mark.parametrize("precision", [(), ("--ema-fp32",), ("--bf16", "--ema-fp32")])
def test_every_weight_is_averaged_once_an_update(
    precision: tuple[str, ...], tmp_path: Path
) -> None:
    """That of the final norm too, which a decoder of before fairseq 0.6 does not have."""
    rig = Rig(tmp_path, *EMA, *precision, "--residual-scheme=pre-ln")
    rig.update(TRAIN)
    before = averages(rig)
    rig.update(MORE)
    model, after = rig.trainer.get_model().state_dict(), averages(rig)
    for name, found in after.items():
        wanted = (before[name] + model[name].float()) / 2
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-2 if precision[1:] else 1e-6)
    assert model.keys() == after.keys()
    if precision:
        kept = rig.trainer.ema.fp32_params
        assert torch.equal(kept["encoder.embed_tokens.weight"], kept["decoder.embed_tokens.weight"])


def test_an_average_begins_with_the_weights_of_a_checkpoint_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Rig(tmp_path, TIED)
    plain.update(TRAIN)
    rig = Rig(tmp_path, *EMA, seed=2)
    rig.trainer.load_checkpoint(save(plain, "plain.pt"))
    assert rig.cfg.ema.store_ema
    assert "no moving average" in caplog.text
    found, wanted = averages(rig), plain.trainer.get_model().state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("precision", [(), ("--bf16", "--ema-fp32")])
def test_an_average_goes_on_as_that_of_a_training_that_was_not_stopped(
    precision: tuple[str, ...], tmp_path: Path
) -> None:
    words = [*EMA, "--ema-update-freq=3", *precision]
    whole, stopped = (Rig(tmp_path, *words) for _ in range(2))
    for update in range(1, 8):
        for rig in (whole, stopped):
            rig.update(TRAIN if update % 2 else MORE)
        if update in (2, 4):
            file = save(stopped, f"checkpoint{update}.pt")
            stopped = Rig(tmp_path, *words, seed=2)
            stopped.trainer.load_checkpoint(file)
    found, wanted = averages(stopped), averages(whole)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
