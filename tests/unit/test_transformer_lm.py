"""The language model against fairseq's transformer_lm, also in beam search."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.tools.standalone import VocabularyTask
from tests.support.models import SYMBOLS, assert_same_training, build_model, log_probs, sentences

LM = "deepnet_transformer_lm"
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}
# options that change the computation
VARIANTS: list[dict[str, Any]] = [
    {},
    {"share_decoder_input_output_embed": True},
    {"activation_fn": "gelu", "decoder_learned_pos": True, "layernorm_embedding": True},
    {"decoder_input_dim": 24, "decoder_output_dim": 20, "no_scale_embedding": True},
    {"no_token_positional_embeddings": True},
]


def build_lm(**options: Any) -> Any:
    return build_model(LM, **({"max_target_positions": 80} | options))


def build_stock(ours: Any, seed: int, normalize_before: bool) -> Any:
    """Build fairseq's transformer_lm with our model's options."""
    args = Namespace(**vars(ours.args) | {"decoder_normalize_before": normalize_before})
    torch.manual_seed(seed)
    return TransformerLanguageModel.build_model(args, VocabularyTask(4 + SYMBOLS))


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_plain_schemes_equal_stock_fairseq_from_the_same_seed(
    scheme: str, options: dict[str, Any]
) -> None:
    ours = build_lm(residual_scheme=scheme, init="stock", seed=3, **options)
    stock = build_stock(ours, 3, normalize_before=scheme == "pre-ln")
    assert ours.state_dict().keys() == stock.state_dict().keys()
    for name, value in stock.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    real = sentences().ne(1)
    assert_same_training(ours, stock, lambda m: log_probs(m, sentences())[real].square().mean())


@torch.no_grad()
def test_an_adaptive_softmax_equals_fairseqs() -> None:
    ours = build_lm(
        residual_scheme="post-ln", init="stock", seed=3, adaptive_softmax_cutoff="20,40"
    )
    stock = build_stock(ours, 3, normalize_before=False)
    sample = {"target": sentences()}
    mine, theirs = (
        model.eval().get_normalized_probs(model(sentences()), log_probs=True, sample=sample)
        for model in (ours, stock)
    )
    torch.testing.assert_close(mine[sentences().ne(1)], theirs[sentences().ne(1)], **TOLERANCE)


def generate(model: Any, prefix: Tensor, **options: Any) -> list[list[list[int]]]:
    """Return all hypotheses of fairseq's beam search that continue prefix [B, T]."""
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": prefix.ne(1).sum(1)}}
    generator = SequenceGenerator([model], model.decoder.dictionary, max_len_b=20, **options)
    actual = generator.generate([model], sample, prefix_tokens=prefix)
    return [[hypothesis["tokens"].tolist() for hypothesis in beam] for beam in actual]


@pytest.mark.parametrize("beam", [1, 4])
def test_beam_search_equals_stock_fairseqs(beam: int) -> None:
    ours = build_lm(residual_scheme="post-ln", init="stock", seed=3).eval()
    stock = build_stock(ours, 3, normalize_before=False).eval()
    with torch.no_grad():  # larger weights and a likely end of sentence vary the hypotheses
        for parameter in stock.parameters():
            parameter.mul_(1.6 if parameter.dim() > 1 else 1.0)
        stock.decoder.output_projection.weight[2] *= 3
    ours.load_state_dict(stock.state_dict())
    prefix = torch.arange(8, 24).view(8, 2)
    generate(ours, prefix, beam_size=2)  # fairseq announces no beam of 1 afterwards
    actual = generate(ours, prefix, beam_size=beam)
    assert actual == generate(stock, prefix, beam_size=beam)
    assert len({len(hypothesis) for beam in actual for hypothesis in beam}) > 1
    assert all(beam[0][:2] == row.tolist() for beam, row in zip(actual, prefix, strict=True))


def test_a_fused_language_model_needs_the_target_dictionary() -> None:
    lm, words = build_lm(), VocabularyTask(4 + SYMBOLS).target_dictionary
    task, args = TranslationTask(None, words, words), Namespace(lm_path="lm.pt")
    task.build_generator([lm], args, extra_gen_cls_kwargs={"lm_model": lm})
    lm.decoder.dictionary = Dictionary()
    for fused in ({"lm_model": lm}, {}):  # fairseq-interactive fuses none
        with pytest.raises(ConfigurationError, match=r"--lm-path lm\.pt needs fairseq-generate"):
            task.build_generator([lm], args, extra_gen_cls_kwargs=fused)


def test_samples_beyond_the_models_positions_are_not_skipped() -> None:
    task: Any = LanguageModelingTask(Namespace(tokens_per_sample=12), Dictionary())
    task.get_batch_iterator = lambda **options: Namespace(next_epoch_itr=lambda **_: options)
    options = {"context_window": 6, "max_positions": 16, "num_workers": 2}
    assert task.eval_lm_dataloader(Namespace(sizes=[4, 10]), **options)["num_workers"] == 1
    for sizes, window in (([4, 17], 0), ([4, 12], 6)):
        options["context_window"] = window
        with pytest.raises(ConfigurationError, match=r"to 1[78] tokens, .* --tokens-per-sample 16"):
            task.eval_lm_dataloader(Namespace(sizes=sizes), **options)
