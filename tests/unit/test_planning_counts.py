"""Parameters and operations of a plan, compared with models that are built and run."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from fairseq_deepnet import footprint
from fairseq_deepnet.footprint.activations import MicroBatch
from fairseq_deepnet.schemes import SCHEMES
from fairseq_deepnet.tools.planning import estimates
from tests.support.models import build_model
from tests.support.plans import WORDS, plan_of


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share_all_embeddings": True},
        {"share_decoder_input_output_embed": True},
        {"encoder_layers": 1, "decoder_layers": 5},
        {"encoder_learned_pos": True, "max_source_positions": 77},
        {"decoder_learned_pos": True, "encoder_ffn_embed_dim": 96},
        {"layernorm_embedding": True},
        {"no_token_positional_embeddings": True, "encoder_learned_pos": True},
        {"encoder_embed_dim": 64},
        {"decoder_output_dim": 16},
        {"residual_scheme": "pre-ln", "no_decoder_final_norm": True},
        {"residual_scheme": "post-ln", "init": "stock"},
        *({"residual_scheme": name} for name in SCHEMES),
        {"residual_scheme": "rezero", "scheme_variant": "sublayer"},
        {"residual_scheme": "normformer", "scheme_variant": "resscale"},
        {"arch": "transformer"},
        {"arch": "transformer", "encoder_normalize_before": True, "decoder_normalize_before": True},
    ],
    ids=str,
)
def test_parameters_match_the_built_model(options: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = build_model(**options)
    counted = footprint.count(plan_of(**options))
    assert counted.total == sum(p.numel() for p in model.parameters())
    assert counted.tensors == len(list(model.parameters()))
    assert counted.largest == max(p.numel() for p in model.parameters())
    names = ("embed_tokens", "embed_positions", "layernorm_embedding", "output_projection")
    stacks, names = (model.encoder, model.decoder), (*names, "project_out_dim")
    outer = [getattr(stack, name, None) for stack in stacks for name in names]
    tables = {id(p) for module in outer if module is not None for p in module.parameters()}
    inside = {
        side: sum(p.numel() for p in getattr(model, side).parameters() if id(p) not in tables)
        for side in ("encoder", "decoder")
    }
    assert (counted.encoder, counted.decoder) == (inside["encoder"], inside["decoder"])


@pytest.mark.parametrize(
    ("arch", "vocabulary", "millions"),
    [
        # The paper states no vocabulary. XLM-R's matches Table 2's 863M and 3.8B, and Flores-101's
        # matches Table 3's 3.2B. Zhang et al.'s 64,000 gives 768M.
        ("deepnet_transformer_opus100_200", 250_002, 863),
        ("deepnet_transformer_opus100_1000", 250_002, 3806),
        ("deepnet_transformer_mm102", 256_125, 3201),
        ("deepnet_transformer_opus100_200", 64_000, 768),
    ],
)
def test_the_papers_models_have_its_sizes(arch: str, vocabulary: int, millions: int) -> None:
    args = Namespace(arch=arch, share_all_embeddings=True)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = estimates.read_model(args, (vocabulary, vocabulary))
    assert footprint.count(model).total // 10**6 == millions


@pytest.mark.parametrize("length", [8, 40])
@pytest.mark.parametrize(
    "options",
    [{}, {"checkpoint_activations": True, "dropout": 0.1}, {"encoder_embed_dim": 64}],
    ids=str,
)
def test_operations_match_torchs_counter(options: dict[str, Any], length: int) -> None:
    options = {"share_decoder_input_output_embed": True, "attention_dropout": 0.1, **options}
    words = torch.randint(4, WORDS, (2, 3, length), generator=torch.Generator().manual_seed(1))
    with FlopCounterMode(display=False) as counter:
        build_model(**options)(words[0], None, words[1])[0].sum().backward()
    batch = MicroBatch(3, length, length, element=4, on_gpu=False)
    planned = estimates.count_flops(plan_of(**options), batch)["total"]
    assert planned == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_fused_attention_matches_torchs_count() -> None:
    shape = (3, 4, 40, 8)
    forward = sdpa_flop_count(shape, shape, shape)
    backward = sdpa_backward_flop_count(shape, shape, shape, shape)
    model = plan_of(encoder_layers=1, decoder_layers=1)
    flops = estimates.count_flops(model, MicroBatch(3, 40, 40, element=4, on_gpu=False))
    linear = 3 * (flops["linear"] + flops["projection"])
    assert flops["attention"] == 3 * forward  # one in the encoder, two in the decoder
    assert flops["total"] - linear == 3 * (forward + backward)
