"""Training without the padding of the target side: the same numbers from fewer positions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.modules import TransformerLayer, Unpadded, positions
from fairseq_deepnet.monitoring.instruments import ACTIVATIONS, Activations
from fairseq_deepnet.schemes import NormPlacement, Stream
from tests.support.models import VARIANTS, BuildModel, loss_of, matrix, stir

PADDING = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 0]]).bool()


@pytest.fixture
def any_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all padding out, however narrow the model is."""
    monkeypatch.setattr(positions, "WORTH_IT", 0)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions each layer's feed-forward was given."""
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


def test_padding_comes_back_as_zeros_and_the_rest_as_it_was() -> None:
    x, kept = torch.randn(3, 4, 5), ~PADDING.unsqueeze(-1)
    taken = Unpadded(PADDING).take(x)
    assert taken.shape == (8, 5)
    assert torch.equal(Unpadded(PADDING).restore(taken), x * kept)
    spread = Unpadded(PADDING).spread(taken)
    assert torch.equal(spread * kept, x * kept)
    assert torch.equal(spread[1, 2], x[1, 1])  # padding holds its own sentence's last position


def test_gradients_of_padding_are_zero_and_the_rest_arrives() -> None:
    x, grad = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 4, 5)
    batch, kept = Unpadded(PADDING), ~PADDING.unsqueeze(-1)
    batch.take(x).backward(batch.take(grad))
    assert torch.equal(x.grad, grad * kept)  # type: ignore[arg-type]
    rows = torch.randn(8, 5, requires_grad=True)
    batch.spread(rows).backward(grad * kept)
    assert torch.equal(rows.grad, batch.take(grad))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("channels", "padding", "pays"),
    [(512, 0.05, True), (512, 0.03, False), (64, 0.4, True), (64, 0.3, False), (64, 1.0, False)],
)
def test_padding_is_left_out_where_that_pays(channels: int, padding: float, pays: bool) -> None:
    tokens = torch.arange(1000).view(20, 50) < 1000 * padding
    assert (Unpadded.where_it_pays(tokens, channels) is not None) == pays


@pytest.mark.parametrize(
    "scheme", matrix(VARIANTS, "whole"), ids=lambda v: "-".join(filter(None, v))
)
def test_without_padding_loss_and_gradients_are_the_same(
    scheme: tuple[str, str],
    model_builder: BuildModel,
    batch: Any,
    any_padding: None,
    rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_builder(residual_scheme=scheme[0], scheme_variant=scheme[1], dropout=0.0)
    stir(model.train())
    model(**batch)  # the pass in which Admin's weights are found
    rows.clear()
    without = loss_and_gradients(model, batch)
    real = int(batch["prev_output_tokens"].ne(1).sum())
    assert rows[-1] == real < batch["prev_output_tokens"].numel()
    monkeypatch.setattr(positions, "WORTH_IT", 10**9)
    for one, other in zip(without, loss_and_gradients(model, batch), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    assert rows[-1] == batch["prev_output_tokens"].numel()


@pytest.mark.parametrize(
    "scheme", matrix(VARIANTS, "whole"), ids=lambda v: "-".join(filter(None, v))
)
def test_the_monitor_sees_the_same_without_padding(
    scheme: tuple[str, str], model_builder: BuildModel, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Pre-LN's streams, DLCL's combinations and NormFormer's inner norms, too."""
    model = model_builder(residual_scheme=scheme[0], scheme_variant=scheme[1], dropout=0.0)
    stir(model.train())
    model(**batch)  # the pass in which Admin's weights are found
    placement = type(model.encoder.scheme).norm
    watch = Activations(model, find_stacks(model), placement, ACTIVATIONS)
    found = []
    for least in (0, 10**9):
        monkeypatch.setattr(positions, "WORTH_IT", least)
        watch.arm()
        loss_and_gradients(model, batch)
        found.append(watch.collect())
        watch.disarm()
    has_norms = placement is not NormPlacement.NONE
    assert set(found[1]) == {*(ACTIVATIONS if has_norms else ACTIVATIONS[:2])}
    for quantity, sides in found[1].items():
        for side, parts in sides.items():
            for part, values in parts.items():
                assert found[0][quantity][side][part] == pytest.approx(values, rel=1e-3)
