"""`check` on the models of Hugging Face's transformers whose names it knows."""

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
BOTH = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :9]}
ENCODER_DECODER = {
    "vocab_size": 90,
    "d_model": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 96 for side in ("encoder", "decoder")},
    **{"encoder_layers": 3, "decoder_layers": 2},
}


def llama() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(
        vocab_size=90,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": TOKENS}


def t5() -> tuple[Any, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=90,
        d_model=64,
        d_kv=16,
        d_ff=96,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    return transformers.T5ForConditionalGeneration(config), BOTH


def marian() -> tuple[Any, dict[str, Any]]:
    return transformers.MarianMTModel(transformers.MarianConfig(**ENCODER_DECODER)), BOTH


def bart() -> tuple[Any, dict[str, Any]]:
    config = transformers.BartConfig(**ENCODER_DECODER)
    return transformers.BartForConditionalGeneration(config), BOTH


@pytest.mark.parametrize(
    ("build", "scheme", "style"),
    [
        (llama, "pre-ln", "llama"),
        (t5, "pre-ln", "t5"),
        (marian, "post-ln", "marian"),
        (bart, "post-ln", "bart"),
    ],
)
def test_where_layer_norm_stands_and_what_multiplies_the_residual_is_found(
    build: Any, scheme: str, style: str
) -> None:
    torch.manual_seed(3)
    model, batch = build()
    found = check(model, batch, claims=scheme, layers=style)
    assert kinds(found) == {"weights"}, sentences(found)  # N(0, 0.02) and T5's own are not Xavier's
    for part in model.modules():
        if isinstance(part, nn.ModuleList):
            draw(part, value_path(1.0))
    assert check(model, batch, claims=scheme).is_fine
    found = check(model, batch, claims="deepnorm")
    assert kinds(found) == {"weights", "residual"}
    assert len(found.sides) == (1 if build is llama else 2)
