"""Incremental decoding against full decoding, and the work that it shares."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_deepnet.models.decoder import DECODING_KEY
from fairseq_deepnet.models.encoder import hypotheses_per_sentence
from fairseq_deepnet.modules.decoding import Decoding
from fairseq_deepnet.modules.joined_projection import joined_part
from tests.support.models import VARIANTS, build_model, matrix, stir

Batch = dict[str, Tensor]
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}
LM = "deepnet_transformer_lm"


class Search:
    """Simulated beam search that extends hypotheses at random."""

    def __init__(self, model: Any, sentences: int, beam: int, source: Tensor | None = None) -> None:
        self.model, self.beam, self.source = model, beam, source
        self.generator = torch.Generator().manual_seed(4)
        self.state: dict[str, Any] = {}
        self.tokens = torch.full((sentences * beam, 1), 2)
        self.encoded: Any = None
        if source is not None:
            self.encoded = model.encoder(source, source.ne(1).sum(1))
            self.expand(torch.arange(sentences).repeat_interleave(beam))

    def expand(self, order: Tensor) -> None:
        self.source = None if self.source is None else self.source[order]
        if self.encoded is not None:
            self.encoded = self.model.encoder.reorder_encoder_out(self.encoded, order)

    def step(self) -> Tensor:
        """Return log-probabilities [R, V] of the next token."""
        inputs = {} if self.encoded is None else {"encoder_out": self.encoded}
        out = self.model.decoder(self.tokens, incremental_state=self.state, **inputs)
        return self.model.get_normalized_probs(out, log_probs=True)[:, 0]

    def full(self) -> Tensor:
        """Return the same without a cache."""
        inputs = () if self.source is None else (self.source, self.source.ne(1).sum(1))
        out = self.model(*inputs, self.tokens)
        return self.model.get_normalized_probs(out, log_probs=True)[:, -1]

    def extend(self, order: Tensor) -> None:
        """Make row i continue row order[i], and append a random symbol to each row."""
        self.model.decoder.reorder_incremental_state_scripting(self.state, order)
        self.expand(order)
        new = torch.randint(4, 60, (len(order), 1), generator=self.generator)
        self.tokens = torch.cat([self.tokens[order], new], dim=1)

    def beams(self, ending: int = 0) -> Tensor:
        """Return a row order that permutes beams and ends some sentences."""
        sentences = len(self.tokens) // self.beam
        remaining = torch.randperm(sentences, generator=self.generator)[ending:].sort().values
        within = torch.randint(0, self.beam, (len(remaining), self.beam), generator=self.generator)
        return (remaining[:, None] * self.beam + within).flatten()

    @property
    def decoding(self) -> Decoding:
        decoding: Decoding = self.state[DECODING_KEY]
        return decoding


def sources(sentences: int) -> Tensor:
    """Return source tokens [B, S] of various lengths, padded on the left."""
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randint(4, 60, (sentences, 19), generator=generator)
    tokens[:, -1] = 2
    for row, length in enumerate(torch.randint(2, 20, (sentences,), generator=generator).tolist()):
        tokens[row, : 19 - length] = 1
    return tokens


def build(arch: str, **options: Any) -> Any:
    model = build_model(arch, **({"max_target_positions": 80} if arch == LM else {}), **options)
    stir(model)
    return model.eval()


@pytest.mark.parametrize("arch", ["deepnet_transformer", LM])
@torch.no_grad()
def test_rows_keep_their_histories_when_sentences_end_and_beams_are_reordered(arch: str) -> None:
    search = Search(build(arch), 8, 3, None if arch == LM else sources(8))
    for step in range(24):
        torch.testing.assert_close(search.step(), search.full(), **TOLERANCE)
        search.extend(search.beams(ending=step % 4 == 3))
    # a language model does not know the beam
    cache = search.decoding.cache
    assert (cache.sentences, cache.hypotheses_per_sentence) == ((6, 1) if arch == LM else (2, 3))


@pytest.mark.parametrize(("scheme", "variant"), matrix(VARIANTS))
@torch.no_grad()
def test_incremental_decoding_with_any_scheme_equals_full_decoding(
    scheme: str, variant: str | None
) -> None:
    model = build("deepnet_transformer", residual_scheme=scheme, scheme_variant=variant)
    search = Search(model, 4, 3, sources(4))
    for _ in range(6):
        torch.testing.assert_close(search.step(), search.full(), **TOLERANCE)
        search.extend(search.beams())


@torch.no_grad()
def test_the_source_is_projected_once_per_sentence() -> None:
    search, seen = Search(build("deepnet_transformer"), 3, 5, sources(3)), []
    for layer in search.model.decoder.layers:
        layer.encoder_attn.k_proj.register_forward_hook(
            lambda module, inputs, output: seen.append(output.size(0))
        )
    for _ in range(4):
        search.step()
        search.extend(search.beams())
    assert seen == [int(sources(3).ne(1).sum())] * len(search.model.decoder.layers)


@pytest.mark.parametrize("arch", ["deepnet_transformer", LM])
@torch.no_grad()
def test_single_hypotheses_may_be_repeated_and_dropped(arch: str) -> None:
    search = Search(build(arch), 6, 1, None if arch == LM else sources(6))
    for rows in (5, 7, 7, 3):
        torch.testing.assert_close(search.step(), search.full(), **TOLERANCE)
        search.extend(torch.randint(0, len(search.tokens), (rows,), generator=search.generator))
    torch.testing.assert_close(search.step(), search.full(), **TOLERANCE)


@torch.no_grad()
def test_rows_of_one_sentence_must_stay_together() -> None:
    search = Search(build("deepnet_transformer"), 2, 2, sources(2))
    search.step()
    for order in ([0, 2, 1, 3], [0, 1, 2]):
        with pytest.raises(ValueError, match="each 2 adjacent rows must continue one sentence"):
            search.model.decoder.reorder_incremental_state_scripting(
                search.state, torch.tensor(order)
            )


@pytest.mark.parametrize("retain", [False, True], ids=["plain", "retain dropout"])
@torch.no_grad()
def test_the_first_step_runs_once_per_sentence_unless_dropout_is_active(retain: bool) -> None:
    model = build("deepnet_transformer", dropout=0.1)
    for layer in model.decoder.layers:
        layer.dropout_module.apply_during_inference = retain
    rows: list[int] = []
    model.decoder.layers[0].fc1.register_forward_hook(lambda m, i, out: rows.append(len(out)))
    search = Search(model, 4, 3, sources(4))
    assert len(search.step()) == 12
    search.extend(search.beams())
    search.step()
    assert rows == ([12, 12] if retain else [4, 12])


@torch.no_grad()
def test_a_steps_outputs_may_be_modified_in_place() -> None:
    """fairseq's generator divides logits by the temperature."""
    model = build("deepnet_transformer")
    search = Search(model, 4, 3, sources(4))
    x, extra = model.decoder(
        search.tokens, search.encoded, search.state, alignment_layer=1, features_only=True
    )
    x.div_(2)
    extra["attn"][0].div_(2)
    search.extend(search.beams(ending=1))
    torch.testing.assert_close(search.step(), search.full(), **TOLERANCE)


@torch.no_grad()
def test_alignments_follow_rows_whose_sentences_moved() -> None:
    model = build("deepnet_transformer")
    search = Search(model, 6, 2, sources(6))
    for ending in (1, 1, 1, 0):
        search.step()
        search.extend(search.beams(ending))
    _, actual = model.decoder(search.tokens, search.encoded, search.state, alignment_layer=1)
    lengths = search.source.ne(1).sum(1)
    _, full = model(search.source, lengths, search.tokens, alignment_layer=1)
    torch.testing.assert_close(actual["attn"][0], full["attn"][0][:, -1:], **TOLERANCE)


@torch.no_grad()
def test_the_encoder_output_is_stored_once_per_sentence(batch: Batch) -> None:
    encoder = build_model().eval().encoder
    encoded = encoder(batch["src_tokens"], batch["src_lengths"])
    repeated = encoder.reorder_encoder_out(encoded, torch.arange(3).repeat_interleave(2))
    assert repeated["encoder_out"][0] is encoded["encoder_out"][0]
    assert encoder.reorder_encoder_out(repeated, torch.tensor([1, 1, 2, 2, 5, 4])) is repeated
    swapped = encoder.reorder_encoder_out(repeated, torch.tensor([2, 3, 0, 0, 5, 4]))
    assert hypotheses_per_sentence(swapped) == 2
    assert torch.equal(swapped["encoder_out"][0], encoded["encoder_out"][0][:, [1, 0, 2]])


@pytest.mark.parametrize("order", [[2, 3, 0, 0, 5, 4], [0, 2, 3, 1]], ids=["grouped", "torn"])
@torch.no_grad()
def test_full_decoding_uses_the_reordered_encoder_output(batch: Batch, order: list[int]) -> None:
    model = build_model().eval()
    source, rows = batch["src_tokens"], torch.arange(3).repeat_interleave(2)
    encoded = model.encoder(source, batch["src_lengths"])
    for new_order in (rows, torch.tensor(order)):
        encoded = model.encoder.reorder_encoder_out(encoded, new_order)
    source = source[rows[order]]
    tokens = batch["prev_output_tokens"][:1].expand(len(order), -1)
    expected = model(source, source.ne(1).sum(1), tokens)[0]
    torch.testing.assert_close(model.decoder(tokens, encoded)[0], expected, **TOLERANCE)


@torch.no_grad()
def test_products_exclude_padding_in_generation(batch: Batch) -> None:
    """Check the encoder's products and the decoder's projections of the encoder's output."""
    model = build("deepnet_transformer")
    model.make_generation_fast_()
    rows: set[int] = set()
    for layer in (*model.encoder.layers, *(module.encoder_attn for module in model.decoder.layers)):
        for name in ("fc1", "fc2", "k_proj", "v_proj"):
            if hasattr(layer, name):
                getattr(layer, name).register_forward_hook(
                    lambda module, inputs, out: rows.add(out.flatten(0, -2).size(0))
                )
    encoded = model.encoder(batch["src_tokens"], batch["src_lengths"])
    model.decoder(batch["prev_output_tokens"][:, :1], encoded, {})
    assert rows == {int(batch["src_tokens"].ne(1).sum())}


@torch.no_grad()
def test_preparing_for_inference_moves_weights_without_changing_them(batch: Batch) -> None:
    model = build("deepnet_transformer")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(**batch)[0]
    model.make_generation_fast_()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(model(**batch)[0], expected, **TOLERANCE)
    attention = model.decoder.layers[0].self_attn
    parts = [module.weight for module in (attention.q_proj, attention.k_proj, attention.v_proj)]
    joined = joined_part(parts)
    assert joined is not None
    assert torch.equal(joined, torch.cat(parts))


@pytest.mark.parametrize("arch", ["deepnet_transformer", LM])
@torch.no_grad()
def test_a_model_generates_in_bf16_on_request(arch: str) -> None:
    for bf16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        model = build(arch)
        common = SimpleNamespace(bf16=bf16)
        model.prepare_for_inference_(SimpleNamespace(common=common, generation=SimpleNamespace()))
        search = Search(model, 2, 2, None if arch == LM else sources(2))
        assert model.decoder.layers[0].fc1.weight.dtype is dtype
        torch.testing.assert_close(search.step(), search.full(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("change", ["double", "new weights", "another map"])
@torch.no_grad()
def test_decoding_uses_weights_that_change_after_preparation(change: str) -> None:
    model = build("deepnet_transformer")
    model.make_generation_fast_()
    if change == "double":
        model.double()
    elif change == "new weights":
        for weight in model.decoder.parameters():
            weight.data = weight * 1.1
    else:
        query = model.decoder.layers[0].self_attn.q_proj
        model.decoder.layers[0].self_attn.q_proj = torch.nn.Sequential(query, torch.nn.Tanh())
    search = Search(model, 3, 2, sources(3))
    search.step()
    search.extend(search.beams())
    torch.testing.assert_close(search.step(), search.full(), **TOLERANCE)
