"""fairseq-train inside the tests' own process: no second import of torch and fairseq."""

import json
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)


def train_here(data: Path, save_dir: Path, *arguments: object) -> dict[str, Any]:
    """Train as `fairseq-train DATA --save-dir SAVE_DIR ARGUMENTS` does; its last checkpoint."""
    command = [str(part) for part in (data, "--save-dir", save_dir, *arguments)]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, command)
    train.main(convert_namespace_to_omegaconf(args))
    held: dict[str, Any] = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    return held


def logged(lines: list[str], name: str) -> list[float]:
    """A metric's values in the lines of --log-format=json, in order."""
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    return [float(found[name]) for found in objects if name in found]
