"""Our layers against fairseq's with equal functions."""

from typing import Any

import pytest
import torch
from fairseq.search import DiverseBeamSearch as Search
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from tests.support.models import assert_same_training, build_model, loss_of

Batch = dict[str, Tensor]

# stock options that change the computation
VARIANTS: list[dict[str, Any]] = [
    {},
    {"share_all_embeddings": True},
    {"encoder_embed_dim": 48, "decoder_embed_dim": 32},
    {"layernorm_embedding": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
    {"activation_fn": "gelu", "no_scale_embedding": True},
    {"decoder_output_dim": 24},
    {"no_token_positional_embeddings": True},
    {"encoder_layers": 1, "decoder_layers": 4},
    {"merge_src_tgt_embed": True},
    {"max_source_positions": 20, "max_target_positions": 30},
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_plain_schemes_equal_stock_fairseq(
    scheme: str, options: dict[str, Any], batch: Batch
) -> None:
    pre = {"encoder_normalize_before": scheme == "pre-ln"}
    pre["decoder_normalize_before"] = scheme == "pre-ln"
    stock = build_model("transformer", **pre, **options)
    ours = build_model(residual_scheme=scheme, init="stock", seed=2, **options)
    ours.load_state_dict(stock.state_dict(), strict=True)
    assert_same_training(ours, stock, lambda model: loss_of(model, batch))
    stock.load_state_dict(ours.state_dict(), strict=True)


def test_attention_weights_and_masks_for_alignments_equal_stock_fairseqs(batch: Batch) -> None:
    stock = build_model("transformer").eval()
    ours = build_model(residual_scheme="post-ln", init="stock", seed=2).eval()
    ours.load_state_dict(stock.state_dict())
    real = batch["prev_output_tokens"].ne(1)
    for layer, heads in ((0, None), (1, 2)):
        asked = {"alignment_layer": layer, "alignment_heads": heads}
        theirs, mine = (model(**batch, **asked)[1]["attn"][0][real] for model in (stock, ours))
        torch.testing.assert_close(mine, theirs)
    assert ours(**batch)[1]["attn"] == [None]
    encoded = stock.encoder(batch["src_tokens"], batch["src_lengths"])
    theirs = stock.decoder(batch["prev_output_tokens"], encoded, full_context_alignment=True)[0]
    torch.testing.assert_close(ours(**batch, full_context_alignment=True)[0][real], theirs[real])


def search(models: list[Any], prefix: Tensor | None, **options: Any) -> list[list[Any]]:
    """Return the tokens of all hypotheses for eight sentences from fairseq's beam search."""
    generator = torch.Generator().manual_seed(4)
    source = torch.randint(4, 60, (8, 7), generator=generator)
    source[::2, :3] = 1
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    dictionary = models[0].decoder.dictionary
    generated = SequenceGenerator(models, dictionary, max_len_b=25, **options).generate(
        models, sample, prefix_tokens=prefix
    )
    return [[hypothesis["tokens"].tolist() for hypothesis in beam] for beam in generated]


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("ensemble", [1, 2])
@pytest.mark.parametrize("prefixed", [False, True])
def test_beam_search_equals_stock_fairseqs(beam: int, ensemble: int, prefixed: bool) -> None:
    """Sentences end at different steps, and finished sentences leave the batch."""
    plain = {"residual_scheme": "post-ln", "init": "stock"}
    ours, stock = [], []
    for seed in range(ensemble):
        stock.append(build_model("transformer", seed=seed).eval())
        with torch.no_grad():  # larger weights and a likely end of sentence vary the hypotheses
            for parameter in stock[-1].parameters():
                parameter.mul_(1.6 if parameter.dim() > 1 else 1.0)
            stock[-1].decoder.output_projection.weight[2] *= 3
        ours.append(build_model(**plain).eval())
        ours[-1].load_state_dict(stock[-1].state_dict())
    prefix = torch.arange(8, 24).view(8, 2) if prefixed else None
    results = search(ours, prefix, beam_size=beam)
    assert results == search(stock, prefix, beam_size=beam)
    assert len({len(hypotheses[0]) for hypotheses in results}) > 1
    if beam > 1:
        diverse = Search(ours[0].decoder.dictionary, 2, 0.5)
        options = {"beam_size": 4, "search_strategy": diverse}
        assert search(ours, prefix, **options) == search(stock, prefix, **options)
