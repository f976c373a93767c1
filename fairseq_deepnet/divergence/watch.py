"""The divergence watch: rank 0 judges, and all processes end the training together.

What rank 0 reads (gradient norms, the targets of its own batches) is partly its own, so that it
alone decides; where there are several processes it tells the others at every LOOK-th update, at
which all of them listen. fairseq's own FloatingPointError reaches all at once. Nothing here changes
a number of the training, and no mistake of the judge ends it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..monitoring.trainer import Observer
from . import good_states, restart
from .broken import Broken
from .events import Event
from .judge import LOOK, Judge
from .leaving import leave, told
from .options import Policy, WatchSettings

logger = logging.getLogger(__name__)


class Watch(Observer):
    """Watches one training.

    Args:
        settings: of divergence.options
        trainer: fairseq's, just made
        folder: where divergence.jsonl and fallback.json lie: records.run_folder

    Raises:
        ConfigurationError: for the policy fallback in a program that cannot be started anew.
    """

    def __init__(self, settings: WatchSettings, trainer: Any, folder: Path) -> None:
        if settings.policy is Policy.FALLBACK:
            restart.require_program()
        self.settings, self.folder = settings, folder
        self.save_dir = Path(trainer.cfg.checkpoint.save_dir)
        self.is_first = bool(trainer.is_data_parallel_master)
        self.alone = trainer.data_parallel_world_size == 1
        self.judge = Judge(settings, trainer, folder) if self.is_first else None
        self.start = good_states.Start(0, time.time())
        self.epoch_itr: Any = None
        if settings.acts and settings.good_interval and not trainer.cfg.checkpoint.no_save:
            self._keep_iterator(trainer)

    def _keep_iterator(self, trainer: Any) -> None:
        """fairseq gives its trainer no epoch iterator, which a state to return to must hold."""
        make = trainer.get_train_iterator

        @functools.wraps(make)
        def get_train_iterator(*args: Any, **kwargs: Any) -> Any:
            self.epoch_itr = make(*args, **kwargs)
            return self.epoch_itr

        trainer.get_train_iterator = get_train_iterator

    @property
    def due(self) -> Event | None:
        """The event that ends the training; None where there is none, or elsewhere than here."""
        return None if self.judge is None else self.judge.due

    def _ask(self, method: str, *args: Any) -> None:
        """Let the judge, if this process has one, look at the training; a mistake ends it alone:
        without this process the others would wait for its word for ever.
        """
        if self.judge is None:
            return
        try:
            getattr(self.judge, method)(*args)
        except Exception:
            logger.warning("the divergence watch has failed and is off from here on", exc_info=True)
            self.judge.detach()
            self.judge = None

    def loaded(self, trainer: Any, update: int) -> None:
        self.start = good_states.Start(update, time.time())
        self._ask("loaded", trainer, update)
        if self.is_first and self.settings.acts:
            good_states.begin(self.save_dir, update)

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        self._ask("begin", trainer, update, samples)

    def gradients(self, trainer: Any, update: int) -> None:
        self._ask("gradients", trainer, update)

    def end(self, trainer: Any, update: int, made: bool) -> None:
        self._ask("end", trainer, update, made)
        if self.settings.acts:
            if self.alone or (made and update % LOOK == 0):
                self._act(trainer, update)
            if made and self.epoch_itr is not None and update % self.settings.good_interval == 0:
                self._save(trainer)

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if not Broken.blames_numbers(error):
            return  # processes that disagree are no divergence
        self._ask("failed", trainer, update, error)
        if self.settings.acts:
            leave(self, trainer, update)

    def detach(self) -> None:
        if self.judge is not None:
            self.judge.detach()

    def _act(self, trainer: Any, update: int) -> None:
        """End the training where an event is due; with several processes, all at one update."""
        if told(self, trainer, self.due is not None):
            leave(self, trainer, update)

    def _save(self, trainer: Any) -> None:
        """Keep a state to return to; where that fails, the next one may succeed."""
        try:
            good_states.save(trainer, self.epoch_itr, self.save_dir)
        except Exception:
            logger.warning("no good state was saved", exc_info=True)
