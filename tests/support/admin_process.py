"""Process that performs Admin's first update under legacy_ddp with its own batch.

Run `python -m tests.support.admin_process RANK PORT FILE`. FILE receives the updated model, the
batch and the variances.
"""

import sys

import torch
import torch.distributed
from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel

from tests.support.models import SYMBOLS, build_model, loss_of


def main(rank: int, port: int, file: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    model = build_model(residual_scheme="admin").train()
    generator = torch.Generator().manual_seed(rank)
    # Sentences have different lengths in the two processes, and so different variances.
    source = torch.randint(4, 4 + SYMBOLS, (2, 5 + 4 * rank), generator=generator)
    target = torch.randint(4, 4 + SYMBOLS, (2, 4 + 3 * rank), generator=generator)
    batch = {"src_tokens": source, "src_lengths": torch.full((2,), source.size(1))}
    batch["prev_output_tokens"] = target
    wrapped = LegacyDistributedDataParallel(model, torch.distributed.group.WORLD)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        loss_of(wrapped, batch).backward()
        wrapped.all_reduce_grads()
        optimiser.step()
    torch.save({"model": model.state_dict(), "batch": batch}, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
