"""What scripts take from the environment, as options of the subcommand that they hand over to.

`deepnet sweep --variables fig6` takes GPUS=8 as --gpus=8, and DRY_RUN=1 as --dry-run. A variable
that is not set, or is empty, is the option's default. `deepnet preprocess` has its own table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

OF_SUBCOMMAND: Final = {
    "download": "OUT JOBS",
    "evaluate": "DATA SPLIT BEAM LENPEN AVERAGE GPUS PROCESSES ENGINE QUANTIZATION THREADS BATCH "
    "DIRECTIONS TEXT TOKENIZER OUT",
    "m2m": "SET RAW TEXT OUT DATA BEAM LENPEN AVERAGE GPUS PROCESSES ENGINE QUANTIZATION THREADS "
    "BATCH DIRECTIONS TOKENIZER",
    "perplexity": "DATA SPLIT AVERAGE GPUS BATCH OUT",
    "sweep": "GPUS PARALLEL THREADS SEEDS DATA CONFIG RUNS ONLY RETRY TERAFLOPS MEMORY "
    "DRY_RUN TINY",
    "train": "RUN DATA GPUS NODES NODE_RANK NODE_TIMEOUT LAUNCHER CPU_PROCESSES THREADS PRECISION "
    "PREEMPTION_GRACE MEMORY RESUME DRY_RUN",
}
"""Variables by the name of the subcommand."""
_SWITCH: Final = ("[01]", "0 or 1")
_NUMBER: Final = ("[0-9]+", "a number")
_MUST_BE: Final = {
    **dict.fromkeys(("DRY_RUN", "TINY", "RESUME"), _SWITCH),
    **dict.fromkeys(("JOBS", "BEAM", "AVERAGE", "BATCH"), _NUMBER),
    **dict.fromkeys(("PROCESSES", "PARALLEL", "THREADS"), _NUMBER),
    "SPLIT": ("[A-Za-z0-9_]+", "a name such as test or valid"),
    "ENGINE": ("fairseq|ctranslate2", "fairseq or ctranslate2"),
}


def options(subcommand: str, environment: Mapping[str, str]) -> list[str]:
    """Return the options that variables stand for; ValueError for a value that cannot be."""
    words = []
    for name in OF_SUBCOMMAND[subcommand].split():
        text = environment.get(name)
        if not text:
            continue
        pattern, what = _MUST_BE.get(name, ("(?s).*", ""))
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{name} is {text!r}; it must be {what}")
        option = f"--{name.lower().replace('_', '-')}"
        if (pattern, what) != _SWITCH:
            words.append(f"{option}={text}")
        elif text == "1":
            words.append(option)
    return words
