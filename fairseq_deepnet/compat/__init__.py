"""What fairseq 0.12 needs on today's Python and torch, and faults of it that are mended."""

import argparse
import collections
import importlib.metadata
import sys
import types
import warnings
from typing import Any

import fairseq
import fairseq.data.data_utils
import fairseq.data.language_pair_dataset
import fairseq.data.token_block_dataset
import fairseq.distributed.utils
import fairseq.nan_detector
import fairseq.options
import numpy as np
import omegaconf
import torch

from ..errors import ConfigurationError, show_in_one_line
from ..option_ranges import refuse_absurd
from ..wrapping import wrap
from . import (
    amp,
    changed_options,
    checkpoint_files,
    damaged_files,
    ema,
    fp32_weights,
    literals,
    owed_validation,
    reading_ahead,
    resuming,
    schedule_length,
    schedules,
)

FAIRSEQ = "fairseq-fixed==0.12.3.1"  # setup.py pins the same release

PATCHES = (
    literals,
    resuming,
    reading_ahead,
    checkpoint_files,
    fp32_weights,
    amp,
    changed_options,
    ema,
    schedules,
    schedule_length,
    owed_validation,
    damaged_files,  # last: it reports damage in whatever all of the above read
)
"""Modules that mend a part of fairseq each, in the order in which they wrap it."""

# Warnings about fairseq's own code that its users can do nothing about: category, start of the
# message.
KNOWN_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (FutureWarning, r"`torch\.cuda\.amp\.(autocast|GradScaler)"),
    (UserWarning, r"hydra\.experimental\.\w+\(\) is no longer experimental"),
    (UserWarning, r"\s*The version_base parameter is not specified"),
    (UserWarning, r"\s*The strict flag in the compose API is deprecated"),
    (UserWarning, r"In 'config': Usage of deprecated keyword in package header"),
    (UserWarning, r"\s*'config' is validated against ConfigStore schema"),
    (UserWarning, r"'pin_memory' argument is set as true but no accelerator"),
)


def apply() -> None:
    """Mend all of it, once, when the plugin is imported."""
    if getattr(fairseq, "is_mended", False):
        return
    show_in_one_line()
    require_fairseq()
    require_assertions()
    for category, message in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)
    keep_bf16_off_tpus()
    keep_every_sentence()
    keep_former_numpy()
    share_configurations()
    mend_nan_detector()
    for patch in PATCHES:
        patch.apply()
    fairseq.is_mended = True


def require_fairseq() -> None:
    """Refuse a fairseq that is known to compute something else; ImportError says what to install.

    fairseq 0.12.2 bypasses a layer's residual connection at inference (its fast path), so that
    alpha is silently lost; and it cannot be imported on Python 3.11. Its repaired release has
    another name on PyPI.
    """
    try:
        found = importlib.metadata.version("fairseq-fixed")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            "fairseq_deepnet needs fairseq-fixed, and another fairseq (or none) is installed;"
            f" run: pip uninstall -y fairseq; pip install --no-build-isolation {FAIRSEQ}"
        ) from None
    if f"fairseq-fixed=={found}" != FAIRSEQ:
        raise ImportError(
            f"fairseq_deepnet is tested with {FAIRSEQ}, found {found};"
            f" run: pip install --no-build-isolation {FAIRSEQ}"
        )


def require_assertions() -> None:
    """Refuse a Python that skips assertions: fairseq copies checkpoints inside one.

    Neither checkpoint_best.pt nor checkpoint_last.pt would be written, and the run would end well.
    """
    if sys.flags.optimize:
        raise ConfigurationError(
            "Python skips assertions (PYTHONOPTIMIZE or -O), and fairseq saves checkpoints inside"
            " one, so that none would be kept: unset PYTHONOPTIMIZE, leave out -O"
        )


def keep_bf16_off_tpus() -> None:
    """Let --bf16 mean bfloat16 on the device at hand.

    fairseq's parser turns --bf16 into --tpu and then fails without torch_xla, which leaves the
    precision that deep stacks want unusable on GPUs. fairseq imports a user-dir before it parses,
    so this is in time.
    """

    @wrap(fairseq.options, "parse_args_and_arch")
    def parse_args_and_arch(
        parse: Any, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
    ) -> Any:
        from ..preemption import add_preemption_arguments, keep_grace_period

        if "--max-update" in parser._option_string_actions:  # fairseq-train's
            add_preemption_arguments(parser)
        try:
            parsed = parse(parser, *args, **kwargs)
        except RuntimeError as error:
            if error.args:
                raise
            # all that fairseq says where there is no --arch
            raise ConfigurationError(
                "--arch is missing, or unknown: name one, as in --arch deepnet_transformer"
            ) from error
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        refuse_absurd(namespace)
        keep_grace_period(namespace)
        if getattr(namespace, "bf16", False):  # absent where defaults are suppressed
            words = args[0] if args else kwargs.get("input_args")
            namespace.tpu = "--tpu" in (sys.argv if words is None else words)
        return parsed


def keep_every_sentence() -> None:
    """Give back the sentences that fairseq's batching loses.

    Since 0.12.3 `batch_by_size` throws the last batch away if its size is no multiple of
    --required-batch-size-multiple, 8 by default: the longest sentences are never trained on, and
    fairseq-generate leaves up to a batch of the test set untranslated, without a word.
    """

    @wrap(fairseq.data.data_utils, "batch_by_size")
    def batch_by_size(batch: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        batches = batch(indices, *args, **kwargs)
        kept = sum(map(len, batches))
        return batches if kept == len(indices) else [*batches, indices[kept:]]


class _FormerNumpy:
    """numpy 2 with what fairseq uses of numpy 1."""

    compat = types.SimpleNamespace(long=np.int64)

    @staticmethod
    def percentile(values: Any, percents: Any, interpolation: Any) -> Any:
        return np.percentile(values, percents, method=interpolation)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def keep_former_numpy() -> None:
    """Give fairseq the np.compat.long and np.percentile(interpolation=) that numpy 2 has no more.

    Without them --sample-break-mode eos of the tasks for language models fails, and
    --num-batch-buckets. numpy itself is left alone.
    """
    data = fairseq.data
    for module in (data.token_block_dataset, data.language_pair_dataset, data.data_utils):
        module.np = _FormerNumpy()


def share_configurations() -> None:
    """Let processes that train together hand one another a checkpoint's configuration.

    Rank 0 reads the checkpoint that a run of several processes goes on from, and the others load
    it from rank 0's message, with weights only since torch 2.6: what OmegaConf makes of the
    configuration would be refused, and with it every such run that is resumed. Files are still
    loaded without it.
    """
    base = omegaconf.base
    nodes = [omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.nodes.AnyNode]
    held: list[Any] = [*nodes, base.Metadata, base.ContainerMetadata, collections.defaultdict]
    held += [dict, list, int, Any, fairseq.distributed.utils._TensorPlaceholder]

    @wrap(fairseq.distributed.utils, "broadcast_object")
    def broadcast_object(broadcast: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.serialization.safe_globals(held):
            return broadcast(*args, **kwargs)


def mend_nan_detector() -> None:
    """Let fairseq find the module that made a value NaN or infinite.

    It hangs torch's old backward hooks on every module, which fail where an output is a dictionary
    of lists, as every encoder's is: then the error that the user sees is StopIteration.
    """

    def add_hooks(self: Any, module: torch.nn.Module) -> None:
        def forward(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            self.fhook_fn(module, inputs, output)
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

        self.fhooks.append(module.register_forward_hook(forward))

    fairseq.nan_detector.NanDetector.add_hooks = add_hooks
