"""fairseq-train in this process, or in processes of a fork server, with torch already imported."""

import fcntl
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
    """Return the configuration of `fairseq-train DATA --save-dir SAVE_DIR ARGUMENTS`."""
    command = [str(part) for part in (data, "--save-dir", save_dir, *arguments)]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, command))


def train_here(data: Path, save_dir: Path, *arguments: object) -> dict[str, Any]:
    """Run `fairseq-train DATA --save-dir SAVE_DIR ARGUMENTS` and return the last checkpoint."""
    try:
        train.main(configuration(data, save_dir, *arguments))
    finally:  # as at the end of a process
        while save_dirs._LOCKS:
            _, descriptor = save_dirs._LOCKS.popitem()
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # data-loading workers share the lock
            os.close(descriptor)
    checkpoint: dict[str, Any] = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    return checkpoint


def assert_same_checkpoints(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Compare weights and the optimiser's state, which depends on every gradient, bit by bit."""
    for part in ("model", "last_optimizer_state"):
        torch.testing.assert_close(first[part], second[part], rtol=0, atol=0)


def nothing(_: int) -> None:
    """Do nothing before a run."""


def train_together(
    data: Path, save_dir: Path, *arguments: object, begin: Callable[[int], None] = nothing
) -> list[int | None]:
    """Train in two processes on the CPU and return their exit statuses.

    After a ConfigurationError the status is 2, and SAVE_DIR/refused_RANK contains the message.

    Args:
        arguments: arguments of fairseq-train; the default backend is legacy_ddp.
        begin: module-level function, called in each process with its rank.
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


def finish(*processes: "subprocess.Popen[str]") -> list[str]:
    """Return the output of all processes; a failure ends the others."""
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=900)[0])
            assert process.returncode == 0, outputs[-1]
    finally:
        for process in processes:
            process.kill()
    return outputs


def logged(lines: list[str], name: str) -> list[float]:
    """Return a metric's values in the lines of --log-format=json, in order."""
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    return [float(record[name]) for record in objects if name in record]
