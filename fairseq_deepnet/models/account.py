"""The model and the training that arguments of fairseq-train describe, as `footprint` counts them.

Both are read from what fairseq-train would see, so that an estimate and a run cannot differ in a
default.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fairseq.models.transformer import TransformerConfig

from ..footprint.memory import SENTENCE_LENGTH
from ..footprint.setting import MEGABYTE, STATES, Model, Training
from ..monitoring.options import monitor_settings
from ..schemes import Side
from .options import layer_shape
from .running_options import checkpointing_of, segment_of
from .scheme_options import scheme_in


def read_model(args: Namespace, vocabulary: tuple[int, int]) -> Model:
    """Return the shape that parsed fairseq-train arguments describe.

    Raises ValueError for a model that is neither ours nor fairseq's Transformer, and for options
    that the plan does not know how to count.
    """
    for option in ("adaptive_softmax_cutoff", "adaptive_input", "merge_src_tgt_embed"):
        if getattr(args, option, None):
            raise ValueError(
                f"--{option.replace('_', '-')} is not covered by the plan; leave it out"
            )
    cfg: Any = TransformerConfig.from_namespace(args)
    share_all = bool(cfg.share_all_embeddings)
    if share_all and vocabulary[0] != vocabulary[1]:
        raise ValueError(
            f"--share-all-embeddings needs one vocabulary, not {vocabulary[0]:,} and"
            f" {vocabulary[1]:,}; give a single --vocabulary"
        )
    if share_all and cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise ValueError(
            f"--share-all-embeddings needs equal widths, not --encoder-embed-dim"
            f" {cfg.encoder.embed_dim} and --decoder-embed-dim {cfg.decoder.embed_dim}"
        )
    scheme = scheme_in(args)
    if scheme is None:  # only where the sides differ: the plan takes no other models
        raise ValueError(
            "--encoder-normalize-before without --decoder-normalize-before (or the reverse) is not"
            " covered by the plan; give both or none"
        )
    layers = {side: layer_shape(cfg, side) for side in Side}
    rows = {Side.ENCODER: cfg.max_source_positions, Side.DECODER: cfg.max_target_positions}
    without = bool(cfg.no_token_positional_embeddings)
    return Model(
        arch=args.arch,
        scheme=scheme,
        layers=layers,
        vocabulary=vocabulary,
        share_all=share_all,
        share_output=share_all or bool(cfg.share_decoder_input_output_embed),
        output_dim=int(cfg.decoder.output_dim),
        # fairseq's tables begin after the padding index, which is 1
        positions={side: 0 if without else rows[side] + 2 for side in Side},
        learned_positions={
            Side.ENCODER: bool(cfg.encoder.learned_pos),
            Side.DECODER: bool(cfg.decoder.learned_pos),
        },
        embedding_norm=bool(cfg.layernorm_embedding),
        decoder_final_norm=not cfg.no_decoder_final_norm,
        checkpointing={side: checkpointing_of(cfg, side, scheme, layers[side]) for side in Side},
        segment=segment_of(cfg),
    )


def read_training(args: Namespace, gpus: int, length: int = SENTENCE_LENGTH) -> Training:
    """Return how parsed fairseq-train arguments train.

    Args:
        length: subwords of a sentence, which turns --batch-size into tokens where there is no
            --max-tokens; where there is, short sentences may be fewer, but long ones fill it

    Raises ValueError for what the plan does not know how to count.
    """
    if getattr(args, "amp", False):
        raise ValueError("--amp is not covered by the plan; use --bf16 or --fp16")
    if getattr(args, "store_ema", False):
        raise ValueError("--store-ema is not covered by the plan; leave it out")
    precision = "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"
    efficient = bool(args.memory_efficient_fp16 or args.memory_efficient_bf16)
    if args.optimizer not in (*STATES, "adafactor", "sgd"):
        known = ", ".join((*STATES, "adafactor", "sgd"))
        raise ValueError(f"--optimizer {args.optimizer}: the plan knows {known}")
    if not args.max_tokens and not args.batch_size:
        raise ValueError("neither --max-tokens nor --batch-size is set; add max-tokens=4096")
    settings = monitor_settings(args) if getattr(args, "monitor_interval", None) else None
    momentum = getattr(args, "beta1", None) or getattr(args, "momentum", None)
    return Training(
        max_tokens=int(args.max_tokens or args.batch_size * length),
        bounded=bool(args.max_tokens),
        update_freq=int(max(args.update_freq)),
        max_update=args.max_update or None,
        precision=precision,
        memory_efficient=efficient,
        flat=precision == "fp16" and not args.fp16_no_flatten_grads,
        optimizer=args.optimizer,
        first_moment=bool(momentum),
        criterion=args.criterion,
        ddp_backend=args.ddp_backend,
        bucket_view=bool(args.gradient_as_bucket_view),
        gpus=gpus,
        unit_bytes=int(args.bucket_cap_mb) * MEGABYTE,
        reshard=not args.no_reshard_after_forward,
        offload=bool(args.cpu_offload),
        monitored=() if settings is None else settings.quantities,
    )
