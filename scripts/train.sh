#!/usr/bin/env bash
# Train a model as a config says: on all GPUs of this machine or of several, or on the CPU where there are
# none.
#
#   bash scripts/train.sh CONFIG [fairseq-train options]
#
# Input: CONFIG, a YAML file or the name of one in configs/; a data folder that scripts/preprocess*.sh
# made. Options of fairseq-train after CONFIG win over the config's.
#
# Output: a run folder with config.yaml, command.txt, environment.json, train.log, tensorboard/ and
# checkpoints/ (checkpoint_best.pt, checkpoint_last.pt, ...). A run that was stopped resumes from its last
# checkpoint; one that is complete is left alone; a folder trained with other settings is refused.
#
# Variables (with defaults):
#   DATA            data folder (the config's recipe.data)
#   RUN             run folder (runs/CONFIG)
#   GPUS            number of GPUs, on each node; 0 trains on the CPU (all that are visible)
#   NODES           number of machines (1); see "Several nodes"
#   LAUNCHER        auto, fairseq (one node), torchrun or slurm; auto with NODES > 1 is torchrun where
#                   MASTER_ADDR is set, slurm inside a SLURM job (auto)
#   DRY_RUN         1: print the plan and the command lines, write nothing, start nothing; needs neither
#                   data nor the GPUs that GPUS names (0)
#   CPU_PROCESSES   on the CPU: processes that share each update, on each node (1)
#   THREADS         threads of each CPU process (cores / CPU_PROCESSES)
#   PRECISION       auto, bf16, fp16 or fp32; auto is bf16 or fp16 on GPUs, fp32 on the CPU, where bf16
#                   is faster with AMX and slower without (auto)
#   PREEMPTION_GRACE   seconds to finish an update and to save it after SIGTERM or SIGUSR1 (90)
#   MEMORY          GiB of one GPU, or auto (those that are visible, else 80): ask `deepnet plan` what makes the
#                   training fit, and add it if the update stays the same; refuse otherwise (nothing is asked)
#   RESUME          1: resume a run although settings differ from the recorded ones (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# The batch is the config's, whatever the machine: update-freq follows from recipe.global-batch-tokens,
# max-tokens and the number of devices on all nodes.
#
# Several nodes: RUN, DATA and this project must lie on storage that all nodes share, at the same paths; that
# is checked. Only node 0 writes the records in RUN. The same commands resume a stopped run.
#   torchrun: the same command on every node, with its number. The nodes wait for one another.
#     NODE_RANK     number of this node, from 0
#     MASTER_ADDR   host name of node 0
#     MASTER_PORT   free port of node 0 (29500)
#     NODE_TIMEOUT  seconds that a node waits for the plan of node 0 (600)
#   SLURM: inside a job (salloc, or scripts/slurm_train.sbatch), srun starts one task a node. Elsewhere
#     LAUNCHER=slurm hands the training to the queue by sbatch; then GPUS must be said.
#     SRUN_OPTIONS    further options of srun ()
#     SBATCH_...      SLURM's own variables, such as SBATCH_PARTITION and SBATCH_TIMELIMIT
#
# Signals: SIGTERM and SIGUSR1, to this script or to any of its processes on any node, end the training after
# the update in progress, with a checkpoint; the same command resumes, with the same numbers. A second
# one, or the end of PREEMPTION_GRACE, ends it at once, and so does Ctrl-C. Where this script is killed
# outright, its processes get the signal that ends them with a checkpoint.
#
# Divergence: with --on-divergence fallback a training that diverges resumes from the newest checkpoint from
# before, with gentler options (--fallbacks); with stop it ends. docs/guides/inspect-a-run.md says more.
#
# Exit status: 0 complete; 2 bad usage or input; 85 preempted, nothing is lost: resume later; 86 diverged and
# stopped; 130 Ctrl-C; 143 ended by a signal before the update was saved; else that of fairseq-train, whose
# last error is said last.
#
# Examples: DATA=data/mine.de-en RUN=runs/mine bash scripts/train.sh multi30k --lr 5e-4 --max-update 8000
#           DRY_RUN=1 GPUS=8 NODES=16 bash scripts/train.sh wmt17_base
#           NODES=4 NODE_RANK=0 MASTER_ADDR=node0 bash scripts/train.sh wmt17_base   # on node0, and so on
#           NODES=4 GPUS=8 LAUNCHER=slurm bash scripts/train.sh wmt17_base
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ -n ${1:-} && $1 != -* ]] || die "a config is missing: bash scripts/train.sh CONFIG; see --help"
hand_over train --variables "$1" -- "${@:2}"
