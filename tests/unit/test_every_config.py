"""fairseq's parser accepts every config, and a small version of its model learns."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.standalone import VocabularyTask

CONFIGS = sorted(path.stem for path in configs.CONFIG_FOLDER.glob("*.yaml") if path.stem != "base")
PAPERS = {
    # table, width/FFN/heads, layers per side, lr, warm-up, eps, length, clip, dropout, decay, batch
    "iwslt14": "4 512/2048/8 18 5e-4 4000 1e-8 8000 0.0 0.4 1e-4 4000",
    "wmt17_base": "5 512/2048/8 18 1.5e-3 4000 1e-8 100000 0.0 0.4 1e-4 128x4096",
    "wmt17_base_nonorm": "5 512/2048/8 18 5e-4 4000 1e-8 100000 0.0 0.4 1e-4 128x4096",
    "wmt17_large": "6 512/2048/8 18 5e-4 4000 1e-6 30000 1.0 0.4 0 128x4096",
    "wmt17_large_768": "6 768/3072/12 18 5e-4 4000 1e-6 30000 1.0 0.4 0 128x4096",
    "wmt17_large_1024": "6 1024/4096/16 18 5e-4 4000 1e-6 30000 1.0 0.4 0 128x4096",
    "opus100": "7 512/2048/8 100 5e-4 4000 1e-8 4-epochs 0.0 0.1 0 128x4096",
    "opus100_1000": "7 512/2048/8 500 5e-4 4000 1e-8 4-epochs 0.0 0.1 0 128x4096",
    "mm102": "8 1024/4096/16 100 5e-4 6000 1e-6 260000 1.0 0.1 0 256x4096",
}
"""arXiv 2203.00555, appendix D; common to all tables: inverse sqrt, warm-up from 1e-7, Adam betas
(0.9, 0.98), label smoothing 0.1."""


def parsed(config: configs.Config) -> Namespace:
    return fairseq_options.parse_training(["DATA", *configs.to_arguments(config.options)])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shrunken_model_is_built_and_trained(name: str) -> None:
    config = configs.load_config(name)
    configs.check_options(config)
    args = parsed(config)
    there = [side for side in ("encoder", "decoder") if hasattr(args, f"{side}_layers")]
    width = 2 * getattr(args, f"{there[0]}_attention_heads")
    for side in there:
        vars(args).update({f"{side}_layers": 2, f"{side}_embed_dim": width})
        vars(args).update({f"{side}_ffn_embed_dim": 8, f"{side}_output_dim": width})
    args.decoder_input_dim = width
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, VocabularyTask(20))
    tokens = torch.randint(4, 20, (2, 5))
    pair = {"src_lengths": torch.tensor([5, 5]), "prev_output_tokens": tokens}
    logits, _ = model(tokens, **(pair if len(there) == 2 else {}))
    assert logits.shape == (2, 5, 20)
    logits.square().mean().backward()
    for part, weight in model.named_parameters():
        assert weight.grad is not None, f"{part} has no gradient"
        assert weight.grad.isfinite().all(), part


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_hyper_parameters_are_in_the_config(name: str) -> None:
    table, shape, layers, lr, warmup, eps, length, clip, dropout, decay, tokens = PAPERS[
        name
    ].split()
    config = configs.load_config(name)
    args = parsed(config)
    assert config.recipe["reference"] == f"arXiv 2203.00555, table {table}"
    assert str(config.recipe["global-batch-tokens"]).replace(" ", "") == tokens
    for side in ("encoder", "decoder"):
        sizes = (f"{side}_{part}" for part in ("embed_dim", "ffn_embed_dim", "attention_heads"))
        assert "/".join(str(getattr(args, size)) for size in sizes) == shape
        assert getattr(args, f"{side}_layers") == int(layers)
    values = (args.lr, args.warmup_updates, args.adam_eps, args.clip_norm, args.dropout)
    assert values == ([float(lr)], int(warmup), float(eps), float(clip), float(dropout))
    assert args.weight_decay == float(decay)
    if length.endswith("-epochs"):
        assert (args.max_epoch, args.max_update) == (int(length.removesuffix("-epochs")), 0)
    else:
        assert (args.max_epoch, args.max_update) == (0, int(length))
    assert (args.lr_scheduler, args.warmup_init_lr) == ("inverse_sqrt", 1e-7)
    assert str(args.adam_betas) == "(0.9, 0.98)"
    assert args.label_smoothing == 0.1
    assert (args.attention_dropout, args.activation_dropout) == (0, 0)
