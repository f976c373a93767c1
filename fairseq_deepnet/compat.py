"""Repairs for fairseq 0.12, and adaptations to current versions of Python, numpy and torch.

Importing the plugin calls `apply`, which installs the repairs in this module. DeepNetTrainer also
repairs the training loop, and optim.half_precision saves fp32 weights.
"""

import argparse
import atexit
import functools
import importlib.machinery
import math
import queue
import shlex
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import fairseq.checkpoint_utils
import fairseq.data.data_utils
import fairseq.data.fasta_dataset
import fairseq.data.language_pair_dataset
import fairseq.data.token_block_dataset
import fairseq.nan_detector
import fairseq.options
import fairseq.tasks
import numpy as np
import omegaconf
import torch
from fairseq.data.iterators import BackgroundConsumer, EpochBatchIterator, GroupedIterator
from fairseq.file_io import PathManager
from fairseq.tasks.language_modeling import LanguageModelingTask

from . import literals
from .checkpoints import (
    RECEIVERS,
    copy_checkpoint,
    naming_damage,
    refuse_damaged,
    refuse_not_finite,
)
from .errors import ConfigurationError, show_in_one_line
from .records import installed

FAIRSEQ: Final = "fairseq-fixed==0.12.3.1"  # setup.py pins the same release

# category and start of the warnings about fairseq's own code, on which users cannot act
KNOWN_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (FutureWarning, r"`torch\.cuda\.amp\.(autocast|GradScaler)"),
    (UserWarning, r"hydra\.experimental\.\w+\(\) is no longer experimental"),
    (UserWarning, r"\s*The version_base parameter is not specified"),
    (UserWarning, r"\s*The strict flag in the compose API is deprecated"),
    (UserWarning, r"In 'config': Usage of deprecated keyword in package header"),
    (UserWarning, r"\s*'config' is validated against ConfigStore schema"),
    (UserWarning, r"'pin_memory' argument is set as true but no accelerator"),
)
Around = TypeVar("Around", bound=Callable[..., Any])
PACKAGES: Final = ("fairseq", "fairseq_cli", "examples")
"""fairseq's top-level packages."""
PATIENCE: Final = 10.0
"""Maximum time, in seconds, that a finished program waits for its prefetching threads."""


def wrap(owner: Any, name: str) -> Callable[[Around], Around]:
    """Return a decorator that replaces `owner.name` with `around(original, *args, **kwargs)`.

    If the original is a method, the argument after `original` is `self`.
    """

    def replace(around: Around) -> Around:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, wrapped)
        return around

    return replace


@functools.cache
def apply() -> None:
    """Apply all repairs, once per process."""
    show_in_one_line()
    require_fairseq()
    for category, message in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)
    parse_options()
    keep_every_sentence()
    keep_former_numpy()
    find_not_finite_modules()
    end_epochs_under_another_update_freq()
    keep_place_in_epoch()
    copy_checkpoints_whole()
    keep_best_after_nan()
    check_checkpoints()
    check_fused_language_models()
    evaluate_every_token()
    evaluate_only_literals()
    quote_file_names()
    # Torch prefers cuDNN's attention on an H100 or H200, which compiles a plan for each new shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    atexit.register(end_readers)


def training_program() -> types.ModuleType | None:
    """Return the module of fairseq-train, or None in other programs.

    Importing the module here would make every program log to standard output.
    """
    modules = map(sys.modules.get, ("__main__", "fairseq_cli.train"))
    return next((module for module in modules if hasattr(module, "validate_and_save")), None)


def require_fairseq() -> None:
    """Raise ImportError, with a remedy, for unsupported fairseq releases, or if assertions are off.

    At inference, the fast path of fairseq 0.12.2 bypasses a layer's residual connection and thus
    alpha. That release also cannot be imported on Python 3.11. The repaired release has another
    name on PyPI. Assertions must be on, because fairseq copies checkpoints inside an assertion.
    """
    if sys.flags.optimize:
        raise ImportError("fairseq saves no checkpoint under PYTHONOPTIMIZE or -O: unset them")
    if f"fairseq-fixed=={installed('fairseq-fixed')}" != FAIRSEQ:
        raise ImportError(
            f"fairseq_deepnet needs {FAIRSEQ}; run: pip uninstall -y fairseq;"
            f" pip install --no-build-isolation {FAIRSEQ}"
        )


def parse_options() -> None:
    """Repair two faults of fairseq's parser.

    With --bf16, the parser also sets --tpu, which fails without torch_xla. If --total-num-update,
    which polynomial_decay needs, is not given, the parser sets it to None instead of --max-update.
    fairseq imports a --user-dir before it parses all options, so the repair takes effect in time.
    """

    @wrap(fairseq.options, "parse_args_and_arch")
    def parse_args_and_arch(
        parse: Any, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
    ) -> Any:
        parsed = parse(parser, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "bf16", False):  # absent where defaults are suppressed
            words = args[0] if args else kwargs.get("input_args")
            namespace.tpu = "--tpu" in (sys.argv if words is None else words)
        if getattr(namespace, "total_num_update", "") is None:
            namespace.total_num_update = getattr(namespace, "max_update", None)
            is_polynomial = getattr(namespace, "lr_scheduler", None) == "polynomial_decay"
            if is_polynomial and not namespace.total_num_update and not isinstance(parsed, tuple):
                parser.error("--lr-scheduler polynomial_decay needs --total-num-update N")
        return parsed


def keep_every_sentence() -> None:
    """Restore the sentences that fairseq drops when it builds batches.

    Since 0.12.3, `batch_by_size` drops the last batch if its size is not a multiple of
    --required-batch-size-multiple, which is 8 by default. The model is then never trained on the
    longest sentences, and fairseq-generate silently omits up to a batch of the test set.
    """

    @wrap(fairseq.data.data_utils, "batch_by_size")
    def batch_by_size(batch: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        batches = batch(indices, *args, **kwargs)
        size = sum(map(len, batches))
        return batches if size == len(indices) else [*batches, indices[size:]]


class _FormerNumpy:
    """numpy 2, supplemented with the functions of numpy 1 that fairseq calls."""

    compat = types.SimpleNamespace(long=np.int64)

    @staticmethod
    def percentile(values: Any, percents: Any, interpolation: Any) -> Any:
        return np.percentile(values, percents, method=interpolation)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def keep_former_numpy() -> None:
    """Let fairseq use np.compat.long and np.percentile(interpolation=), which numpy 2 removed.

    --num-batch-buckets and language modelling with --sample-break-mode eos need these functions.
    Only three of fairseq's data modules get them; all other modules use numpy unchanged.
    """
    data = fairseq.data
    for module in (data.token_block_dataset, data.language_pair_dataset, data.data_utils):
        module.np = _FormerNumpy()


def find_not_finite_modules() -> None:
    """Let fairseq identify the module that produced a NaN or infinite value.

    fairseq uses torch's old backward hooks, which raise StopIteration for the dictionaries of lists
    that encoders return.
    """

    def add_hooks(self: Any, module: torch.nn.Module) -> None:
        def forward(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            self.fhook_fn(module, inputs, output)
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: self.bhook_fn(module, None, gradient))

        self.fhooks.append(module.register_forward_hook(forward))

    fairseq.nan_detector.NanDetector.add_hooks = add_hooks


def end_epochs_under_another_update_freq() -> None:
    """Make fairseq train on all remaining batches of an epoch after --update-freq has changed.

    fairseq rounds up both the number of completed updates and the number of remaining ones. As a
    result, it skips a batch, and repeats the epoch instead of ending it.
    """

    @wrap(GroupedIterator, "__init__")
    def initialised(
        initialise: Any,
        self: Any,
        iterable: Any,
        chunk_size: int,
        skip_remainder_batch: bool = False,
    ) -> None:
        used = getattr(iterable, "n", 0)
        if used % chunk_size == 0:
            initialise(self, iterable, chunk_size, skip_remainder_batch)
            return
        if skip_remainder_batch:
            iterable.take(used + (len(iterable) - used) // chunk_size * chunk_size)
        initialise(self, iterable, chunk_size)
        self.total = self.n + math.ceil((len(iterable) - used) / chunk_size)


def keep_place_in_epoch() -> None:
    """Make fairseq resume an epoch with another number of processes or another size of batches.

    fairseq counts the batches of each process. Without this conversion, it would skip sentences or
    train on them twice, or fail because the epoch has fewer batches.
    """

    @wrap(EpochBatchIterator, "state_dict")
    def state_dict(save: Any, self: Any) -> dict[str, Any]:
        counts = {"num_shards": self.num_shards, "num_batches": len(self.frozen_batches)}
        return {**save(self), **counts}

    @wrap(EpochBatchIterator, "load_state_dict")
    def load_state_dict(load: Any, self: Any, state: dict[str, Any]) -> None:
        batches = len(self.frozen_batches)
        before = self.num_shards * state.get("num_batches", batches)
        place = state.get("iterations_in_epoch", 0) * state.get("num_shards", self.num_shards)
        load(self, {**state, "iterations_in_epoch": place * batches // before})


def copy_checkpoints_whole() -> None:
    """Make fairseq copy checkpoints to checkpoint_best.pt and checkpoint_last.pt atomically.

    fairseq overwrites the old file in place. If fairseq is killed or the disk is full, a truncated
    file remains, and a process that has mapped the old file may end with SIGBUS.
    """

    def copy(source: str, target: str, overwrite: bool = False) -> bool:
        copy_checkpoint(Path(source), Path(target))
        return True

    PathManager.copy = copy


def keep_best_after_nan() -> None:
    """Make fairseq ignore a validation loss of NaN when it selects checkpoint_best.pt.

    After a loss of NaN, fairseq would take the next checkpoint for the best, even if it is worse.
    """

    @wrap(fairseq.checkpoint_utils, "save_checkpoint")
    def save_checkpoint(save: Any, cfg: Any, trainer: Any, epoch_itr: Any, loss: Any) -> Any:
        return save(cfg, trainer, epoch_itr, None if loss is None or math.isnan(loss) else loss)


def check_checkpoints() -> None:
    """Make fairseq refuse checkpoints that are damaged, contain code or have non-finite weights.

    fairseq verifies no checksums, so a flipped bit silently changes a weight. Options that refer to
    environment variables are also refused, because OmegaConf would insert the variables' values.
    """

    @wrap(fairseq.checkpoint_utils, "load_checkpoint_to_cpu")
    def load_checkpoint_to_cpu(load: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        with naming_damage(path):
            refuse_damaged(path)
            state = load(path, *args, **kwargs)
            config = state.get("cfg")
            if isinstance(config, omegaconf.Container):
                config = omegaconf.OmegaConf.to_container(config, resolve=False)
            literals.check_state({**state, "cfg": config}, path)
            refuse_not_finite(state, path)
        return RECEIVERS[-1](state) if RECEIVERS else state


def check_fused_language_models() -> None:
    """Make fairseq refuse a --lm-path that it ignores, or whose dictionary has other indices."""

    @wrap(fairseq.tasks.FairseqTask, "build_generator")
    def build_generator(build: Any, self: Any, models: Any, args: Any, **options: Any) -> Any:
        path = getattr(args, "lm_path", None)
        lm = (options.get("extra_gen_cls_kwargs") or {}).get("lm_model")
        if path and (lm is None or lm.decoder.dictionary != self.target_dictionary):
            raise ConfigurationError(
                f"--lm-path {path} needs fairseq-generate and a language model whose dictionary is"
                " the target dictionary"
            )
        return build(self, models, args, **options)


def evaluate_every_token() -> None:
    """Make fairseq-eval-lm refuse samples longer than the model's context, which it would skip."""

    @wrap(LanguageModelingTask, "eval_lm_dataloader")
    def eval_lm_dataloader(build: Any, self: Any, dataset: Any, **options: Any) -> Any:
        longest, limit = max(dataset.sizes), options["max_positions"]
        if window := options["context_window"]:
            longest = max(longest, min(longest, self.args.tokens_per_sample) + window)
            options["num_workers"] = min(options["num_workers"], 1)  # several mix up contexts
        if longest > limit:
            raise ConfigurationError(
                f"samples have up to {longest} tokens, but the model has {limit} positions; give"
                f" --tokens-per-sample {limit}, or split long lines"
            )
        return build(self, dataset, **options)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that defines a safe `eval` in each fairseq module."""

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["eval"] = evaluate
        super().exec_module(module)


class _Finder(importlib.machinery.PathFinder):
    """Finder that makes _Loader load the fairseq modules that are imported later."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def evaluate(value: object, *namespaces: object) -> Any:
    """Return a literal's value without running code; fairseq calls this function as `eval`.

    Raises:
        ConfigurationError: if the text is not a literal.
        TypeError: like `eval`, if the value is not a string.
    """
    if not isinstance(value, str):
        raise TypeError(f"a literal is text, not {type(value).__name__}")
    return literals.evaluate(value)


def evaluate_only_literals() -> None:
    """Make fairseq call `evaluate` instead of `eval` on model, optimiser and data options.

    These options may come from checkpoints, configs and data folders. As they are plain strings,
    torch's weights-only loader accepts them.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
            module.__dict__["eval"] = evaluate
    sys.meta_path.insert(0, _Finder)


def quote_file_names() -> None:
    """Quote the paths of .fasta files, because fairseq passes them to a shell."""

    @wrap(fairseq.data.fasta_dataset.FastaDataset, "_build_index")
    def _build_index(build_index: Any, self: Any, path: str) -> Any:
        return build_index(self, shlex.quote(str(Path(path).absolute())))


def end_readers() -> None:
    """Stop the threads that prefetch batches, so that a finished program exits with status 0.

    If Python stops such a thread inside C++ code, the program aborts with "terminate called without
    an active exception" and status -6, although its output is complete.
    """
    until = time.monotonic() + PATIENCE
    for reader in threading.enumerate():
        if not isinstance(reader, BackgroundConsumer):
            continue
        reader._max_len = 0  # the thread then ends after its current batch
        while reader.is_alive() and time.monotonic() < until:
            try:
                reader._queue.get(timeout=0.05)  # the thread may be blocked on a full queue
            except queue.Empty:
                continue
