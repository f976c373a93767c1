"""--residual-dtype, an fp32 residual stream in a half-precision model."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_deepnet.models.running_options import FP32_FROM
from fairseq_deepnet.schemes import SCHEMES, PostNormResidual
from tests.support.models import SYMBOLS, build_model, stir

HALF = [torch.bfloat16, torch.float16]


def batch(rows: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources [B, S] (one is padded), previous target tokens [B, T] and targets [B, T]."""
    generator = torch.Generator().manual_seed(3)
    source, previous, target = (
        torch.randint(4, SYMBOLS, (rows, length), generator=generator) for length in (16, 14, 14)
    )
    source[0, -3:] = 1
    return source, previous, target


def gradients(model: Any) -> dict[str, Tensor]:
    source, previous, target = batch()
    out, _ = model(source, source.ne(1).sum(1), previous)
    nn.functional.cross_entropy(out.float().flatten(0, 1), target.flatten()).backward()
    return {name: p.grad.float() for name, p in model.named_parameters() if ".layers." in name}


def gradient_error(layers: int, residual_dtype: str, dtype: torch.dtype) -> float:
    """Return the relative error of the layers' initial gradients, compared with fp32."""
    shape: dict[str, Any] = {"residual_dtype": residual_dtype}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_embed_dim": 64}
        shape |= {f"{side}_ffn_embed_dim": 128, f"{side}_attention_heads": 2}
    model = build_model(**shape).to(dtype)
    exact, rounded = gradients(copy.deepcopy(model).float()), gradients(model)
    error = sum(float((rounded[name] - grad).square().sum()) for name, grad in exact.items())
    return float((error / sum(float(grad.square().sum()) for grad in exact.values())) ** 0.5)


@pytest.mark.parametrize("dtype", HALF, ids=["bf16", "fp16"])
@pytest.mark.parametrize("layers", [18, 100, pytest.param(500, marks=pytest.mark.slow)])
def test_gradients_in_half_precision_are_within_one_percent(
    layers: int, dtype: torch.dtype
) -> None:
    error = gradient_error(layers, "float32", dtype)
    assert error < 0.01
    assert error < gradient_error(layers, "model", dtype)


@pytest.mark.parametrize("dtype", HALF, ids=["bf16", "fp16"])
def test_alpha_is_not_rounded_in_half_precision(dtype: torch.dtype) -> None:
    """torch's CPU kernel rounds it in the forward pass, but not in the backward pass."""
    x, branch = torch.randn(2, 500, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    summed = PostNormResidual(2.711).leave(x, branch, nn.Identity(), nn.Identity())
    exact = (2.711 * x.double() + branch.double()).to(dtype)
    # a sum halfway between two numbers may be rounded either way
    assert (summed != exact).double().mean() < 0.005


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_has_an_fp32_stream_and_decodes_incrementally(scheme: str) -> None:
    model = build_model(residual_scheme=scheme, residual_dtype="float32")
    stir(model)
    model.to(torch.bfloat16).eval()
    streams: list[torch.dtype] = []
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.register_forward_hook(
            lambda _, inputs, output: streams.extend(
                (inputs[0].dtype, (output[0] if isinstance(output, tuple) else output).dtype)
            )
        )
    source, previous, _ = batch(2)
    with torch.no_grad():
        encoded = model.encoder(source, source.ne(1).sum(1))
        whole, _ = model.decoder(previous, encoder_out=encoded)
        assert set(streams) == {torch.float32}
        assert encoded["encoder_out"][0].dtype == whole.dtype == torch.bfloat16
        state: dict[str, Any] = {}
        steps = [
            model.decoder(previous[:, :length], encoder_out=encoded, incremental_state=state)[0]
            for length in range(1, previous.size(1) + 1)
        ]
        difference = (torch.cat(steps, dim=1) - whole).float().norm() / whole.float().norm()
    assert float(difference) < 0.02


def test_a_model_in_fp32_computes_the_same_with_any_residual_dtype() -> None:
    plain, ours = (gradients(build_model(residual_dtype=dtype)) for dtype in ("model", "float32"))
    assert all(torch.equal(ours[name], grad) for name, grad in plain.items())


@pytest.mark.parametrize("layers", [FP32_FROM - 1, FP32_FROM])
def test_auto_selects_fp32_for_deep_stacks(layers: int) -> None:
    model = build_model(encoder_layers=1, decoder_layers=layers)
    assert model.encoder.streams_in_fp32 == model.decoder.streams_in_fp32 == (layers == FP32_FROM)
