#!/usr/bin/env bash
# Train the model of a config on all GPUs of one or several machines, or on the CPU if there are none.
#
#   bash scripts/train.sh CONFIG [fairseq-train options]
#
# Input: CONFIG, a YAML file or a name in configs/, and a data folder from scripts/preprocess*.sh. Options of
# fairseq-train after CONFIG override the config's.
#
# Output: a run folder with config.yaml, command.txt, environment.json, train.log, tensorboard/ and
# checkpoints/ (checkpoint_best.pt, checkpoint_last.pt, ...). A stopped run resumes from its last checkpoint.
# A complete run is not changed. A folder trained with other settings is refused.
#
# Variables (with defaults):
#   DATA            data folder (the config's recipe.data)
#   RUN             run folder (runs/CONFIG)
#   GPUS            number of GPUs per node; 0 trains on the CPU (all visible GPUs)
#   NODES           number of machines (1); see "Several nodes"
#   LAUNCHER        auto, torchrun or slurm; auto with NODES > 1 selects torchrun if MASTER_ADDR is set, and slurm
#                   inside a SLURM job (auto)
#   DRY_RUN         1: only print the plan and the command lines; this needs neither the data nor the GPUs in
#                   GPUS (0)
#   CPU_PROCESSES   on the CPU: processes per node that share each update (1)
#   THREADS         threads of each CPU process (cores / CPU_PROCESSES)
#   PRECISION       auto, bf16, fp16 or fp32; auto is bf16 or fp16 on GPUs and fp32 on the CPU; some CPUs
#                   gain from bf16, see docs/reports/speed.md (auto)
#   PREEMPTION_GRACE   seconds to finish and save an update after SIGTERM or SIGUSR1 (90)
#   RESUME          1: resume a run even if settings differ from the recorded settings (0)
#
# The batch size is the config's on every machine: update-freq follows from recipe.global-batch-tokens,
# max-tokens and the number of devices on all nodes.
#
# Several nodes: RUN, DATA and this project must be on storage that all nodes share, at the same paths. Only node 0
# writes the records in RUN. The same commands resume a stopped run.
#   torchrun: give the same command on every node, with its number. The nodes wait for one another.
#     NODE_RANK     number of this node, from 0
#     MASTER_ADDR   host name of node 0
#     MASTER_PORT   free port of node 0 (29500)
#   SLURM: inside a job (salloc, or scripts/slurm_train.sbatch), srun starts one task per node.
#
# Signals: SIGTERM, SIGUSR1 or Ctrl-C ends the run after the current update, with a checkpoint. Any process of the run
# on any node may receive the signal. The same command resumes with the same numbers. A second signal or the end of
# PREEMPTION_GRACE kills the run. If this script is killed, its processes save a checkpoint and end.
#
# Exit status: 0 complete; 2 bad usage or input; 85 preempted and saved; 86 diverged and stopped; 130 interrupted by
# Ctrl-C; 143 ended by a signal before the update was saved; otherwise the status of fairseq-train.
#
# Examples: DATA=data/mine.de-en RUN=runs/mine bash scripts/train.sh multi30k --lr 5e-4 --max-update 8000
#           DRY_RUN=1 GPUS=8 NODES=16 bash scripts/train.sh wmt17_base
#           NODES=4 NODE_RANK=0 MASTER_ADDR=node0 bash scripts/train.sh wmt17_base   # on node0, and so on
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ -n ${1:-} && $1 != -* ]] || die "a config is missing: bash scripts/train.sh CONFIG; see --help"
hand_over train --variables "$1" -- "${@:2}"
