"""What is checked: a new model, one that a config describes, or one in a checkpoint."""

from __future__ import annotations

import dataclasses
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fairseq.models
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    FairseqLanguageModel,
)
from fairseq.models.roberta import RobertaModel
from torch import Tensor, nn

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments, num_updates
from fairseq_deepnet.files import shown
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.quiet import quiet
from fairseq_deepnet.schemes import Side
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.checking import standalone
from fairseq_deepnet.tools.checking.findings import Fault
from fairseq_deepnet.tools.checking.words import listed

MAX_POSITIONS = 512
_LAYER = re.compile(r"(?:.*\.)?(encoder|decoder)\.(?:.*\.)?layers\.(\d+)\.")


@dataclasses.dataclass
class Subject:
    """A model, and what was learnt while it was made.

    Arguments:
        text: what it is, in words
        trained: whether its weights may have moved since they were drawn
    """

    model: nn.Module
    args: Namespace
    text: str
    trained: bool = False
    faults: list[Fault] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def from_options(config: configs.Config, vocabulary: int, seed: int) -> Subject:
    """A new model as fairseq-train would build it, but for the size of its vocabulary.

    Raises ValueError for options that fairseq or its model refuses.
    """
    options = config.options
    if "arch" not in options:
        raise ValueError(f"{config.name} names no arch; add arch=deepnet_transformer")
    if "task" not in options:
        options["task"] = _usual_task(str(options["arch"]))
    configs.check_options(config)
    args = fairseq_options.parse_training(["DATA", *configs.to_arguments(options)])
    torch.manual_seed(seed)
    model = build(args, dict.fromkeys(Side, vocabulary))
    return Subject(model, args, f"{args.arch}, new (seed {seed}), {vocabulary:,} words")


def _usual_task(arch: str) -> str:
    model: Any = ARCH_MODEL_REGISTRY.get(arch)
    if isinstance(model, type) and issubclass(model, RobertaModel):
        return "masked_lm"
    if isinstance(model, type) and issubclass(model, FairseqLanguageModel):
        return "language_modeling"
    return "translation"


def build(args: Namespace, vocabulary: Mapping[Side, int]) -> nn.Module:
    """The model of `args` with so many entries a dictionary; ValueError where it refuses."""
    if args.arch not in ARCH_CONFIG_REGISTRY:
        raise ValueError(f"arch {args.arch} is known neither to fairseq nor to this plugin")
    sizes = [vocabulary[side] for side in Side if side in vocabulary]
    task: Any = standalone.VocabularyTask(sizes[0])
    task.dictionary = task.source_dictionary
    if sizes[-1] != sizes[0]:
        task.target_dictionary = standalone.VocabularyTask(sizes[-1]).target_dictionary
    task.max_positions = lambda: getattr(args, "tokens_per_sample", None) or MAX_POSITIONS
    try:
        with quiet():
            # as fairseq-train does: some models take its dataclasses, others plain arguments
            config = convert_namespace_to_omegaconf(args)
            model: nn.Module = fairseq.models.build_model(config.model, task)
    except (AssertionError, AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"--arch {args.arch} refuses its options: {error}") from error
    return model


def from_checkpoint(path: Path) -> Subject:
    """The model in a checkpoint, with what its record and its parameters' names give away.

    Raises FileNotFoundError where there is none, ValueError for a damaged one and for a model that
    cannot be built.
    """
    state = load_checkpoint(path, entire=True)
    args = _arguments(state, path)
    tensors: dict[str, Tensor] = state["model"]
    model = build(args, _vocabulary(tensors, path))
    faults = _load(model, tensors, path)
    history = state.get("optimizer_history")
    updates = num_updates(state)
    trained = not history or updates > 0 or "averaged" in state
    age = f"after {updates:,} updates" if history else "with no record of updates"
    subject = Subject(model, args, f"{args.arch}, {shown(path)} ({age})", trained, faults)
    subject.faults += check_record(args, tensors)
    if trained:
        subject.notes.append(
            "weights have moved since they were drawn: their standard deviations are shown, not"
            " judged"
        )
    return subject


def _arguments(state: dict[str, Any], path: Path) -> Namespace:
    args = model_arguments(state)
    if args is None:
        raise ValueError(f"{path} does not say how its model is built (neither cfg nor args)")
    arch = getattr(args, "arch", None) or getattr(args, "_name", None)
    if not isinstance(arch, str):
        raise ValueError(f"{path} does not name its model's arch")
    args.arch = arch
    return args


def _vocabulary(tensors: Mapping[str, Tensor], path: Path) -> dict[Side, int]:
    """Entries of each side's dictionary, as the embeddings have rows."""
    found = {}
    for side in Side:
        for name, tensor in tensors.items():
            parts = name.split(".")
            if side.value in parts and name.endswith("embed_tokens.weight"):
                found[side] = tensor.size(0)
    if not found:
        raise ValueError(f"{path} holds no embed_tokens.weight: not a Transformer of fairseq's")
    return found


def _load(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> list[Fault]:
    try:
        missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise ValueError(
            f"{path} does not fit the model that its arguments describe: {first}"
        ) from (error)
    faults = []
    for names, text in ((missing, "not in the file"), (unexpected, "not in the model")):
        if names:
            due = "the parameters that its arguments describe"
            faults.append(Fault("keys", listed(names), text, due))
    return faults


def check_record(args: Namespace, tensors: Mapping[str, Tensor]) -> list[Fault]:
    """Whether the record that our checkpoints carry agrees with its formula and the layers."""
    if not hasattr(args, "residual_scheme"):
        return []
    record = getattr(args, "residual_record", None)
    if record is None:
        text = "no residual_record: alpha would follow the depth at load time"
        return [Fault("record", "arguments", text, "the alphas that it was trained with")]
    layers = dict.fromkeys(Side, 0)
    for name in tensors:
        match = _LAYER.match(name)
        if match:
            side = Side(match[1])
            layers[side] = max(layers[side], int(match[2]) + 1)
    faults = []
    depths = dict(zip(Side, record["depths"], strict=True))
    for side in Side:
        if depths[side] != layers[side]:
            text = f"trained with {depths[side]} layers"
            faults.append(
                Fault("record", f"{side.value} record", text, f"the {layers[side]} in the file")
            )
    scheme = scheme_of(args)
    formula = type(scheme)(scheme.depths, variant=scheme.variant).alphas
    for side, alpha in scheme.alphas.items():
        right = formula.get(side)
        if right is None or abs(alpha / right - 1) > 1e-6:
            due = "none" if right is None else f"{right:.6g}"
            text = f"alpha {alpha:.6g}"
            cause = f"{scheme.name} for {scheme.depths.encoder}L-{scheme.depths.decoder}L"
            faults.append(Fault("record", f"{side.value} record", text, due, cause))
    return faults
