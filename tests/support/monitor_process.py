"""One of two processes that train twice, without monitoring and with it.

Run as `python -m tests.support.monitor_process RANK PORT DATA FOLDER ARGUMENTS...`; checkpoints go
to FOLDER/plain and FOLDER/watched. The second training finds the processes connected.
"""

import sys
from pathlib import Path

import torch.distributed
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed
from fairseq_cli import train

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)


def main(rank: str, port: str, data: str, folder: str, *arguments: str) -> None:
    shared = ["--ddp-backend=legacy_ddp", "--distributed-backend=gloo", "--distributed-no-spawn"]
    shared += ["--device-id=0", "--distributed-world-size=2", f"--distributed-rank={rank}"]
    shared += [f"--distributed-init-method=tcp://127.0.0.1:{port}"]
    for name in ("plain", "watched"):
        words = [data, "--save-dir", str(Path(folder) / name), *arguments, *shared]
        words += ["--monitor-interval=1" if name == "watched" else "--on-divergence=off"]
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        distributed.call_main(convert_namespace_to_omegaconf(args), train.main)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
