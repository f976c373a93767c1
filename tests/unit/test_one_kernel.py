"""The loss's one kernel: its formulas, that it is compiled once, and what happens where it is not.

A CPU stands for the GPU. torch.compile traces the same code; only the last step, C++ here and
Triton there, differs, and is left to the slow test, because its first compilation takes 12 s.
"""

import logging
import subprocess
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._dynamo.backends.debugging import aot_eager

from fairseq_deepnet.criterions import chunked, one_kernel

VOCABULARY, WIDTH, PAD = 50, 8, 1


class Counting:
    """torch.compile's backend that traces everything, generates nothing, and counts."""

    compilations = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.compilations += 1
        return aot_eager(*given, **named)


def refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no compiler here\nand more about it")


def use(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Let the CPU have the kernel, in chunks of 6 tokens."""
    monkeypatch.setattr(chunked, "FUSED_ON", ("cpu",))
    monkeypatch.setattr(chunked, "CPU_ROWS", (6, 6))
    monkeypatch.setattr(chunked, "one_kernel", one_kernel.OneKernel(backend))


def inputs(tokens: int, dtype: torch.dtype, bias: bool = True) -> list[Tensor]:
    """Features, weight, bias and targets."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(tokens, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [*made, torch.randint(2, VOCABULARY, (tokens,), generator=generator)]


def walk(tokens: int, dtype: torch.dtype, gradients: bool = True) -> tuple[Any, chunked.Losses]:
    """Gradients, and what else a walk through all chunks gives."""
    given = inputs(tokens, dtype)
    done = chunked.ChunkWalk(*given, 0.1, dtype, wanted=(gradients,) * 3, accuracy=True)
    losses = done.run()
    assert done.spare is None or not chunked.FUSED_ON or chunked.one_kernel.given_up
    return done.grads, losses


def assert_equal_to_plain(monkeypatch: pytest.MonkeyPatch, tokens: int, dtype: torch.dtype) -> None:
    grads, losses = walk(tokens, dtype)
    with monkeypatch.context() as plain:
        plain.setattr(chunked, "FUSED_ON", ())
        expected, expected_losses = walk(tokens, dtype)
    # half precision rounds p - a, which differs by 1e-7, to the next number now and then
    bound = 1e-6 if dtype in (torch.float32, torch.float64) else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(losses, expected_losses, rtol=1e-6, atol=0)
    for ours, theirs in zip(grads, expected, strict=True):
        assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lift", [1.0, 2.0**14])
def test_formulas_are_those_of_the_softmax(dtype: torch.dtype, lift: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 5 * torch.randn(7, VOCABULARY, generator=generator)
    target = torch.randint(0, VOCABULARY, (7,), generator=generator)
    exact = logits.double()
    p = exact.softmax(dim=1)
    p[torch.arange(7), target] -= 0.9
    nll, log_sum, table = torch.empty(7), torch.empty(7), torch.empty_like(logits, dtype=dtype)
    one_kernel.differences(logits, target, nll, log_sum, table, 0.9, lift)
    torch.testing.assert_close(log_sum.double(), exact.logsumexp(dim=1), rtol=1e-6, atol=0)
    wanted = torch.nn.functional.cross_entropy(exact, target, reduction="none")
    torch.testing.assert_close(nll.double(), wanted, rtol=1e-6, atol=1e-6)
    bound = max(1e-6, torch.finfo(dtype).eps)
    torch.testing.assert_close(table.double() / lift, p, rtol=bound, atol=1e-7)


@pytest.mark.parametrize("fails", ["compiling", "launching", "switched off"])
def test_the_loss_is_still_right_without_the_kernel_and_one_warning_says_so(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, refuse if fails == "compiling" else Counting())
    if fails == "launching":  # after all that comes before the table has been written

        def launch(logits: Tensor, target: Tensor, nll: Tensor, log_sum: Tensor, *_: Any) -> None:
            nll.fill_(7)
            log_sum.fill_(7)
            raise RuntimeError("Triton Error [CUDA]: no compiler here\nand more about it")

        monkeypatch.setattr(chunked.one_kernel, "_compiled", launch)
    with (
        caplog.at_level(logging.WARNING, logger=one_kernel.__name__),
        dynamo.patch(disable=fails == "switched off"),
    ):
        assert_equal_to_plain(monkeypatch, 15, torch.float32)
        walk(15, torch.float32)
    (said,) = [record.getMessage() for record in caplog.records]
    assert ("switched off" if fails == "switched off" else "no compiler here") in said
    assert "nothing need be done" in said
    assert "no fused kernel for the loss, which needs torch.compile with Triton" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA has none left"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=["torch", "triton"],
)
@pytest.mark.parametrize("fails", ["compiling", "launching"])
def test_a_lack_of_memory_is_raised_and_the_kernel_kept(
    fails: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq catches a lack of memory itself, and makes the update with less."""

    def full(*_: Any, **__: Any) -> Any:
        raise error

    use(monkeypatch, full if fails == "compiling" else Counting())
    if fails == "launching":
        monkeypatch.setattr(chunked.one_kernel, "_compiled", full)
    with pytest.raises(RuntimeError):
        walk(15, torch.float32)
    assert not chunked.one_kernel.given_up


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_compiled_it_gives_the_numbers_of_torchs_own_kernels(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    try:
        subprocess.run(["g++", "--version"], check=True, capture_output=True)
    except OSError:
        pytest.skip("needs a C++ compiler")
    use(monkeypatch, "inductor")
    for tokens in (15, 4):
        assert_equal_to_plain(monkeypatch, tokens, dtype)
    assert not chunked.one_kernel.given_up
