"""`check` on Hugging Face models, recognised by the names of their layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fairseq_deepnet.tools.checking import check
from tests.support.checks import kinds, sentences
from tests.support.hugging_face import import_transformers
from tests.support.public_like import TOKENS, draw, value_path

transformers = import_transformers()
HEADS = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
BART = HEADS | {"encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 96}
BART |= {"decoder_ffn_dim": 96, "max_position_embeddings": 32, "pad_token_id": 1}
BART |= {"decoder_start_token_id": 2, "d_model": 64}
LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
LLAMA |= {"num_attention_heads": 4}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 2}
T5 |= {"num_heads": 4, "feed_forward_proj": "gated-gelu"}


@pytest.mark.parametrize(
    ("name", "options", "scheme"),
    [
        ("LlamaForCausalLM", LLAMA, "pre-ln"),
        ("T5ForConditionalGeneration", T5, "pre-ln"),
        ("BartForConditionalGeneration", BART, "post-ln"),
    ],
)
def test_layer_norms_position_and_the_residuals_factor_are_measured(
    name: str, options: Any, scheme: str
) -> None:
    torch.manual_seed(3)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(vocab_size=90, **options))
    batch = {"input_ids": TOKENS}
    if options is not LLAMA:
        batch["decoder_input_ids"] = TOKENS[:, :9]
    findings = check(model, batch, claims=scheme)
    assert kinds(findings) == {"weights"}, sentences(findings)  # not Xavier's
    for part in model.modules():
        if isinstance(part, nn.ModuleList):
            draw(part, value_path(1.0))
    assert check(model, batch, claims=scheme).is_fine
    findings = check(model, batch, claims="deepnorm")
    assert kinds(findings) == {"weights", "residual"}
    assert len(findings.sides) == (1 if options is LLAMA else 2)
