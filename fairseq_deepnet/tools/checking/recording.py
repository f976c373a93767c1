"""Watching a forward pass from outside: a random batch, and hooks that keep inputs and outputs.

Shapes: n = tokens of the batch, C = channels; what is kept is flattened to [n, C].
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Stack

SOURCE, TARGET, SENTENCES, FIRST_WORD = 11, 13, 4, 4  # of the random batch


def random_batch(model: nn.Module, stacks: Sequence[Stack]) -> dict[str, Tensor]:
    """Random tokens for the arguments of the model's forward, without padding."""
    sizes = {stack.side.value: _entries(stack) for stack in stacks}
    first, last = next(iter(sizes.values())), list(sizes.values())[-1]
    source = torch.randint(FIRST_WORD, first, (SENTENCES, SOURCE))
    target = torch.randint(FIRST_WORD, last, (SENTENCES, TARGET))
    given = {
        "src_tokens": source,
        "src_lengths": torch.full((SENTENCES,), SOURCE),
        "prev_output_tokens": target,
    }
    wanted = inspect.signature(model.forward).parameters
    return {name: value for name, value in given.items() if name in wanted}


def _entries(stack: Stack) -> int:
    if stack.table is None:
        raise ValueError(f"{stack.name} has no embed_tokens: the check cannot make a batch for it")
    return int(stack.table.num_embeddings)


def first_tensor(output: Any) -> Tensor:
    """The tensor that a module gives, or the first of what it gives."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else next(iter(kwargs.values()))


class Recorder:
    """Inputs and outputs of modules, in the order of their calls, as [n, C]."""

    def __init__(self) -> None:
        self.inputs: dict[nn.Module, list[Tensor]] = defaultdict(list)
        self.outputs: dict[nn.Module, list[Tensor]] = defaultdict(list)

    def watch(self, module: nn.Module) -> list[Any]:
        """Hooks, to be removed."""
        return [
            module.register_forward_pre_hook(self._enter, with_kwargs=True),
            module.register_forward_hook(self._leave),
        ]

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.inputs[module].append(_flat(_given(args, kwargs)))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.outputs[module].append(_flat(first_tensor(output)))

    def call(self, module: nn.Module | None) -> tuple[Tensor, Tensor] | None:
        """Input and output of the next call not yet asked for; None where there was none."""
        if module is None or not self.outputs[module]:
            return None
        return self.inputs[module].pop(0), self.outputs[module].pop(0)


def _flat(x: Tensor) -> Tensor:
    # a copy: layers may go on with their tensor in place
    return x.detach().reshape(-1, x.size(-1)).clone()


def _randomise(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A pre-hook that gives a layer a random input: no layer sees what those below do wrong."""
    if args:
        return (torch.randn_like(args[0]), *args[1:]), kwargs
    name, x = next(iter(kwargs.items()))
    return args, {**kwargs, name: torch.randn_like(x)}


@contextmanager
def recording(stacks: Sequence[Stack]) -> Iterator[Recorder]:
    """Watch all layers, branches and norms; layers get a random input."""
    recorder, hooks = Recorder(), []
    for stack in stacks:
        watched: dict[nn.Module, None] = {}
        for layer in stack.layers:
            if layer.module not in watched:
                hooks.append(layer.module.register_forward_pre_hook(_randomise, with_kwargs=True))
            watched[layer.module] = None
            for branch in layer.branches:
                for module in (branch.entry, branch.exit, branch.norm):
                    if module is not None:
                        watched[module] = None
        if stack.final_norm is not None:
            watched[stack.final_norm] = None
        for module in watched:
            hooks += recorder.watch(module)
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def recording_streams(stacks: Sequence[Stack]) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """Inputs and outputs of layers as they are: stack's name -> a pair a layer, bottom first."""
    recorder, hooks = Recorder(), []
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for module in {layer.module: None for stack in stacks for layer in stack.layers}:
        hooks += recorder.watch(module)
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
    for stack in stacks:
        calls = [recorder.call(layer.module) for layer in stack.layers]
        found[stack.name] = [call for call in calls if call is not None]


@contextmanager
def filled(stacks: Sequence[Stack]) -> Iterator[None]:
    """Give linear maps that start at 0 random weights for a while: 0 hides what comes after it."""
    empty = []
    for stack in stacks:
        for _, _, _, linear in stack.linears():
            if not linear.weight.any():
                nn.init.xavier_normal_(linear.weight)
                empty.append(linear.weight)
    try:
        yield
    finally:
        for weight in empty:
            nn.init.zeros_(weight)
