"""Admin's profiling pass: its values, its timing, and their preservation."""

import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor

from fairseq_deepnet.schemes.admin import AdminResidual
from tests.support import reference
from tests.support.models import build_model, loss_of

Batch = dict[str, Tensor]


@pytest.fixture
def model() -> Any:
    """Return a new model in training mode, without dropout."""
    return build_model(residual_scheme="admin").train()


def residuals(stack: Any) -> list[AdminResidual]:
    """Return a stack's residuals, starting at the input."""
    return [residual for layer in stack.layers for residual in layer.residuals.values()]


def omegas(model: Any) -> list[float]:
    """Return omega per sublayer; after profiling all channels are equal."""
    actual = []
    for residual in (*residuals(model.encoder), *residuals(model.decoder)):
        assert residual.omega.min() == residual.omega.max()
        actual.append(residual.omega[0].item())
    return actual


def variance(x: Tensor) -> float:
    """Return the variance over all elements, as numpy's var in the authors' code."""
    return (x - x.mean()).square().mean().item()


def chain(
    weights: dict[str, Tensor], heads: int, x: Tensor, mask: Tensor, cross: Any
) -> tuple[list[float], Tensor]:
    """Return omega of each sublayer of a stack without dropout, and the stack's output.

    As in the authors' code, omega_1 = 1 and omega_{i+1} = sqrt(Var[omega_i x_{i-1}] + Var[f_i]).
    x: [B, T, C].
    """
    actual, omega = [], 1.0
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    for number in range(depth):
        part = reference.under(weights, f"layers.{number}")
        for name in ("self_attn", "encoder_attn", "ffn"):
            if name == "encoder_attn" and cross is None:
                continue
            if name == "ffn":
                branch, norm = reference.feed_forward(part, x), "final_layer_norm"
            else:
                source, seen = cross if name == "encoder_attn" else (x, mask)
                own, norm = reference.under(part, name), f"{name}_layer_norm"
                branch = reference.attention(own, heads, x, source, seen)
            actual.append(omega)
            following = math.sqrt(variance(omega * x) + variance(branch))
            x = reference.layer_norm(part, norm, omega * x + branch)
            omega = following
    return actual, x


@torch.no_grad()
@pytest.mark.parametrize("init", ["scheme", "stock"])
@pytest.mark.parametrize(("n", "m"), [(3, 2), (1, 5)])
def test_the_first_training_batch_sets_omega_by_the_authors_recursion(
    init: str, n: int, m: int, batch: Batch
) -> None:
    depths = {"encoder_layers": n, "decoder_layers": m}
    model = build_model(residual_scheme="admin", init=init, **depths).train()
    weights = dict(model.named_parameters())
    source, target = batch["src_tokens"], batch["prev_output_tokens"]
    heads = model.encoder.layers[0].self_attn.num_heads
    seen = source.ne(1)
    mask = seen[:, None, None, :]
    x = model.encoder.forward_embedding(source)[0] * seen.unsqueeze(-1)
    encoder, encoded = chain(reference.under(weights, "encoder"), heads, x, mask, None)
    past = torch.ones(target.size(1), target.size(1), dtype=torch.bool).tril()[None, None]
    y = model.decoder.embed(target, None)
    both = (encoded, mask)
    decoder, _ = chain(reference.under(weights, "decoder"), heads, y, past, both)
    model(**batch)
    actual = omegas(model)
    assert len(actual) == 2 * n + 3 * m
    assert actual == pytest.approx(encoder + decoder, rel=1e-5)
    assert actual[0] == actual[2 * n] == 1.0  # each stack has its own chain


def test_variances_are_measured_after_dropout(batch: Batch) -> None:
    """Apply the recursion to the streams and branches recorded by hooks."""
    model = build_model(residual_scheme="admin", dropout=0.4, activation_dropout=0.2).train()
    branches: list[Tensor] = []
    streams: list[Tensor] = []
    layers = model.encoder.layers
    layers[0].register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    for layer in layers:
        layer.dropout_module.register_forward_hook(lambda _, args, out: branches.append(out))
        for norm in (layer.self_attn_layer_norm, layer.final_layer_norm):
            norm.register_forward_hook(lambda _, args, out: streams.append(out))
    model(**batch)
    expected = [1.0]
    for x, branch in zip(streams[:6], branches[:6], strict=True):  # of the first pass
        expected.append(math.sqrt(variance(expected[-1] * x) + variance(branch)))
    assert len(branches) == 12  # the training pass draws other masks
    assert not torch.equal(branches[0], branches[6])
    assert (branches[0] == 0).float().mean() == pytest.approx(0.4, abs=0.1)
    actual = [residual.omega[0].item() for residual in residuals(model.encoder)]
    assert actual == pytest.approx(expected[:6], rel=1e-5)


def test_the_profiled_batch_is_trained_with_omega(model: Any, batch: Batch) -> None:
    first = model(**batch)[0]
    assert torch.equal(first, model(**batch)[0])
    assert torch.equal(first, model.eval()(**batch)[0])


def other(batch: Batch) -> Batch:
    """Return a batch with the same lengths and other words."""
    moved = {}
    for name, tokens in batch.items():
        moved[name] = torch.where(tokens.gt(3), 4 + (7 * tokens) % 60, tokens)
    return {**moved, "src_lengths": batch["src_lengths"]}


def test_only_the_first_batch_profiles(model: Any, batch: Batch) -> None:
    """Later micro-batches of the first update, with --update-freq, do not change omega either."""
    model(**batch)
    before = omegas(model)
    model(**other(batch))
    assert omegas(model) == before
    another = build_model(residual_scheme="admin").train()
    another(**other(batch))
    assert omegas(another) != before


def test_a_resumed_model_keeps_omega_and_is_not_profiled_again(model: Any, batch: Batch) -> None:
    model(**batch)
    resumed = build_model(residual_scheme="admin", seed=2)
    resumed.load_state_dict(model.state_dict(), strict=True)
    resumed.train()(**other(batch))
    assert omegas(resumed) == omegas(model)


def test_a_half_precision_optimiser_updates_omega_from_its_profiled_value(
    model: Any, batch: Batch
) -> None:
    model.bfloat16()
    common = Namespace(bf16=True, fp16_scale_window=4)
    sgd = Namespace(optimizer="sgd", lr=[1.0], momentum=0.0, weight_decay=0.0)
    cfg = Namespace(common=common, optimizer=sgd)
    optimiser = FP16Optimizer.build_optimizer(cfg, list(model.parameters()))  # copies the weights
    optimiser.backward(loss_of(model, batch))
    profiled = [residual.offset.item() for residual in residuals(model.decoder)]
    assert profiled[-1] > 0.2
    steps = {name: -p.grad.float() for name, p in model.named_parameters() if "residuals" in name}
    optimiser.step()
    for number, residual in enumerate(residuals(model.decoder)):
        assert residual.offset.item() == profiled[number]
        layer, sublayer = divmod(number, 3)
        name = ("self_attn", "encoder_attn", "ffn")[sublayer]
        step = steps[f"decoder.layers.{layer}.residuals.{name}.weight"]
        assert step.abs().max() > 1e-3
        expected = 1 + profiled[number] + step
        # bf16 has 8 bits; two roundings
        torch.testing.assert_close(residual.omega.float(), expected, rtol=2**-7, atol=0)
