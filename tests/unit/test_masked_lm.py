"""The masked language model against fairseq's RoBERTa."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.models.roberta.model import RobertaModel
from torch import nn

from fairseq_deepnet.tools.standalone import VocabularyTask
from tests.support.models import SYMBOLS, assert_same_training, build_model, sentences

TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"untie_weights_roberta": True},
    {"activation_fn": "relu", "layernorm_embedding": False, "encoder_learned_pos": False},
]


def build_masked(**options: Any) -> Any:
    quiet = {"attention_dropout": 0.0, "max_positions": 40}
    return build_model("deepnet_masked_lm", **(quiet | options))


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln"])
def test_plain_schemes_equal_stock_roberta(scheme: str, options: dict[str, Any]) -> None:
    """Weights are copied, because fairseq draws q, k and v twice."""
    ours = build_masked(residual_scheme=scheme, init="stock", seed=2, **options)
    args = Namespace(**vars(ours.args) | {"encoder_normalize_before": scheme == "pre-ln"})
    torch.manual_seed(1)
    stock = RobertaModel.build_model(args, VocabularyTask(4 + SYMBOLS))
    ours.load_state_dict(stock.state_dict(), strict=True)
    real = sentences().ne(1)
    assert_same_training(ours, stock, lambda model: model(sentences())[0][real].square().mean())
    stock.load_state_dict(ours.state_dict(), strict=True)


def test_stock_weights_have_berts_distribution() -> None:
    model = build_masked(residual_scheme="post-ln", init="stock", encoder_embed_dim=128)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05), name
            assert not module.bias.any()


def test_parameters_outside_the_layers_are_initialised_as_in_roberta() -> None:
    model = build_masked(encoder_embed_dim=128, encoder_layers=18)
    head = model.encoder.lm_head
    table = model.encoder.sentence_encoder.embed_tokens.weight
    assert head.weight is table
    positions = model.encoder.sentence_encoder.embed_positions.weight
    for weight in (table, positions, head.dense.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not head.bias.any()
    assert not head.dense.bias.any()
    assert not table[1].any()  # padding


@torch.no_grad()
def test_fairseqs_criterion_is_the_mean_over_masked_tokens() -> None:
    model, tokens = build_masked().eval(), sentences()
    target = torch.full_like(tokens, 1)
    target[0, 2], target[1, 4] = 11, 12
    task = SimpleNamespace(target_dictionary=model.encoder.dictionary)
    criterion = MaskedLmLoss(SimpleNamespace(tpu=False), task)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(1).sum(1)}}
    sample |= {"target": target, "ntokens": 18, "nsentences": 3}
    loss, size, _ = criterion(model, sample)
    log_probs = model(tokens)[0].log_softmax(-1)
    assert size == 2
    torch.testing.assert_close(loss, -log_probs[0, 2, 11] - log_probs[1, 4, 12], **TOLERANCE)


def test_a_classification_head_can_be_added_and_saved() -> None:
    model = build_masked()
    model.register_classification_head("polarity", num_classes=2)
    logits, _ = model(sentences(), classification_head_name="polarity")
    assert logits.shape == (3, 2)
    again = build_masked(seed=2, load_checkpoint_heads=True)
    again.load_state_dict(model.state_dict(), strict=True)
    assert again.classification_heads["polarity"].out_proj.out_features == 2


@pytest.mark.parametrize("untied", [False, True])
def test_r_fixups_untied_vocabulary_projection_is_initially_zero(untied: bool) -> None:
    model = build_masked(residual_scheme="r-fixup", untie_weights_roberta=untied)
    assert model.encoder.lm_head.weight.any() != untied
    assert model.encoder.sentence_encoder.embed_tokens.weight.any()
