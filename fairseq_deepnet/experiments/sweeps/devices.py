"""How cells that train at the same time share the machine's GPUs or cores."""

from __future__ import annotations

import os

from fairseq_deepnet.tools.training.launch import choose_devices


def visible_gpus() -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [name.strip() for name in named.split(",")] if named else []
    return names[:count] if len(names) >= count else [str(number) for number in range(count)]


def shares(gpus: str, parallel: int, visible: list[str], cores: int) -> list[dict[str, str]]:
    """One set of variables for scripts/train.sh and scripts/eval_bleu.sh a cell at work.

    Arguments:
        gpus: GPUs to use in all, or "all"; "0" is the CPU
        parallel: cells at once
        visible: the machine's GPUs, as CUDA_VISIBLE_DEVICES names them
        cores: cores to use

    Raises ValueError where there are fewer devices than cells at once.
    """
    if parallel < 1:
        raise ValueError(f"--parallel {parallel}: at least 1 is needed")
    count = choose_devices(gpus, 1, 1, len(visible)).gpus
    if not count:
        threads = str(max(1, cores // parallel))
        # training has one process of many threads, scoring many processes of one
        share = {"GPUS": "0", "THREADS": threads, "PROCESSES": threads, "OMP_NUM_THREADS": "1"}
        return [share] * parallel
    if parallel > count:
        raise ValueError(
            f"--parallel {parallel}: {parallel} cells at once on {count} "
            f"GPU{'s' if count > 1 else ''}; at most {count}"
        )
    each = count // parallel
    return [
        {
            "GPUS": str(each),
            "CUDA_VISIBLE_DEVICES": ",".join(visible[slot * each : (slot + 1) * each]),
        }
        for slot in range(parallel)
    ]
