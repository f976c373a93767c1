"""Training without target-side padding: equal results from fewer positions."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.models.encoder import SchemeStack
from fairseq_deepnet.modules import attention, positions
from fairseq_deepnet.modules.layers import TransformerLayer
from fairseq_deepnet.modules.positions import Unpadded
from fairseq_deepnet.monitoring.instruments import ACTIVATIONS, Activations
from fairseq_deepnet.schemes import NormPlacement, Stream
from tests.support.models import VARIANTS, build_model, loss_of, matrix, stir

PADDING = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0]]).bool()


def reference_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    source_starts: Tensor,
    longest: int,
    longest_source: int,
    window_size: tuple[int, int],
) -> Tensor:
    """Compute torch.nn.attention.varlen.varlen_attn, which needs a GPU, sentence by sentence."""
    heads = []
    for sentence in range(len(starts) - 1):
        queries = slice(*starts[sentence : sentence + 2].tolist())
        keys = slice(*source_starts[sentence : sentence + 2].tolist())
        assert queries.stop - queries.start <= longest
        assert keys.stop - keys.start <= longest_source
        parts = (part.transpose(0, 1) for part in (query[queries], key[keys], value[keys]))
        causal = window_size == (-1, 0)
        heads.append(F.scaled_dot_product_attention(*parts, is_causal=causal).transpose(0, 1))
    return torch.cat(heads)


@pytest.fixture(params=["attention with padding", "varlen_attn"])
def packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run the decoder without padding except in attention, or both stacks without any padding."""
    monkeypatch.setattr(positions, "WORTH_IT", 0)
    if request.param == "varlen_attn":
        monkeypatch.setattr(attention, "varlen_attn", reference_varlen_attn)
        monkeypatch.setattr(SchemeStack, "packs", lambda *_: torch.is_grad_enabled())
    return bool(request.param == "varlen_attn")


def with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the model with padding from now on."""
    monkeypatch.setattr(positions, "WORTH_IT", 10**9)
    monkeypatch.setattr(SchemeStack, "packs", lambda *_: False)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of positions in each layer's feed-forward input."""
    seen: list[int] = []
    run = TransformerLayer.feed_forward

    def counting(layer: TransformerLayer, x: Stream) -> Tensor:
        first = x if isinstance(x, Tensor) else x[0]
        seen.append(first.shape[:-1].numel())
        return run(layer, x)

    monkeypatch.setattr(TransformerLayer, "feed_forward", counting)
    return seen


def loss_and_gradients(model: Any, batch: Any, loss: Any = loss_of) -> list[Tensor]:
    model.zero_grad()
    value = loss(model, batch)
    value.backward()
    return [value.detach(), *(p.grad for p in model.parameters())]


def test_padding_is_restored_as_zeros() -> None:
    x, is_real = torch.randn(3, 4, 5), ~PADDING.unsqueeze(-1)
    real = Unpadded(PADDING).take(x)
    assert real.shape == (8, 5)
    assert torch.equal(Unpadded(PADDING).restore(real), x * is_real)
    spread = Unpadded(PADDING).spread(real)
    assert torch.equal(spread * is_real, x * is_real)
    assert torch.equal(spread[1, 2], x[1, 1])  # padding repeats its sentence's last position


def test_gradients_of_padding_are_zero_and_others_exact() -> None:
    x, grad = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 4, 5)
    batch, is_real = Unpadded(PADDING), ~PADDING.unsqueeze(-1)
    batch.take(x).backward(batch.take(grad))
    assert torch.equal(x.grad, grad * is_real)  # type: ignore[arg-type]
    rows = torch.randn(8, 5, requires_grad=True)
    batch.spread(rows).backward(grad * is_real)
    assert torch.equal(rows.grad, batch.take(grad))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("channels", "padding", "pays"),
    [(512, 0.05, True), (512, 0.03, False), (64, 0.4, True), (64, 0.3, False), (64, 1.0, False)],
)
def test_padding_is_removed_if_training_is_faster(
    channels: int, padding: float, pays: bool
) -> None:
    tokens = torch.arange(1000).view(20, 50) < 1000 * padding
    assert (Unpadded.where_it_pays(tokens, channels) is not None) == pays


@pytest.fixture(params=matrix(VARIANTS, whole=True), ids=lambda v: "-".join(filter(None, v)))
def model(request: pytest.FixtureRequest, batch: Any) -> Any:
    """A model in training mode with this scheme; Admin has profiled."""
    scheme, variant = request.param
    model = build_model(residual_scheme=scheme, scheme_variant=variant, dropout=0.0)
    stir(model.train())
    model(**batch)
    return model


def test_loss_and_gradients_are_the_same_without_padding(
    model: Any, batch: Any, packed: bool, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = loss_and_gradients(model, batch)
    real = int(batch["prev_output_tokens"].ne(1).sum())
    assert rows[-1] == real < batch["prev_output_tokens"].numel()
    source = batch["src_tokens"]
    assert rows[0] == (source.ne(1).sum() if packed else source.numel())
    with_padding(monkeypatch)
    for actual, other in zip(without, loss_and_gradients(model, batch), strict=True):
        torch.testing.assert_close(actual, other, atol=2e-5, rtol=1e-4)
    assert rows[-1] == batch["prev_output_tokens"].numel()


def test_the_monitor_measures_the_same_without_padding(
    model: Any, batch: Any, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Include Pre-LN's streams, DLCL's combinations and NormFormer's inner norms."""
    placement = type(model.encoder.scheme).norm
    watch = Activations(model, find_stacks(model), placement, ACTIVATIONS)
    measured = []
    for prepare in (lambda _: None, with_padding):
        prepare(monkeypatch)
        watch.arm()
        loss_and_gradients(model, batch)
        measured.append(watch.collect())
        watch.disarm()
    has_norms = placement is not NormPlacement.NONE
    assert set(measured[1]) == {*(ACTIVATIONS if has_norms else ACTIVATIONS[:2])}
    for quantity, sides in measured[1].items():
        for side, parts in sides.items():
            for part, values in parts.items():
                assert measured[0][quantity][side][part] == pytest.approx(values, rel=1e-3)


def test_a_packed_decoder_accepts_the_output_of_an_encoder_without_gradients(
    batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model().eval()
    logits = model(**batch)[0]
    monkeypatch.setattr(SchemeStack, "packs", lambda *_: torch.is_grad_enabled())
    with torch.no_grad():
        encoder_out = model.encoder(batch["src_tokens"])
    torch.testing.assert_close(model.decoder(batch["prev_output_tokens"], encoder_out)[0], logits)
