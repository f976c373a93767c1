"""Features that the decoder-only and encoder-only models share."""

import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import nn

from fairseq_deepnet.schemes import Side
from tests.support.models import VARIANTS, build_model, log_probs, matrix, sentences

# arch: width, feed-forward width, heads, layers
SHAPES = {
    "deepnet_transformer_lm": (512, 2048, 8, 6),
    "deepnet_transformer_lm_tiny": (64, 128, 2, 6),
    "deepnet_masked_lm": (768, 3072, 12, 12),
    "deepnet_masked_lm_tiny": (64, 128, 2, 6),
}
KINDS = {"deepnet_transformer_lm": Side.DECODER, "deepnet_masked_lm": Side.ENCODER}


def build(kind: str, layers: int = 3, **options: Any) -> Any:
    """Build a small model of this kind; options of the other side have no effect."""
    depth = {f"{KINDS[kind].value}_layers": layers}
    quiet = {"attention_dropout": 0.0, "max_positions": 40, "max_target_positions": 40}
    return build_model(kind, **(quiet | depth | options))


def stack_of(model: Any) -> Any:
    return model.decoder if hasattr(model, "decoder") else model.encoder.sentence_encoder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("arch", SHAPES)
def test_an_arch_has_its_shape_unless_the_user_sets_another(arch: str) -> None:
    side = "decoder" if "transformer_lm" in arch else "encoder"
    sizes = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
    args, asked = Namespace(), Namespace(**{f"{side}_layers": 9, f"{side}_embed_dim": 48})
    ARCH_CONFIG_REGISTRY[arch](args)
    assert tuple(getattr(args, f"{side}_{size}") for size in sizes) == SHAPES[arch]
    assert (args.residual_scheme, args.init) == ("deepnorm", "scheme")
    setattr(asked, f"{side}_attention_heads", 4)
    ARCH_CONFIG_REGISTRY[arch](asked)
    assert tuple(getattr(asked, f"{side}_{size}") for size in sizes)[0::3] == (48, 9)


def test_initial_weights_have_the_papers_gains_and_biases_are_zero(kind: str) -> None:
    side = KINDS[kind].value
    shape = {f"{side}_embed_dim": 128, f"{side}_ffn_embed_dim": 256}
    model = build(kind, layers=12, **shape)
    layers = stack_of(model).layers
    assert len(layers) == 12
    assert {r.alpha for layer in layers for r in layer.residuals.values()} == {(2 * 12) ** 0.25}
    names = [n for n, m in layers[0].named_modules() if isinstance(m, nn.Linear)]
    assert len(names) == 6
    for name in names:
        linears = [layer.get_submodule(name) for layer in layers]
        weight = torch.stack([linear.weight for linear in linears])
        gain = 1.0 if name.endswith(("q_proj", "k_proj")) else (8 * 12) ** -0.25
        std = gain * math.sqrt(2 / sum(weight.shape[1:]))
        # at least 196,608 draws: 1 % is six standard errors
        assert weight.std().item() == pytest.approx(std, rel=0.01), name
        assert not any(linear.bias.any() for linear in linears), name


@pytest.mark.parametrize(("scheme", "variant"), matrix(VARIANTS))
def test_every_scheme_trains(kind: str, scheme: str, variant: str | None) -> None:
    model = build(kind, residual_scheme=scheme, scheme_variant=variant)
    assert model.args.residual_record["scheme"] == scheme
    depths = {Side.ENCODER: [3, 0], Side.DECODER: [0, 3]}[KINDS[kind]]
    assert model.args.residual_record["depths"] == depths
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = nn.functional.nll_loss(
            log_probs(model.train(), sentences()).flatten(0, 1), sentences().roll(-1, 1).flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_admin_profiles_in_the_first_training_batch(kind: str) -> None:
    model = build(kind, residual_scheme="admin", dropout=0.0)
    residuals = [r for layer in stack_of(model).layers for r in layer.residuals.values()]
    assert all(residual.omega.eq(1).all() for residual in residuals)
    model.train()(sentences())
    actual = [residual.omega[0].item() for residual in residuals]
    assert actual[0] == 1.0
    assert actual[1:] == sorted(actual[1:])  # padding reduces the variance of the encoder's input
    assert actual[-1] > 1.2
