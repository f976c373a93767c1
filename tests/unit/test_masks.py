"""Masks against their definition, and synchronisation with the device."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_deepnet.models.encoder import SchemeStack
from fairseq_deepnet.modules import attention
from fairseq_deepnet.modules.positions import Unpadded, target_mask
from tests.support.models import build_model

PADDINGS = torch.tensor(list(product([False, True], repeat=4)))
"""All patterns of padding in four positions."""
LAYOUTS = {
    "left": [[1, 1, 1, 2, 5, 6], [2, 5, 6, 7, 8, 9]],
    "within": [[2, 5, 1, 1, 7, 9], [2, 5, 6, 7, 1, 1]],
}
"""Targets with padding (1) that the causal mask does not hide."""


def seen(padding: list[bool], query: int, full_context: bool) -> list[bool]:
    """Return the keys a position may attend to: words, or itself if there are none."""
    reach = len(padding) if full_context else query + 1
    words = [key < reach and not padding[key] for key in range(len(padding))]
    return words if any(words) else [key == query for key in range(len(padding))]


@pytest.mark.parametrize("full_context", [False, True], ids=["causal", "full"])
def test_a_position_attends_to_words_or_to_itself_without_words(full_context: bool) -> None:
    mask, causal = target_mask(PADDINGS, full_context)
    assert mask is not None
    assert not causal
    for padding, allowed in zip(PADDINGS.tolist(), mask[:, 0].tolist(), strict=True):
        expected = [seen(padding, query, full_context) for query in range(4)]
        assert allowed == expected, padding


def test_there_is_a_mask_only_if_a_word_could_attend_to_padding() -> None:
    for padding in PADDINGS:
        real = (~padding).nonzero()[:, 0].tolist()
        inside = any(padding[: max(real, default=0)])
        mask, causal = target_mask(padding[None])
        assert (mask is not None, causal) == (inside, not inside), padding
        mask, causal = target_mask(padding[None], full_context=True)
        assert (mask is not None, causal) == (bool(padding.any()), False), padding


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_before_a_word_is_handled_as_in_stock_fairseq(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word-level text may contain the word <pad>, which is followed by another word."""
    monkeypatch.setattr("fairseq_deepnet.modules.positions.WORTH_IT", 0)
    stock = build_model("transformer").train()
    ours = build_model(residual_scheme="post-ln", init="stock", seed=2).train()
    ours.load_state_dict(stock.state_dict())
    target = torch.tensor(LAYOUTS[layout])
    source = torch.arange(4, 14).view(2, 5)
    from_here = target.ne(1).cumsum(1).gt(0)  # stock fairseq returns NaN before the first word
    up_to_here = target.ne(1).flip(1).cumsum(1).flip(1).gt(0)
    results = []
    for model in (stock, ours):
        logits = model(source, torch.tensor([5, 5]), target)[0][from_here & up_to_here]
        logits.logsumexp(1).sum().backward()
        results.append([logits.detach(), model.encoder.layers[0].fc1.weight.grad])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


# Sinusoidal positions read the batch's length from a host tensor.
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}


class Waits(TorchDispatchMode):
    """Counts synchronising operations before and after the first matrix product."""

    ASKING = ("_local_scalar_dense", "nonzero", "equal", "masked_select")
    before, after, is_busy = 0, 0, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.is_busy |= name in ("mm", "addmm", "bmm")
        if name in self.ASKING:
            self.before += not self.is_busy
            self.after += self.is_busy
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("arch", ["deepnet_transformer", "deepnet_transformer_lm"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
def test_no_operation_synchronises_after_the_first_product(
    arch: str, padded: bool, packed: bool, batch: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if packed:
        monkeypatch.setattr(SchemeStack, "packs", lambda *_: True)
        monkeypatch.setattr(attention, "varlen_attn", lambda query, *_, **__: query)
    else:
        monkeypatch.setattr(Unpadded, "where_it_pays", lambda *_: None)
    if not padded:
        batch = {name: tokens.clamp_min(2) for name, tokens in batch.items()}
    model = build_model(arch, **LEARNED).train()
    if arch == "deepnet_transformer_lm":
        inputs: dict[str, Any] = {"src_tokens": batch["prev_output_tokens"]}
    else:
        inputs = batch
    with Waits() as waits:  # type: ignore[no-untyped-call]
        loss = model(**inputs)[0].sum()
    assert waits.before > 0
    assert waits.after == 0
    loss.backward()


class Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


@torch.no_grad()
def test_layers_do_not_convert_masks(
    batch: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unpadded, "where_it_pays", lambda *_: None)
    full = {name: tokens.clamp_min(2) for name, tokens in batch.items()}
    differences = []
    for layers in (2, 4):
        model = build_model(encoder_layers=layers, decoder_layers=layers).eval()
        counts = []
        for sample in (batch, full):
            with Operations() as operations:  # type: ignore[no-untyped-call]
                model(**sample)
            counts.append(operations.count)
        differences.append(counts[0] - counts[1])
    assert differences[0] == differences[1] > 0
