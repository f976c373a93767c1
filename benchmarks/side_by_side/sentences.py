"""Generated corpus with the lengths of Multi30k, batched by fairseq."""

from __future__ import annotations

import math
import random
from typing import Any, Final

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.tasks import FairseqTask

EOS: Final = 2
SPECIAL: Final = 4

# Statistics of data/multi30k.de-en with a joint vocabulary of 4,001: the number of pairs, mean and
# deviation of log(source subwords) and log(target / source), and the extreme lengths. fairseq sorts
# by length before it builds batches, so the share of padding depends on the number of pairs. Here,
# as in the corpus, it is 4 % of the targets at 1,024 tokens per batch and 13 % at 4,096.
PAIRS: Final = 28_998
LOG_LENGTH: Final = (2.80, 0.34)
LOG_RATIO: Final = (-0.05, 0.17)
SHORTEST, LONGEST = 5, 62


class Pairs(LanguagePairDataset):
    """Pairs whose batches do not depend on fairseq's handling of the last batch.

    fairseq drops the last batch if its size is not a multiple of eight, and the plugin keeps it.
    All systems must receive the same batches.
    """

    def batch_by_size(self, indices: Any, **options: Any) -> Any:
        batches = super().batch_by_size(indices, **options)
        return [batch for batch in batches if len(batch) % 8 == 0] or batches


class MadeUpTask(FairseqTask):
    """Task with random pairs in memory, and a joint dictionary of the given size."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(None)
        self.words = Dictionary()
        for number in range(vocabulary - len(self.words)):
            self.words.add_symbol(f"w{number}")
        self.datasets = {"train": self.pairs(PAIRS)}

    @property
    def source_dictionary(self) -> Dictionary:
        return self.words

    @property
    def target_dictionary(self) -> Dictionary:
        return self.words

    def pairs(self, count: int) -> Pairs:
        draw = random.Random(1)
        lengths = []
        for _ in range(count):
            log_source = draw.gauss(*LOG_LENGTH)
            logs = (log_source, log_source + draw.gauss(*LOG_RATIO))
            lengths.append([min(max(round(math.exp(x)), SHORTEST), LONGEST) for x in logs])
        generator = torch.Generator().manual_seed(1)
        sides = []
        for sizes in zip(*lengths, strict=True):
            words = torch.randint(SPECIAL, len(self.words), (sum(sizes),), generator=generator)
            sentences = list(words.split(list(sizes)))
            for sentence in sentences:
                sentence[-1] = EOS
            sides.append((sentences, np.array(sizes)))
        (source, source_sizes), (target, target_sizes) = sides
        return Pairs(source, source_sizes, self.words, target, target_sizes, self.words)
