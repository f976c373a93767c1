"""--checkpoint-memory: how many layers are recomputed, and what the log and errors say."""

import dataclasses
import itertools
import logging
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.footprint import Model, count, fit, follow, micro_batch, needed_gib
from fairseq_deepnet.footprint.choice import recomputing
from fairseq_deepnet.footprint.memory import GIB
from fairseq_deepnet.footprint.walk import Walk
from fairseq_deepnet.models.checkpoint_memory import choose, free_on_gpu, memory_of
from fairseq_deepnet.modules import ActivationCheckpointing, EncoderLayer, run_layers
from fairseq_deepnet.schemes import Place, Side
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.planning.estimates import estimate
from fairseq_deepnet.tools.standalone import VocabularyTask
from tests.support.models import SYMBOLS, small
from tests.support.plans import TRAINING, plan_of

DEPTH = 12
FULL = dataclasses.replace(TRAINING, max_tokens=4096, gpus=0)


def deep(**options: Any) -> Model:
    return plan_of(encoder_layers=DEPTH, decoder_layers=DEPTH, dropout=0.1, **options)


def recomputed(model: Model) -> tuple[int, int]:
    return model.recomputed(Side.ENCODER), model.recomputed(Side.DECODER)


def chosen(gib: float, **options: Any) -> tuple[tuple[int, int], float]:
    """Layers recomputed a side, and the GiB that are needed, under a budget."""
    model, needed = fit(deep(**options), FULL, micro_batch(FULL), gib)
    return recomputed(model), needed


@pytest.mark.parametrize(
    "options",
    [{}, {"residual_scheme": "dlcl"}, {"decoder_ffn_embed_dim": 4096}, {"checkpoint_every": "4"}],
    ids=str,
)
def test_more_memory_never_recomputes_more_and_is_never_overdrawn(options: dict[str, Any]) -> None:
    (none, most), (everything, least) = chosen(1e9, **options), chosen(0, **options)
    assert (none, everything) == ((0, 0), (DEPTH, DEPTH))
    assert least < most
    steps = 60
    budgets = [least + (most - least) * step / steps for step in range(steps + 1)]
    found = [chosen(gib, **options) for gib in budgets]
    assert all(needed <= gib for (_, needed), gib in zip(found, budgets, strict=True))
    layer = count(deep(**options)).layer
    costs = [
        encoder * layer[Side.ENCODER] + decoder * layer[Side.DECODER]
        for (encoder, decoder), _ in found
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0
    assert len(set(costs)) > DEPTH  # and not all or nothing


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_nothing_that_fits_computes_less_twice(share: float) -> None:
    model, batch = deep(), micro_batch(FULL)
    counts = count(model)

    def cost(one: Model) -> int:
        return sum(one.recomputed(side) * counts.layer[side] for side in Side)

    (_, most), (_, least) = chosen(1e9), chosen(0)
    budget_gib = least + share * (most - least)
    found, _ = fit(model, FULL, batch, budget_gib)
    for encoder, decoder in itertools.product(range(DEPTH + 1), repeat=2):
        layout = {
            Side.ENCODER: recomputing(model, Side.ENCODER, encoder),
            Side.DECODER: recomputing(model, Side.DECODER, decoder),
        }
        other = dataclasses.replace(model, checkpointing=layout)
        peak = follow(other, FULL, counts, batch).peak
        assert needed_gib(peak, on_gpu=False) > budget_gib or cost(other) >= cost(found)


@pytest.mark.parametrize(("every", "plain"), [(0, 0), (1, 0), (2, 1), (4, 3), (3, 5)])
def test_a_stack_keeps_what_the_estimate_counts(every: int, plain: int) -> None:
    """Byte by byte, by saved-tensor hooks; random states apart, which are no saved tensors."""
    model = plan_of(encoder_layers=5, dropout=0.1)
    shape = model.layers[Side.ENCODER]
    layers = [EncoderLayer(shape, model.scheme, Place(Side.ENCODER, n)) for n in range(5)]
    batch = micro_batch(dataclasses.replace(TRAINING, max_tokens=64, gpus=0), 16)
    mask = torch.ones(4, 1, 1, 16, dtype=torch.bool)
    mask[0, ..., 0] = False
    apart = {p.untyped_storage().data_ptr() for layer in layers for p in layer.parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    checkpointing = ActivationCheckpointing(every, plain)
    x = torch.randn(4, 16, shape.embed_dim, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run_layers(layers, x, lambda layer, h: layer(h, mask), checkpointing)
    walk = Walk(model, TRAINING, count(model), batch)
    again = checkpointing.recomputed(5)
    states = (-(-again // every) if again else 0) * (5056 + 16)
    layout = {**model.checkpointing, Side.ENCODER: checkpointing}
    assert walk.layers(Side.ENCODER, layout) - states == sum(size for size, _ in kept.values())


def arguments(*words: str) -> Any:
    """fairseq-train's view of a small training."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in small(dropout=0.2).items()]
    given += ["--arch=deepnet_transformer", "--encoder-layers=6", "--decoder-layers=6", "--cpu"]
    given += ["--optimizer=adam", "--criterion=label_smoothed_cross_entropy"]
    return fairseq_options.parse_training(["DATA", *given, *words])


def built(*words: str) -> Any:
    torch.manual_seed(1)
    args = arguments("--max-tokens=4096", *words)
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, VocabularyTask(4 + SYMBOLS))


def started(batch: Any, *words: str) -> Any:
    """A model that has begun its training."""
    model = built(*words)
    model.train()(**batch)
    return model


def budget(share: float) -> str:
    """--checkpoint-memory between what the small training needs at least and at most."""
    model = plan_of(encoder_layers=6, decoder_layers=6, dropout=0.2)
    needed = [fit(model, FULL, micro_batch(FULL), gib)[1] for gib in (0, 1e9)]
    return f"--checkpoint-memory={needed[0] + share * (needed[1] - needed[0])}"


@pytest.mark.parametrize(
    "more", [[], ["--checkpoint-activations-every=2"], ["--checkpoint-activations"]]
)
def test_what_is_chosen_changes_neither_loss_nor_gradient(
    more: list[str], batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for words in ([], [budget(0.4), *more]):
        model = built(*words).train()
        torch.manual_seed(5)
        with caplog.at_level(logging.INFO):
            loss = model(**batch)[0].log_softmax(-1).square().mean()
            model(**batch)  # not settled, nor told, again
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for plain, checkpointed in zip(*found, strict=True):
        assert torch.equal(plain, checkpointed)
    (line,) = [r.getMessage() for r in caplog.records if "activation checkpointing" in r.message]
    assert " of 6 layers plain, the rest in segments of " in line
    given = float(budget(0.4).partition("=")[2])
    assert line.endswith(f" of {given:.5g} GiB at 4,096 tokens)")
    assert 0 < model.encoder.checkpointing.plain < 6
    assert model.encoder.checkpointing.every == (
        2 if "--checkpoint-activations-every=2" in more else 1
    )


def test_too_little_memory_is_warned_of_and_all_layers_are_recomputed(
    batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = started(batch, "--checkpoint-memory=0.1")
    assert model.encoder.checkpointing.recomputed(6) == 6
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "--checkpoint-memory 0.1 is too little" in warning
    assert "--max-tokens" in warning


@pytest.mark.parametrize(("free", "held", "again"), [(80, 0, 0), (1, 0, 6), (1, 79, 0)])
def test_auto_takes_what_a_gpu_has_free_and_what_torch_holds_of_it(
    free: int, held: int, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: held * GIB)
    args = arguments("--max-tokens=4096", "--checkpoint-memory=auto")
    memory = memory_of(args, free_on_gpu)
    assert memory is not None
    assert memory == pytest.approx(0.9 * (free + held))
    model = built("--checkpoint-memory=auto")
    stacks = {Side.ENCODER: model.encoder, Side.DECODER: model.decoder}
    choose(args, stacks, on_gpu=True, memory=memory)
    assert model.decoder.checkpointing.recomputed(6) == again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checkpoint-memory=lots", "--max-tokens=64"], "--checkpoint-memory lots: give GiB"),
        (["--checkpoint-memory=0", "--max-tokens=64"], "--checkpoint-memory 0: give GiB"),
        (["--checkpoint-memory=nan", "--max-tokens=64"], "--checkpoint-memory nan: give GiB"),
        (["--checkpoint-memory=8", "--batch-size=4"], "needs --max-tokens"),
        (["--checkpoint-memory=8", "--max-tokens=64", "--optimizer=lamb"], "--optimizer lamb"),
        (["--checkpoint-memory=8", "--max-tokens=64", "--amp"], "--amp is not covered"),
        (["--checkpoint-memory=8", "--max-tokens=64", "--store-ema"], "--store-ema is not covered"),
    ],
    ids=str,
)
def test_a_memory_that_cannot_be_kept_is_refused_while_options_are_read(
    words: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        arguments(*words)


def test_a_plan_shows_what_training_would_choose() -> None:
    options: dict[str, configs.Value] = {
        "arch": "deepnet_transformer_tiny",
        **{"encoder-layers": 50, "decoder-layers": 50, "max-tokens": 4096},
        **{"criterion": "label_smoothed_cross_entropy", "optimizer": "adam"},
    }

    def plan(length: int = 32, **more: configs.Value) -> Any:
        more = {name.replace("_", "-"): value for name, value in more.items()}
        return estimate(configs.Config("test", options | more, {}), 0, 16, 1, 8000, length)

    plain, thrifty = plan(), plan(checkpoint_activations_every="auto")
    budget_gib = (plain.needed_gib + thrifty.needed_gib) / 2
    between = plan(checkpoint_memory=budget_gib)
    assert thrifty.needed_gib < between.needed_gib < plain.needed_gib
    assert plain.seconds_per_update < between.seconds_per_update < thrifty.seconds_per_update
    assert plan(checkpoint_memory="auto").model.checkpointing == thrifty.model.checkpointing
    # neither --length nor --batch-size, which the longest batches do not reach, makes it another
    short, long = (
        plan(checkpoint_memory=budget_gib, **{"attention-dropout": 0.1}, length=length)
        for length in (32, 256)
    )
    assert short.model.checkpointing == long.model.checkpointing
    few = plan(checkpoint_memory=budget_gib, batch_size=8)
    assert few.model.checkpointing == between.model.checkpointing
    assert few.needed_gib == between.needed_gib
