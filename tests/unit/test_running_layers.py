"""Activation checkpointing and compiled layers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from fairseq_deepnet.modules.layers import RECOMPILATIONS, compile_layers
from fairseq_deepnet.modules.stack import ActivationCheckpointing, run_layers, thriftiest_segment
from fairseq_deepnet.schemes import SCHEMES
from tests.support.models import build_model, matrix, stir

LAYERS = 6


def losses_and_gradients(model: Any, batch: Any) -> list[torch.Tensor]:
    torch.manual_seed(5)  # recomputation must draw the same dropout masks
    output, _ = model(**batch)
    loss = output.log_softmax(-1).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


EVERY: list[dict[str, Any]] = [{"checkpoint_every": n} for n in ("4", "100", "auto")]
EVERY += [{"checkpoint_every": "2", "offload_activations": True}]
EACH: list[dict[str, Any]] = [{"checkpoint_activations": True}, {"offload_activations": True}]
CHECKPOINTING = [(scheme, options) for scheme in SCHEMES for options in EACH]
CHECKPOINTING += [("deepnorm", options) for options in EVERY]


@pytest.mark.parametrize(("scheme", "options"), matrix(CHECKPOINTING))
def test_checkpointing_changes_neither_loss_nor_gradient(
    scheme: str, options: dict[str, Any], batch: Any
) -> None:
    """The first training step, in which Admin profiles, is no exception."""
    shape = {"encoder_layers": LAYERS, "decoder_layers": LAYERS, "dropout": 0.2}
    gradients = []
    for more in ({}, options):
        model = build_model(residual_scheme=scheme, **shape, **more).train()
        stir(model)
        gradients.append(losses_and_gradients(model, batch))
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.equal(plain, checkpointed)


@pytest.mark.parametrize(("offload", "segments"), [(False, 0), (True, 3)])
def test_segment_inputs_are_offloaded_on_request(
    offload: bool, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[bool] = []

    def save_on_cpu(pin_memory: bool) -> AbstractContextManager[None]:
        moved.append(pin_memory)
        return nullcontext()

    monkeypatch.setattr("fairseq_deepnet.modules.stack.save_on_cpu", save_on_cpu)
    layers = [torch.nn.Linear(4, 4) for _ in range(LAYERS)]
    checkpointing = ActivationCheckpointing(every=2, offload=offload)
    run_layers(layers, torch.ones(2, 3, 4), lambda layer, h: layer(h), checkpointing)
    assert moved == [torch.cuda.is_available()] * segments


@pytest.mark.parametrize(
    ("every", "ran"), [(0, "abcde"), (1, "abcde" + "edcba"), (2, "abcde" + "e" + "cd" + "ab")]
)
def test_backward_recomputes_segments_from_the_top(every: int, ran: str) -> None:
    order: list[str] = []

    def apply(layer: str, x: torch.Tensor) -> torch.Tensor:
        order.append(layer)
        return x.sin()

    checkpointing = ActivationCheckpointing(every)
    top, _ = run_layers("abcde", torch.ones(2, requires_grad=True), apply, checkpointing)
    top.sum().backward()
    assert "".join(order) == ran


@pytest.mark.parametrize(("every", "segments"), [(1, 6), (2, 3), (4, 2), (6, 1)])
def test_one_input_per_segment_is_stored(every: int, segments: int, batch: Any) -> None:
    model = build_model(encoder_layers=LAYERS, checkpoint_every=str(every)).train()
    width = model.encoder.layers[0].fc1.in_features
    stored = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        stored.append(tensor)
        return tensor

    source = {name: batch[name] for name in ("src_tokens", "src_lengths")}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.encoder(**source)
    stream = (*source["src_tokens"].shape, width)
    storages = {t.untyped_storage().data_ptr() for t in stored if tuple(t.shape) == stream}
    assert len(storages) == segments


@pytest.mark.parametrize("layers", [1, 6, 50, 500, 1000])
@pytest.mark.parametrize("stored", [12.0, 19.0])
def test_the_thriftiest_segment_needs_the_least_memory(layers: int, stored: float) -> None:
    def memory(k: int) -> float:
        return -(-layers // k) + k * stored

    best = min(memory(k) for k in range(1, layers + 1))
    assert memory(thriftiest_segment(layers, stored)) <= 1.02 * best


def test_layers_with_hooks_and_layers_that_decode_are_not_compiled(
    batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def compiled(function: Any, **_: Any) -> Any:
        def run(layer: Any, *inputs: Any) -> Any:
            ran.append(type(layer).__name__)
            return function(layer, *inputs)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    compile_layers.cache_clear()
    model = build_model(encoder_layers=3, decoder_layers=2, compile=True).train()
    model(**batch)
    assert ran == ["EncoderLayer"] * 3 + ["DecoderLayer"] * 2
    ran.clear()
    handle = model.encoder.layers[1].fc1.register_forward_hook(lambda *_: None)
    model(**batch)
    assert ran.count("EncoderLayer") == 2
    handle.remove()
    ran.clear()
    model.eval()(**batch)
    assert not ran
    compile_layers.cache_clear()


@pytest.mark.slow
def test_a_compiled_stack_gives_the_same_gradients_from_one_compilation(batch: Any) -> None:
    from torch._dynamo.utils import counters

    shape = {"encoder_layers": 5, "decoder_layers": 5}
    plain = losses_and_gradients(build_model(**shape).train(), batch)
    counters.clear()
    compiled = losses_and_gradients(build_model(**shape, compile=True).train(), batch)
    assert counters["stats"]["unique_graphs"] == 2  # an encoder layer and a decoder layer
    for a, b in zip(plain, compiled, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_admins_profile_runs_outside_compiled_code(batch: Any) -> None:
    from torch._dynamo.utils import counters

    shape = {"encoder_layers": 3, "decoder_layers": 3, "residual_scheme": "admin"}
    model = build_model(**shape, compile=True).train()
    counters.clear()
    model(**batch)[0].sum().backward()
    assert counters["stats"]["unique_graphs"] == 2  # an encoder layer and a decoder layer
    assert not counters["graph_break"]


@pytest.mark.slow
def test_each_kind_of_batch_is_compiled_once(batch: Any) -> None:
    """Code depends on padding, a batch size of 1 and a target length of 1."""
    from torch._dynamo.utils import counters

    model = build_model(encoder_layers=3, decoder_layers=3, compile=True).train()
    single = {name: tensor[:1] for name, tensor in batch.items()}
    short = {**batch, "prev_output_tokens": batch["prev_output_tokens"][:, :1]}
    both = {name: tensor[:1] for name, tensor in short.items()}
    counters.clear()
    graphs = []
    for _ in range(2):
        for some in (batch, single, short, both):
            for tokens in (
                some["src_tokens"],
                some["src_tokens"].clamp(min=4),
            ):  # with and without padding
                model(**{**some, "src_tokens": tokens})[0].sum().backward()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1]
    assert 8 < graphs[0] < RECOMPILATIONS  # 8 is torch's default limit
