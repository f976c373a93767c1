"""How every weight of a model starts (paper, Fig. 2(a)), chosen by role and not by name."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_deepnet.schemes import Side, gains
from tests.support.models import BuildModel

DEPTHS = [(6, 6), (18, 18), (12, 3), (2, 7)]
SCALED = {"v_proj", "out_proj", "fc1", "fc2"}


def xavier_std(weight: torch.Tensor) -> float:
    return math.sqrt(2 / sum(weight.shape))


def linears(layer: nn.Module) -> dict[str, nn.Linear]:
    return {n: m for n, m in layer.named_modules() if isinstance(m, nn.Linear)}


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_deepnorm_weights_have_the_xavier_std_times_their_gain(
    n: int, m: int, model_builder: BuildModel
) -> None:
    width: dict[str, Any] = {"encoder_layers": n, "decoder_layers": m}
    for side in ("encoder", "decoder"):
        width |= {f"{side}_embed_dim": 128, f"{side}_ffn_embed_dim": 256}
    model = model_builder(**width)
    expected = gains(n, m)
    for side, stack in ((Side.ENCODER, model.encoder), (Side.DECODER, model.decoder)):
        attentions = 1 if side is Side.ENCODER else 2
        for layer in stack.layers:
            assert layer.residuals["ffn"].alpha == expected[side].alpha
            found = linears(layer)
            assert len(found) == 4 * attentions + 2
            for name, linear in found.items():
                gain = expected[side].beta if name.split(".")[-1] in SCALED else 1.0
                std = gain * xavier_std(linear.weight)
                # 16,384 draws and more: the standard error of a std is std / sqrt(2 n), 4 of them
                # allowed.
                tolerance = 4 / math.sqrt(2 * linear.weight.numel())
                assert linear.weight.std().item() == pytest.approx(std, rel=tolerance), name
                assert abs(linear.weight.mean().item()) < 4 * std / linear.weight.numel() ** 0.5
                assert not linear.bias.any()
        # All layers of a kind pooled: millions of draws, hence 1 %.
        for name in linears(stack.layers[0]):
            pooled = torch.stack([linears(layer)[name].weight for layer in stack.layers])
            gain = expected[side].beta if name.split(".")[-1] in SCALED else 1.0
            assert pooled.std().item() == pytest.approx(gain * xavier_std(pooled[0]), rel=0.01)


def test_embeddings_norms_and_vocabulary_projection_are_as_in_stock_fairseq(
    model_builder: BuildModel,
) -> None:
    ours = model_builder("deepnet_transformer", encoder_layers=1, decoder_layers=1)
    stock = model_builder("transformer", encoder_layers=1, decoder_layers=1)
    assert torch.equal(ours.encoder.embed_tokens.weight, stock.encoder.embed_tokens.weight)
    assert torch.equal(ours.decoder.embed_tokens.weight, stock.decoder.embed_tokens.weight)
    projection = ours.decoder.output_projection.weight
    assert projection.std().item() == pytest.approx(32**-0.5, rel=0.05)
    for norm in (m for m in ours.modules() if isinstance(m, nn.LayerNorm)):
        assert torch.equal(norm.weight, torch.ones(32))
        assert not norm.bias.any()


def test_beta_is_not_applied_to_a_shared_vocabulary_projection(model_builder: BuildModel) -> None:
    model = model_builder(share_all_embeddings=True, encoder_layers=18, decoder_layers=18)
    shared = model.decoder.output_projection.weight
    assert shared is model.encoder.embed_tokens.weight
    assert shared.std().item() == pytest.approx(32**-0.5, rel=0.05)


def test_one_seed_draws_the_same_stock_weights_as_fairseq(model_builder: BuildModel) -> None:
    ours = model_builder("deepnet_transformer", residual_scheme="post-ln", init="stock")
    stock = model_builder("transformer")
    assert ours.state_dict().keys() == stock.state_dict().keys()
    for name, value in stock.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def test_post_ln_is_deepnorm_with_both_gains_at_one(model_builder: BuildModel) -> None:
    model = model_builder(residual_scheme="post-ln", encoder_ffn_embed_dim=2048)
    fc1 = model.encoder.layers[0].fc1.weight
    assert fc1.std().item() == pytest.approx(xavier_std(fc1), rel=0.01)
    assert model.encoder.layers[0].residuals["ffn"].alpha == 1.0
