"""Fixtures of the unit tests: the table of schemes and a padded batch."""

from collections.abc import Iterator

import pytest
import torch

from fairseq_deepnet.schemes import SCHEMES
from tests.support.models import SYMBOLS, Schemes


@pytest.fixture
def schemes() -> Iterator[Schemes]:
    """Return the table of schemes, and restore it with its order after the test."""
    before = dict(SCHEMES)
    yield SCHEMES
    SCHEMES.clear()
    SCHEMES.update(before)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Return three sentence pairs of different lengths, padded as in fairseq."""
    generator = torch.Generator().manual_seed(7)
    pad, eos = 1, 2
    source = torch.randint(4, 4 + SYMBOLS, (3, 9), generator=generator)
    target = torch.randint(4, 4 + SYMBOLS, (3, 8), generator=generator)
    source[:, -1] = eos
    target[:, 0] = eos
    source[1, :4] = pad
    source[2, :1] = pad
    target[0, 6:] = pad
    target[2, 3:] = pad
    return {
        "src_tokens": source,
        "src_lengths": source.ne(pad).sum(1),
        "prev_output_tokens": target,
    }
