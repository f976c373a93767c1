"""Plan of a training run: parameters, memory, operations, and options that make the run fit.

fairseq-train's parser reads the options, so that an estimate and a run have the same defaults. A
multiplication and an addition count as two operations. Only matrix products are counted, because
memory bandwidth limits everything else (LayerNorm, dropout, softmax).
"""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerConfig, TransformerModel

from fairseq_deepnet.anatomy import find_branches
from fairseq_deepnet.footprint import (
    ADAFACTOR,
    FULLY_SHARDED,
    MEGABYTE,
    OPTIMISERS,
    Model,
    Parameters,
    Training,
    build_layer,
    count,
)
from fairseq_deepnet.footprint.activations import MicroBatch, auto_segment, micro_batch
from fairseq_deepnet.footprint.memory import LEGACY_BUFFER, SENTENCE_LENGTH, Memory, follow
from fairseq_deepnet.models.deepnet_transformer import DeepNetTransformerModel
from fairseq_deepnet.models.options import check_shape, layer_shape
from fairseq_deepnet.models.running_options import checkpointing_of, streams_in_fp32
from fairseq_deepnet.models.scheme_options import scheme_in
from fairseq_deepnet.schemes import Role, Side, Sublayer
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.training import launch

SMALLEST_MICRO_BATCH: Final = 512
"""Tokens in the smallest micro-batch that is tried; a long sentence still fits into it."""


def count_flops(model: Model, batch: MicroBatch) -> dict[str, float]:
    """Return the operations of one micro-batch on one device, by part and in total.

    All parts except `backward` and `recomputation` belong to the forward pass. A linear map from
    M to N channels takes 2 M N operations per token. The two matrix products of attention take 4 C
    operations per pair of query and key, including the pairs that the decoder masks.
    """
    linear = attention = again = 0
    for side in Side:
        n, depth = batch.tokens(side), model.depths.of(side)
        per_layer = attending = 0
        for branch in find_branches(build_layer(model, side)):
            keys_of = Side.ENCODER if branch.sublayer is Sublayer.ENCODER_ATTN else side
            for role, each in branch.linears.items():
                read = keys_of if role in (Role.K_PROJ, Role.V_PROJ) else side
                per_layer += 2 * batch.tokens(read) * each.weight.numel()
            if branch.sublayer is not Sublayer.FFN:
                attending += 4 * n * batch.length(keys_of) * model.layers[side].embed_dim
        linear += depth * per_layer
        attention += depth * attending
        again += model.recomputed(side) * (per_layer + attending)
    n, width = batch.tokens(Side.DECODER), model.layers[Side.DECODER].embed_dim
    projection = 2 * n * model.output_dim * model.vocabulary[1]
    if model.output_dim != width:
        projection += 2 * n * width * model.output_dim
    # twice the forward pass; fused attention also recomputes Q K^T: five products instead of four
    fused = batch.is_fused(model.layers[Side.ENCODER].attention_dropout)
    backward = 2 * (linear + projection) + (2.5 if fused else 2) * attention
    parts: dict[str, float] = {"linear": linear, "attention": attention, "projection": projection}
    parts |= {"backward": backward, "recomputation": again}
    return parts | {"total": sum(parts.values())}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Requirements of a training run.

    Args:
        memory: bytes on one device
        flops: operations of one micro-batch on one device, by part and in total
        memory_gib: available memory of one device
        length: assumed number of subwords per sentence
    """

    model: Model
    training: Training
    counts: Parameters
    memory: Memory
    flops: dict[str, float]
    memory_gib: float
    length: int

    @property
    def needed_gib(self) -> float:
        """Memory required on one device."""
        return self.memory.needed_gib(self.training.gpus > 0)

    @property
    def fits(self) -> bool:
        """True if a device has enough memory."""
        return self.needed_gib <= self.memory_gib


def make_plan(
    model: Model, training: Training, memory_gib: float, length: int = SENTENCE_LENGTH
) -> Plan:
    """Return the plan of a model and its training settings."""
    batch, counts = micro_batch(model, training, length), count(model)
    memory, flops = follow(model, training, counts, batch), count_flops(model, batch)
    return Plan(model, training, counts, memory, flops, memory_gib, length)


def estimate(
    config: configs.Config,
    gpus: int,
    memory_gib: float,
    vocabulary: tuple[int, int],
    length: int = SENTENCE_LENGTH,
) -> Plan:
    """Return the plan of a config.

    If the config has recipe.global-batch-tokens, update-freq depends on the devices, as in
    scripts/train.sh.

    Args:
        gpus: total number of GPUs; 0 means one CPU process
        memory_gib: available memory of one device
        vocabulary: entries of the source and the target dictionary, including special symbols
        length: assumed number of subwords per sentence

    Raises:
        ValueError: for options that the plan does not support.
    """
    smallest = {"gpus": 0, "memory": 0.1, "vocabulary": 5, "length": 1}  # 4 special symbols
    for name, value in zip(smallest, (gpus, memory_gib, min(vocabulary), length), strict=True):
        if not value >= smallest[name]:  # also nan
            raise ValueError(f"--{name} {value}: must be at least {smallest[name]}")
    args = fairseq_options.parse_training(["DATA", *configs.to_arguments(config.options)])
    if ARCH_MODEL_REGISTRY.get(args.arch) not in (DeepNetTransformerModel, TransformerModel):
        raise ValueError(f"--arch {args.arch}: only encoder-decoders can be planned")
    model, training = read_model(args, vocabulary), read_training(args, gpus, length)
    if training.precision == "fp16" and not gpus:
        raise ValueError("--fp16 needs a GPU; the CPU trains in fp32 or bf16")
    tokens = config.recipe.get("global-batch-tokens")
    if tokens is not None and "update-freq" not in config.options:
        training = _split(training, launch.parse_tokens(tokens), training.max_tokens)
    return make_plan(model, training, memory_gib, length)


def _split(training: Training, total: int, max_tokens: int) -> Training:
    """Split `total` tokens per update into micro-batches of at most `max_tokens`."""
    batch = launch.split_batch(total, max_tokens, training.devices)
    return dataclasses.replace(training, max_tokens=batch.max_tokens, update_freq=batch.update_freq)


def read_model(args: Namespace, vocabulary: tuple[int, int]) -> Model:
    """Return the model shape for parsed fairseq-train arguments.

    Raises:
        ValueError: for options that the plan does not support.
    """
    embeddings = ("adaptive_softmax_cutoff", "adaptive_input", "merge_src_tgt_embed")
    for option in (*embeddings, "no_cross_attention", "amp", "beta1", "gradient_as_bucket_view"):
        if getattr(args, option, None):
            raise ValueError(f"--{option.replace('_', '-')} is not covered by the plan")
    for side in Side:
        check_shape(args, side)
    cfg: Any = TransformerConfig.from_namespace(args)
    share_all = bool(cfg.share_all_embeddings)
    if share_all and vocabulary[0] != vocabulary[1]:
        raise ValueError(
            f"--share-all-embeddings needs one vocabulary, not {vocabulary[0]:,}, {vocabulary[1]:,}"
        )
    scheme = scheme_in(args)
    if scheme is None:
        raise ValueError("--encoder-normalize-before and --decoder-normalize-before differ")
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
        # positions in fairseq's tables start after the padding index, which is 1
        positions={side: 0 if without else rows[side] + 2 for side in Side},
        learned_positions={side: bool(getattr(cfg, side.value).learned_pos) for side in Side},
        embedding_norm=bool(cfg.layernorm_embedding),
        decoder_final_norm=not cfg.no_decoder_final_norm,
        checkpointing={side: checkpointing_of(cfg, side, scheme, layers[side]) for side in Side},
        streams_in_fp32=args.arch.startswith("deepnet_") and streams_in_fp32(args, scheme),
    )


def read_training(args: Namespace, gpus: int, length: int = SENTENCE_LENGTH) -> Training:
    """Return the training settings for parsed fairseq-train arguments.

    Args:
        length: subwords per sentence, to convert --batch-size to tokens if --max-tokens is unset

    Raises:
        ValueError: for options that the plan does not support.
    """
    if args.optimizer not in OPTIMISERS:
        raise ValueError(
            f"--optimizer {args.optimizer}: only {', '.join(OPTIMISERS)} can be planned"
        )
    if not args.max_tokens and not args.batch_size:
        raise ValueError("neither --max-tokens nor --batch-size is set; add max-tokens=4096")
    precision = "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"
    return Training(
        max_tokens=int(args.max_tokens or args.batch_size * length),
        update_freq=int(max(args.update_freq)),
        precision=precision,
        memory_efficient=bool(args.memory_efficient_fp16 or args.memory_efficient_bf16),
        flat=precision == "fp16" and not args.fp16_no_flatten_grads,
        optimizer=args.optimizer,
        criterion=args.criterion,
        ddp_backend=args.ddp_backend,
        gpus=gpus,
        unit_bytes=int(args.bucket_cap_mb) * MEGABYTE,
        reshard=not args.no_reshard_after_forward,
        offload=bool(args.cpu_offload),
    )


def vocabulary_of(
    config: configs.Config, data: Path | None, sizes: str | None = None
) -> tuple[int, int]:
    """Return the number of entries in the source and the target dictionary.

    Args:
        data: the data folder; if it does not exist, the config's vocabulary is used
        sizes: sizes that take precedence, such as "32000", or "8000,6000" for source and target

    Raises:
        ValueError: if there is neither `sizes` nor another source, or if sizes are not numbers.
    """
    if sizes is None and data is not None and (data / "corpus.json").is_file():
        folder = DataFolder.open(data)
        if folder.is_multilingual or folder.is_monolingual:
            # one dictionary, to which fairseq adds one token per language
            tokens = len(folder.languages) if folder.is_multilingual else 0
            entries = entries_of(data / "dict.txt") + tokens
            return entries, entries
        source, target = (entries_of(data / f"dict.{name}.txt") for name in folder.languages)
        return source, target
    text = sizes or str(config.recipe.get("vocabulary", ""))
    if not text:
        raise ValueError("the vocabulary size is missing; add --vocabulary N or --data FOLDER")
    numbers = text.replace("_", "").split(",")
    if len(numbers) > 2 or not all(number.strip().isdecimal() for number in numbers):
        raise ValueError(f"--vocabulary {text}: expected a number of entries, or SOURCE,TARGET")
    return int(numbers[0]), int(numbers[-1])


def entries_of(dictionary: Path) -> int:
    """Count a dictionary file's entries, including the four symbols that fairseq adds."""
    with dictionary.open("rb") as file:
        return sum(1 for line in file if line.strip()) + 4


class Step(NamedTuple):
    """A plan with changed options and the largest micro-batch that fits.

    `options` maps fairseq-train's changed options to their values; the value of a switch is "true".
    """

    name: str
    options: dict[str, str]
    plan: Plan


def advise(plan: Plan) -> list[Step]:
    """Search for options that make a plan fit, and return all steps of the search.

    The search ends with the first step that fits. Apart from rounding, no step changes the result
    of an update. Within a step, the micro-batch is halved and --update-freq is doubled until the
    plan fits.
    """
    steps = []
    for options, model, training in _alternatives(plan):
        best = _largest_that_fits(plan, model, training)
        name = " ".join(f"--{k}" if v == "true" else f"--{k} {v}" for k, v in options.items())
        if best.training.max_tokens != plan.training.max_tokens:
            smaller = {"max-tokens": str(best.training.max_tokens)}
            options = smaller | {"update-freq": str(best.training.update_freq)} | options
        steps.append(Step(name or "smaller micro-batches", options, best))
        if best.fits:
            break
    return steps


def _alternatives(plan: Plan) -> Iterator[tuple[dict[str, str], Model, Training]]:
    """Yield the changed options of each step, with the model and the training settings."""
    model, training = plan.model, plan.training
    options: dict[str, str] = {}
    yield options, model, training
    if not any(model.recomputed(side) for side in Side):
        options = {"checkpoint-activations-every": "auto"}
        if model.is_stock:
            options = {"checkpoint-activations": "true"}
        lengths = {
            side: auto_segment(side, model.scheme, shape, model.depths.of(side))
            for side, shape in model.layers.items()
        }
        checkpointing = {
            side: dataclasses.replace(run, every=1 if model.is_stock else lengths[side])
            for side, run in model.checkpointing.items()
        }
        model = dataclasses.replace(model, checkpointing=checkpointing)
        yield options, model, training
    buckets = training.devices > 1 and training.ddp_backend in ("pytorch_ddp", "c10d")
    if buckets and plan.counts.total > LEGACY_BUFFER:
        changed = dataclasses.replace(training, ddp_backend="legacy_ddp")
        yield options | {"ddp-backend": "legacy_ddp"}, model, changed
    if training.devices > 1 and not training.sharded and training.optimizer != ADAFACTOR:
        options = options | {"ddp-backend": FULLY_SHARDED}
        changed = dataclasses.replace(
            training, ddp_backend=FULLY_SHARDED, reshard=False, memory_efficient=False
        )
        yield options | {"no-reshard-after-forward": "true"}, model, changed
        yield options, model, dataclasses.replace(changed, reshard=True)


def _largest_that_fits(plan: Plan, model: Model, training: Training) -> Plan:
    """Return the plan with the largest micro-batch that fits, or with the smallest if none fits."""
    tokens = training.max_tokens
    while True:
        training = _split(training, plan.training.tokens, tokens)
        candidate = make_plan(model, training, plan.memory_gib, plan.length)
        if candidate.fits or tokens // 2 < SMALLEST_MICRO_BATCH:
            return candidate
        tokens //= 2
