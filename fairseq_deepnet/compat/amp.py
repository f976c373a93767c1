"""`--amp` makes the updates that it promises.

What fairseq-fixed 0.12.3.1 does otherwise:

- Gradients are divided by the loss scale twice: the scaler is told to unscale torch's optimiser and
  to step fairseq's, and takes the two for different ones. So Adam's epsilon grows with the scale.
- Gradients are cleared past fairseq's optimiser, and what that has kept for the step that an
  overflow left out stays for the next.
"""

from __future__ import annotations

from typing import Any

from fairseq.optim.amp_optimizer import AMPOptimizer

from ..wrapping import wrap


def apply() -> None:
    """Mend both."""

    @wrap(AMPOptimizer, "step")
    def step(step: Any, self: Any) -> None:
        states = self.scaler._per_optimizer_states
        if self.scaler.is_enabled():
            states[id(self.fp32_optimizer)] = states[id(self.optimizer)]
        step(self)

    @wrap(AMPOptimizer, "zero_grad")
    def zero_grad(zero_grad: Any, self: Any) -> None:
        self.fp32_optimizer.zero_grad()
