"""`--store-ema` keeps the moving average that it promises, and resumes it.

What fairseq-fixed 0.12.3.1 does otherwise, all mended here:

- Every update takes the average for a checkpoint of fairseq before 0.6, as it names no version, and
  drops the final LayerNorm of its decoder.
- A tied weight is averaged once for each of its names: with --share-all-embeddings three times an
  update, which is the decay to the power of three.
- A checkpoint of a training without the option ends in a KeyError. fairseq means the average to
  begin with the checkpoint's weights, which it has dropped by then.
- --ema-update-freq counts the updates since the last start.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from fairseq.models.ema import EMA
from fairseq.trainer import Trainer
from torch import Tensor

from ..wrapping import wrap

logger = logging.getLogger(__name__)


def apply() -> None:
    """Mend all of these."""

    @wrap(EMA, "restore")
    def restore(restore: Any, self: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        held = self.model.state_dict().items()
        kept = {name: one for name, one in held if name not in state or "version" in name}
        restore(self, {**state, **kept}, *args, **kwargs)

    @wrap(EMA, "_step_internal")
    def average(average: Any, self: Any, model: Any, updates: int | None = None) -> None:
        held = self.fp32_params if self.config.ema_fp32 else self.model.state_dict()
        tensors = {name: held[name] for name in held if isinstance(held[name], Tensor)}
        once = {tensor.data_ptr(): name for name, tensor in tensors.items()}
        tied = tensors.keys() - once.values()
        state = {name: one for name, one in model.state_dict().items() if name not in tied}
        average(self, SimpleNamespace(state_dict=lambda: state), updates)

    @wrap(EMA, "step")
    def step(step: Any, self: Any, model: Any, updates: int | None = None) -> None:
        if updates is not None:
            self.update_freq_counter = (updates - 1) % max(1, self.config.ema_update_freq)
        step(self, model, updates)

    @wrap(Trainer, "load_checkpoint")
    def load_checkpoint(load: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted, self.cfg.ema.store_ema = self.cfg.ema.store_ema, False
        try:
            extra_state = load(self, *args, **kwargs)
        finally:
            self.cfg.ema.store_ema = wanted
        if not wanted or extra_state is None:
            return extra_state
        ema = self.ema  # begins with the weights that were loaded
        if "ema" not in extra_state:
            logger.warning("the checkpoint has no moving average: it begins with the weights")
            return extra_state
        ema.restore(extra_state["ema"])
        if ema.config.ema_fp32:
            ema.build_fp32_params(extra_state.get("ema_fp32_params"))
        return extra_state
