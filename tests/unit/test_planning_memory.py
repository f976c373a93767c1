"""Memory of a plan, compared with saved-tensor hooks and fairseq's optimisers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_deepnet import footprint
from fairseq_deepnet.footprint import activations, memory
from fairseq_deepnet.footprint.activations import MicroBatch
from fairseq_deepnet.modules.layers import DecoderLayer, EncoderLayer
from fairseq_deepnet.modules.stack import ActivationCheckpointing, run_layers
from fairseq_deepnet.schemes import SCHEMES, Place, Side
from tests.support.plans import TRAINING, plan_of

SENTENCES, SOURCE, TARGET = 5, 7, 9
BATCH = MicroBatch(SENTENCES, SOURCE, TARGET, element=4, on_gpu=False)
MASK = torch.ones(SENTENCES, 1, 1, SOURCE, dtype=torch.bool)
MASK[0, ..., 0] = False


def saved(run: Callable[[], Any], *apart: Tensor) -> int:
    """Return the bytes of storages that autograd saves during a run, except those of `apart`."""
    excluded = {tensor.untyped_storage().data_ptr() for tensor in apart}
    storages: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in excluded:
            storages[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def saved_bytes(
    model: footprint.Model, side: Side, checkpoint: bool = False, dtype: torch.dtype = torch.float32
) -> int:
    """Return the bytes that autograd saves for one layer, except its weights and its source."""
    layer_class = EncoderLayer if side is Side.ENCODER else DecoderLayer
    shape = model.layers[side]
    layer: nn.Module = layer_class(shape, model.scheme, Place(side, 0)).to(dtype)
    length = SOURCE if side is Side.ENCODER else TARGET
    x = torch.randn(SENTENCES, length, shape.embed_dim, requires_grad=True)
    source = torch.randn(SENTENCES, SOURCE, shape.source_dim, dtype=dtype, requires_grad=True)
    run = ActivationCheckpointing(every=int(checkpoint))

    def forward(h: Tensor) -> Any:
        return layer(h, MASK) if side is Side.ENCODER else layer(h, source, None, MASK, True)

    return saved(lambda: run(forward, x), source, *layer.parameters())


@pytest.mark.parametrize("every", [0, 1, 2, 3, 5])
def test_a_stack_stores_the_estimated_bytes(every: int) -> None:
    options = {"checkpoint_every": str(every)} if every else {}
    model = plan_of(encoder_layers=5, dropout=0.1, **options)
    shape = model.layers[Side.ENCODER]
    layers = [EncoderLayer(shape, model.scheme, Place(Side.ENCODER, n)) for n in range(5)]
    x = torch.randn(SENTENCES, SOURCE, shape.embed_dim, requires_grad=True)
    checkpointing = ActivationCheckpointing(every)
    weights = [parameter for layer in layers for parameter in layer.parameters()]
    measured = saved(
        lambda: run_layers(layers, x, lambda layer, h: layer(h, MASK), checkpointing), *weights
    )
    walk = memory.Walk(model, TRAINING, footprint.count(model), BATCH)
    states = -(-5 // every) * activations.RNG_STATE if every else 0
    assert walk.stacks[Side.ENCODER] - states == measured


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention_dropout": 0.1},
        {"activation_dropout": 0.1},
        {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
        {"activation_fn": "gelu"},
        {"encoder_embed_dim": 64},
        *({"residual_scheme": scheme, "dropout": 0.1} for scheme in SCHEMES),
    ],
    ids=str,
)
def test_a_layers_estimate_matches_autograd(side: Side, options: dict[str, Any]) -> None:
    model = plan_of(**options)
    # the plan ignores Admin's vector and BranchNorm's number per sublayer
    ignored = {"admin": 4 * 32, "branchnorm": 4}.get(model.scheme.name, 0)
    ignored *= len(footprint.SUBLAYERS[side])
    assert activations.layer(BATCH, model, side) == saved_bytes(model, side) - ignored


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln", "peri-ln", "t-fixup", "rezero"])
def test_a_stream_in_fp32_is_counted(scheme: str, side: Side) -> None:
    model = plan_of(residual_scheme=scheme, residual_dtype="float32")
    batch = dataclasses.replace(BATCH, element=2)
    measured = saved_bytes(model, side, dtype=torch.bfloat16)
    # differences: fp32 copies of LayerNorm's weights; inputs of norms in branches, in bf16
    assert activations.layer(batch, model, side) == pytest.approx(measured, rel=0.1)


def test_modules_between_and_after_layers_are_counted() -> None:
    """ResiDual joins streams [B, T, 2C]; DLCL stores outputs [B, T, C] before and after a norm."""
    n, c, plain = BATCH.tokens(Side.DECODER), 32, plan_of()
    expected = 4 * (2 * n * c + 2 * n)  # with two statistics per token
    model = plan_of(residual_scheme="resi-dual")
    join = model.scheme.build_output_transform(Side.DECODER, c)
    assert join is not None
    x = torch.randn(1, n, 2 * c, requires_grad=True)
    assert saved(lambda: join(x), *join.parameters()) == expected
    assert activations.joining(BATCH, model, Side.DECODER) == expected
    assert activations.joining(BATCH, plain, Side.DECODER) == 0
    narrow, wide = (activations.segment(BATCH, m, Side.DECODER) for m in (plain, model))
    assert wide - activations.RNG_STATE == 2 * (narrow - activations.RNG_STATE)

    model = plan_of(residual_scheme="dlcl")
    combination = model.scheme.build_combination(Side.DECODER, c)
    assert combination is not None
    output, embedding = torch.randn(1, n, c, requires_grad=True), torch.randn(1, n, c)
    measured = saved(
        lambda: combination([embedding, combination.keep(output, 1)]),
        embedding,
        *combination.parameters(),
    )
    assert measured == activations.combination(BATCH, model, Side.DECODER) == expected
    assert activations.combination(BATCH, plain, Side.DECODER) == 0


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("side", Side)
def test_a_checkpointed_layer_stores_only_its_input(side: Side, dropout: float) -> None:
    """The estimate adds the random states that torch's checkpoint stores."""
    model = plan_of(dropout=dropout, checkpoint_activations=True)
    planned = activations.segment(BATCH, model, side) - activations.RNG_STATE
    assert planned == BATCH.tokens(side) * model.layers[side].embed_dim * 4
    assert planned == saved_bytes(model, side, checkpoint=True)
    assert torch.get_rng_state().nbytes <= activations.RNG_STATE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4 + 4 + 8),
        ({"precision": "bf16"}, 2 + 2 + 8 + 8),
        ({"precision": "bf16", "memory_efficient": True}, 2 + 2 + 8),
        ({"precision": "bf16", "memory_efficient": True, "optimizer": "adafactor"}, 2 + 2),
        ({"gpus": 2}, 4 + 4 + 8 + 4),
        ({"gpus": 2, "ddp_backend": "legacy_ddp", "precision": "bf16"}, 2 + 2 + 8 + 8 + 2),
    ],
    ids=str,
)
def test_bytes_per_parameter(changes: dict[str, Any], expected: int) -> None:
    """Persistent bytes and gradients are compared, without position tables."""
    model = plan_of(share_all_embeddings=True)
    counts = footprint.count(model)
    training = dataclasses.replace(TRAINING, **changes)
    batch = dataclasses.replace(BATCH, element=training.element, on_gpu=True)
    usage = memory.follow(model, training, counts, batch)
    tables = memory.position_tables(model, training.element)
    assert (usage.persistent + usage.gradients - tables) / counts.total == expected
