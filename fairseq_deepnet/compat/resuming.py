"""A training that is resumed makes the updates that it would have made without the interruption.

What fairseq-fixed 0.12.3.1 does otherwise, all mended here:

- Batches are made once for all epochs, under the seed of the epoch in which the *process* began.
  A run resumed in epoch 2 or later gets other batches than before: some sentences of that epoch
  come twice, others never.
- Workers that load data live for the whole training, and never hear which epoch it is. What a data
  set draws anew for each epoch (the masks of masked_lm) stays that of the epoch in which they
  started, and changes with an interruption.
- With --curriculum N that loader keeps the order of epoch 1 as well: a run that is not interrupted
  never begins to shuffle.
- How far an epoch has come is counted in batches of one process: with another number of processes
  a resumed run would leave sentences out, or take them twice. With --grouped-shuffling that number
  orders the batches, too: then another one is refused until the epoch ends.
- An epoch that is gone on with under another --update-freq is rounded up at both ends: a batch is
  left out, the epoch never ends, and all of it is made again.
- --patience counts validations from the last start, and what it has ended goes on when it is
  started again.
- Whether --max-update or --stop-time-hours is reached is asked after an update only: a training
  that had ended, or that was killed after its last checkpoint, makes one more whenever it is
  started again. Fine-tuning takes over the hours of the training it begins from.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final

import fairseq.checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.trainer import Trainer

from ..errors import ConfigurationError
from ..wrapping import wrap
from .owed_validation import begins_anew, training_program

logger = logging.getLogger(__name__)

SHARDS: Final = "num_shards"  # key of an epoch iterator's state
PATIENCE: Final = "patience"  # key of a checkpoint's extra_state


def apply() -> None:
    """Mend all of these."""
    end_epochs_under_another_update_freq()
    make_the_same_batches()
    shuffle_after_curriculum()
    keep_place_among_processes()
    keep_patience()
    make_no_update_too_many()


def make_the_same_batches() -> None:
    """Make batches that serve all epochs as a run that began in epoch 1 makes them.

    Iterators that fairseq makes anew for each epoch (sharded data, sampled languages) are left
    alone: they depend on their own epoch.
    """

    @wrap(FairseqTask, "get_batch_iterator")
    def get_batch_iterator(make: Any, self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        anew = kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
        if anew or not self.can_reuse_epoch_itr(dataset) or dataset in self.dataset_to_epoch_iter:
            return make(self, dataset, *args, **kwargs)
        epoch = kwargs.pop("epoch", 1)
        iterator = make(self, dataset, *args, **kwargs, epoch=1)
        dataset.set_epoch(epoch)
        iterator.epoch = epoch
        iterator.persistent_workers = False  # new ones each epoch, which know its number
        return iterator

    @wrap(TranslationMultiSimpleEpochTask, "get_batch_iterator")
    def get_batch_iterator_of_many(
        make: Any, self: Any, dataset: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # with --sampling-method RoundRobin it keeps one iterator over data drawn for each epoch
        self.dataset_to_epoch_iter.pop(dataset, None)
        return make(self, dataset, *args, **kwargs)


def shuffle_after_curriculum() -> None:
    """Let the loader that serves all epochs shuffle, or not, as each epoch asks for."""

    @wrap(EpochBatchIterator, "_get_iterator_for_epoch")
    def get_iterator_for_epoch(
        make: Any, self: Any, epoch: int, shuffle: bool, *args: Any, **kwargs: Any
    ) -> Any:
        if self.reuse_dataloader and self.dataloader is not None:
            self.epoch_batch_sampler.shuffle = shuffle
        return make(self, epoch, shuffle, *args, **kwargs)


def keep_place_among_processes() -> None:
    """Save how many processes share the batches, and go on behind those that all have made."""

    @wrap(EpochBatchIterator, "state_dict")
    def state_dict(save: Any, self: Any) -> dict[str, Any]:
        return {**save(self), SHARDS: self.num_shards}

    @wrap(EpochBatchIterator, "load_state_dict")
    def load_state_dict(load: Any, self: Any, state: dict[str, Any]) -> None:
        shards = state.get(SHARDS, self.num_shards)
        if shards != self.num_shards:
            made = state["iterations_in_epoch"] * shards
            if made and self.grouped_shuffling:
                raise ConfigurationError(
                    "--grouped-shuffling: the batches of this epoch are ordered for"
                    f" {shards} processes, and {self.num_shards} cannot go on within it; go on with"
                    f" {shards} until it ends, or begin the data anew: --reset-dataloader"
                )
            if made % self.num_shards:
                logger.warning(
                    "%d batches of the epoch were made by %d processes: %d of them are made again",
                    *(made, shards, made % self.num_shards),
                )
            state = {**state, "iterations_in_epoch": made // self.num_shards}
        load(self, state)


def end_epochs_under_another_update_freq() -> None:
    """Make all batches that an epoch has left, in groups of as many as there are now."""

    @wrap(GroupedIterator, "__init__")
    def initialised(
        initialise: Any,
        self: Any,
        iterable: Any,
        chunk_size: int,
        skip_remainder_batch: bool = False,
    ) -> None:
        made = getattr(iterable, "n", 0)
        if made % chunk_size == 0:
            initialise(self, iterable, chunk_size, skip_remainder_batch)
            return
        if skip_remainder_batch:
            iterable.take(made + (len(iterable) - made) // chunk_size * chunk_size)
        initialise(self, iterable, chunk_size)
        self.total = self.n + math.ceil((len(iterable) - made) / chunk_size)


def keep_patience() -> None:
    """Save with a checkpoint how many validations have passed without a better one."""

    @wrap(Trainer, "save_checkpoint")
    def save_checkpoint(save: Any, self: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        return save(self, filename, extra_state | {PATIENCE: dict(_counted())})

    @wrap(fairseq.checkpoint_utils, "load_checkpoint")
    def load_checkpoint(load: Any, cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        anew = begins_anew(cfg, trainer) or cfg.reset_optimizer or cfg.reset_meters
        extra_state, epoch_itr = load(cfg, trainer, **kwargs)
        if extra_state is not None and not anew:
            _counted().update(extra_state.get(PATIENCE, {}))
            if 0 < cfg.patience <= _counted().get("num_runs", 0):
                logger.info("--patience %d has ended this training: nothing to do", cfg.patience)
                trainer.cfg.optimization.max_epoch = -1
        return extra_state, epoch_itr


def make_no_update_too_many() -> None:
    """Train no epoch where the checkpoint has all of --max-update or --stop-time-hours already."""

    @wrap(fairseq.checkpoint_utils, "load_checkpoint")
    def load_checkpoint(load: Any, cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        anew = begins_anew(cfg, trainer)
        loaded = load(cfg, trainer, **kwargs)
        if anew:
            trainer._previous_training_time = 0
        limits, made = trainer.cfg.optimization, trainer.get_num_updates()
        # as it was saved, which is the same in all processes
        hours = trainer._previous_training_time / 3600
        reached = ""
        if limits.max_update and made >= limits.max_update:
            reached = f"update {made} of --max-update {limits.max_update} is made already"
        elif 0 < limits.stop_time_hours < hours:
            reached = (
                f"--stop-time-hours {limits.stop_time_hours:g} are over: {hours:.2f} were trained"
            )
        if reached:
            logger.info("%s: nothing to do", reached)
            limits.max_epoch = -1
        return loaded


def _counted() -> dict[str, Any]:
    """Return what fairseq-train counts for --patience: attributes of a function of its own."""
    program = training_program()
    return vars(program.should_stop_early) if program else {}
