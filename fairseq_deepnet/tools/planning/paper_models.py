"""The sizes that the DeepNet paper (arXiv 2203.00555) prints, counted from its shapes."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tabulate import tabulate

from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.planning.estimates import estimate


@dataclasses.dataclass(frozen=True)
class PaperModel:
    """A model of the paper: where it stands, our name of it, and its parameters as printed.

    Args:
        vocabulary: entries of its one embedding; the paper does not state it
        assumed: why this number
    """

    table: str
    arch: str
    vocabulary: int
    assumed: str
    printed: str

    def count(self) -> int:
        """Count parameters with one table for source, target and vocabulary projection."""
        options: dict[str, configs.Value] = {
            "arch": self.arch,
            "share-all-embeddings": True,
            "max-tokens": 4096,
            "optimizer": "adam",
            "criterion": "label_smoothed_cross_entropy",
        }
        config = configs.Config(self.arch, options, {})
        return estimate(config, 1, 80, 1, self.vocabulary).parameters


ROWS: Final = (
    PaperModel("Table 2", "deepnet_transformer_opus100_200", 250_002, "XLM-R's subwords", "863M"),
    PaperModel("Table 2", "deepnet_transformer_opus100_1000", 250_002, "XLM-R's subwords", "3.8B"),
    PaperModel("Table 3", "deepnet_transformer_mm102", 256_125, "Flores-101's subwords", "3.2B"),
)

REMARK: Final = (
    "The paper states no vocabulary; these are the known ones that give its sizes. Its baselines of"
    " 133M, 173M and 254M parameters (Table 2) are Zhang et al.'s (2020), with merged attention and"
    " parameters for each language: other models than any arch here. M2M-100's 12B (Table 3) are"
    " Fan et al.'s."
)


def rounded(parameters: int) -> str:
    """Write a number as the paper's tables do, which cut off: 863M, 3.8B."""
    if parameters >= 10**9:
        return f"{parameters / 10**9:.1f}B"
    return f"{parameters // 10**6}M"


def as_json() -> list[dict[str, Any]]:
    """Return the paper's models: printed size, vocabulary assumed, and our count."""
    rows = []
    for row in ROWS:
        counted = row.count()
        rows.append(dataclasses.asdict(row) | {"counted": counted, "rounded": rounded(counted)})
    return rows


def as_text() -> str:
    """Return the same as a table."""
    head = ("where", "arch", "one embedding of", "parameters", "rounded", "paper")
    rows = [head]
    for row in as_json():
        words = f"{row['vocabulary']:,} ({row['assumed']})"
        cells = (row["table"], row["arch"], words, f"{row['counted']:,}")
        rows.append((*cells, row["rounded"], row["printed"]))
    return f"{tabulate(rows, tablefmt='plain', disable_numparse=True)}\n\n{REMARK}"
