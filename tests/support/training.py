"""fairseq-train without importing torch and fairseq anew: here, or in processes of a server."""

import json
import multiprocessing
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed.utils import call_main
from fairseq_cli import train

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
from fairseq_deepnet import save_dir as save_dirs
from fairseq_deepnet.errors import ConfigurationError


def configuration(data: Path, save_dir: Path, *arguments: object) -> Any:
    """fairseq's configuration of `fairseq-train DATA --save-dir SAVE_DIR ARGUMENTS`."""
    command = [str(part) for part in (data, "--save-dir", save_dir, *arguments)]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, command))


def train_here(data: Path, save_dir: Path, *arguments: object) -> dict[str, Any]:
    """Train as `fairseq-train DATA --save-dir SAVE_DIR ARGUMENTS` does; its last checkpoint."""
    try:
        train.main(configuration(data, save_dir, *arguments))
    finally:  # as the end of the process does
        while save_dirs._LOCKS:
            os.close(save_dirs._LOCKS.popitem()[1])
    held: dict[str, Any] = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    return held


def nothing(_: int) -> None:
    """Begin a training as it is."""


def train_together(
    data: Path, save_dir: Path, *arguments: object, begin: Callable[[int], None] = nothing
) -> list[int | None]:
    """Train in two processes on the CPU; their exit statuses.

    One that is refused ends with 2, and SAVE_DIR/refused_RANK says why.

    Arguments:
        arguments: of fairseq-train; legacy_ddp is the backend unless they name another
        begin: called in each process with its rank; a function of a module
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    words = ["--ddp-backend=legacy_ddp", "--distributed-backend=gloo", "--distributed-no-spawn"]
    words += ["--device-id=0", "--distributed-world-size=2"]
    words += [f"--distributed-init-method=tcp://127.0.0.1:{free_port()}"]
    ranks = [
        context.Process(
            target=_train_as, args=(rank, begin, data, save_dir, *words, *arguments), daemon=True
        )
        for rank in (0, 1)
    ]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(300)
        return [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def _train_as(
    rank: int, begin: Callable[[int], None], data: Path, save_dir: Path, *words: object
) -> None:
    begin(rank)
    try:
        call_main(configuration(data, save_dir, *words, f"--distributed-rank={rank}"), train.main)
    except ConfigurationError as error:
        (save_dir / f"refused_{rank}").write_text(str(error), encoding="utf-8")
        raise SystemExit(2) from error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def finish(processes: list["subprocess.Popen[str]"]) -> None:
    """Wait for all; one that fails takes the others with it."""
    try:
        for process in processes:
            output = process.communicate(timeout=900)[0]
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()


def logged(lines: list[str], name: str) -> list[float]:
    """A metric's values in the lines of --log-format=json, in order."""
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    return [float(found[name]) for found in objects if name in found]
