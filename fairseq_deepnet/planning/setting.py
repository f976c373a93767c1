"""What a plan is about: the model's shape, and how it is to be trained.

Both are read from the arguments that fairseq-train would see, so that a plan and a run cannot
differ in a default.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from fairseq.models.transformer import TransformerConfig

from fairseq_deepnet.models.deepnet_transformer import DeepNetTransformerModel
from fairseq_deepnet.models.options import layer_shape
from fairseq_deepnet.models.running_options import checkpointing_of
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.modules import LayerShape
from fairseq_deepnet.schemes import Depths, PostLN, PreLN, ResidualScheme, Side
from fairseq_deepnet.stock_names import STOCK_NAMES

STATES: Final[Mapping[str, int]] = {
    "adam": 2,
    "fused_adam": 2,
    "adamax": 2,
    "adadelta": 2,
    "adagrad": 1,
    "nag": 1,
}
"""fairseq's optimisers -> numbers that they keep a parameter; adafactor and sgd are special."""

CHUNKED: Final = tuple(name for name in STOCK_NAMES if name.startswith("chunked_"))
"""Criterions that hold a chunk of the table tokens x vocabulary at a time."""

CRITERIONS: Final = (*CHUNKED, *(STOCK_NAMES[name] for name in CHUNKED))
"""Criterions whose memory is known; fairseq's hold the whole table, of log-probabilities."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The shape of an encoder-decoder.

    Arguments:
        arch: fairseq's name of it
        scheme: residual scheme, with the depths
        layers: sizes and dropouts of a layer on each side
        vocabulary: entries of the source's and the target's dictionary
        share_all: one table for source, target and the vocabulary projection
        share_output: the target's table is the vocabulary projection's too
        output_dim: channels that the vocabulary projection reads
        positions: on each side the table's rows: learned ones are parameters
        learned_positions: on each side
        embedding_norm: --layernorm-embedding
        decoder_final_norm: whether a Pre-LN decoder ends in a LayerNorm
        segments: layers that are checkpointed together, on each side; 0 keeps all activations
        offload: --offload-activations
    """

    arch: str
    scheme: ResidualScheme
    layers: Mapping[Side, LayerShape]
    vocabulary: tuple[int, int]
    share_all: bool
    share_output: bool
    output_dim: int
    positions: Mapping[Side, int]
    learned_positions: Mapping[Side, bool]
    embedding_norm: bool
    decoder_final_norm: bool
    segments: Mapping[Side, int]
    offload: bool

    @property
    def depths(self) -> Depths:
        """Layers a side."""
        return self.scheme.depths

    @property
    def checkpoint(self) -> bool:
        """Whether backward computes the layers again."""
        return any(self.segments.values())

    @property
    def is_stock(self) -> bool:
        """Whether the layers are fairseq's and not ours."""
        return not self.arch.startswith("deepnet_")


@dataclasses.dataclass(frozen=True)
class Training:
    """How the model is trained.

    Arguments:
        max_tokens: of one micro-batch on one device, on the longer side, padding included
        update_freq: micro-batches of one update on a device
        max_update: updates of the whole run; None where nothing sets it
        precision: fp32, fp16 or bf16
        memory_efficient: no fp32 copy of the weights (fairseq's MemoryEfficientFP16Optimizer)
        flat: whether the fp32 copy is one long tensor (fairseq's --fp16 unless
            --fp16-no-flatten-grads)
        optimizer: its name on the command line
        first_moment: whether adafactor keeps one (--beta1), or sgd (--momentum)
        criterion: its name on the command line
        ddp_backend: fairseq's name
        bucket_view: --gradient-as-bucket-view
        gpus: devices in all; 0 is one CPU process
    """

    max_tokens: int
    update_freq: int
    max_update: int | None
    precision: str
    memory_efficient: bool
    flat: bool
    optimizer: str
    first_moment: bool
    criterion: str
    ddp_backend: str
    bucket_view: bool
    gpus: int

    @property
    def devices(self) -> int:
        """Processes in all."""
        return max(self.gpus, 1)

    @property
    def element(self) -> int:
        """Bytes of a weight, a gradient and an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def tokens(self) -> int:
        """Tokens of one update over all devices, on the longer side."""
        return self.max_tokens * self.update_freq * self.devices


def require_plannable(arch: str) -> None:
    """Raise ValueError for a model that is no encoder-decoder of ours or of fairseq's."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerModel

    if ARCH_MODEL_REGISTRY.get(arch) not in (DeepNetTransformerModel, TransformerModel):
        raise ValueError(
            f"--arch {arch}: a plan can be made for encoder-decoders alone: deepnet_transformer,"
            " fairseq's transformer and their named shapes"
        )


def read_model(args: Namespace, vocabulary: tuple[int, int]) -> Model:
    """The shape that parsed fairseq-train arguments describe.

    Raises ValueError for a model that is neither ours nor fairseq's Transformer, and for options
    that the plan does not know how to count.
    """
    require_plannable(args.arch)
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
    scheme = _scheme(args)
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
        segments={side: checkpointing_of(cfg, side, scheme, layers[side]).every for side in Side},
        offload=bool(cfg.offload_activations),
    )


def _scheme(args: Namespace) -> ResidualScheme:
    """Ours by its name; fairseq's own Transformer is Post-LN or Pre-LN."""
    if getattr(args, "residual_scheme", None):
        return scheme_of(args)
    depths = Depths(args.encoder_layers, args.decoder_layers)
    if args.encoder_normalize_before != args.decoder_normalize_before:
        raise ValueError(
            "--encoder-normalize-before without --decoder-normalize-before (or the reverse) is not"
            " covered by the plan; give both or none"
        )
    return PreLN(depths) if args.encoder_normalize_before else PostLN(depths)


def read_training(args: Namespace, gpus: int, length: int) -> Training:
    """How parsed fairseq-train arguments train.

    Arguments:
        length: subwords of a sentence, which turns --batch-size into tokens

    Raises ValueError for what the plan does not know how to count.
    """
    if getattr(args, "amp", False):
        raise ValueError("--amp is not covered by the plan; use --bf16 or --fp16")
    precision = "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"
    if gpus < 0:
        raise ValueError(f"--gpus {gpus}: 0 plans for the CPU")
    if precision == "fp16" and not gpus:
        raise ValueError("--fp16 needs a GPU; the CPU trains in fp32 or bf16")
    efficient = bool(args.memory_efficient_fp16 or args.memory_efficient_bf16)
    if args.optimizer not in (*STATES, "adafactor", "sgd"):
        known = ", ".join((*STATES, "adafactor", "sgd"))
        raise ValueError(f"--optimizer {args.optimizer}: the plan knows {known}")
    if not args.max_tokens and not args.batch_size:
        raise ValueError("neither --max-tokens nor --batch-size is set; add max-tokens=4096")
    most = [args.max_tokens or 0, (args.batch_size or 0) * length]
    momentum = getattr(args, "beta1", None) or getattr(args, "momentum", None)
    return Training(
        max_tokens=min(size for size in most if size),
        update_freq=int(args.update_freq[0]),
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
    )
