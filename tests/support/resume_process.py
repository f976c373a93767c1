"""One of two processes that train without an interruption, then again from a checkpoint of it.

Run as `python -m tests.support.resume_process RANK PORT DATA FOLDER NAME ARGUMENTS...`; checkpoints
go to FOLDER/whole, and to FOLDER/part, which begins with FOLDER/whole/NAME. A training with another
scheme follows; FOLDER/refused_RANK says why it was refused.
"""

import shutil
import sys
from pathlib import Path

import torch.distributed
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed
from fairseq_cli import train

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
from fairseq_deepnet.errors import ConfigurationError


def main(rank: str, port: str, data: str, folder: str, name: str, *arguments: str) -> None:
    shared = ["--ddp-backend=legacy_ddp", "--distributed-backend=gloo", "--distributed-no-spawn"]
    shared += ["--device-id=0", "--distributed-world-size=2", f"--distributed-rank={rank}"]
    shared += [f"--distributed-init-method=tcp://127.0.0.1:{port}"]

    def train_in(part: str, *more: str) -> None:
        words = [data, "--save-dir", str(Path(folder) / part), *arguments, *shared, *more]
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        distributed.call_main(convert_namespace_to_omegaconf(args), train.main)
        torch.distributed.barrier()

    train_in("whole")
    if rank == "0":
        (Path(folder) / "part").mkdir()
        shutil.copy(Path(folder) / "whole" / name, Path(folder) / "part" / "checkpoint_last.pt")
    torch.distributed.barrier()
    train_in("part")
    try:
        train_in("part", "--residual-scheme=post-ln")
    except ConfigurationError as error:
        (Path(folder) / f"refused_{rank}").write_text(str(error), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
