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
# checkpoints/ (checkpoint_best.pt, checkpoint_last.pt, ...). A run that was stopped goes on from its last
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
#   RESUME          1: go on with a run although settings differ from the recorded ones (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# The batch is the config's, whatever the machine: update-freq follows from recipe.global-batch-tokens,
# max-tokens and the number of devices on all nodes.
#
# Several nodes: RUN, DATA and this project must lie on storage that all nodes share, at the same paths; that
# is checked. Node 0 alone writes the records in RUN. A stopped run goes on by the same commands.
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
# the update that is being made, with a checkpoint; the same command goes on, with the same numbers. A second
# one, or the end of PREEMPTION_GRACE, ends it at once, and so does Ctrl-C. Where this script is killed
# outright, its processes get the signal that ends them with a checkpoint.
#
# Exit status: 0 complete; 2 bad usage or input; 85 preempted, nothing is lost: go on later; 130 Ctrl-C; 143
# ended by a signal before the update was saved; else that of fairseq-train, whose last error is said last.
#
# Examples: DATA=data/mine.de-en RUN=runs/mine bash scripts/train.sh multi30k --lr 5e-4 --max-update 8000
#           DRY_RUN=1 GPUS=8 NODES=16 bash scripts/train.sh wmt17_base
#           NODES=4 NODE_RANK=0 MASTER_ADDR=node0 bash scripts/train.sh wmt17_base   # on node0, and so on
#           NODES=4 GPUS=8 LAUNCHER=slurm bash scripts/train.sh wmt17_base
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

CONFIG=${1:-}
[[ -n $CONFIG && $CONFIG != -* ]] || die "a config is missing: bash scripts/train.sh CONFIG; see --help"
shift
NAME=$(basename "$CONFIG" .yaml)
RUN=${RUN:-$ROOT/runs/$NAME}
RUN=${RUN%/}
GPUS=${GPUS:-all}
NODES=${NODES:-1}
CPU_PROCESSES=${CPU_PROCESSES:-1}
PRECISION=${PRECISION:-auto}
RESUME=${RESUME:-0}
LAUNCHER=${LAUNCHER:-auto}
NODE_RANK=${NODE_RANK:-}
NODE_TIMEOUT=${NODE_TIMEOUT:-600}
DRY_RUN=${DRY_RUN:-0}
[[ $CPU_PROCESSES =~ ^[1-9][0-9]*$ ]] || die "CPU_PROCESSES is '$CPU_PROCESSES'; it must be a number from 1 on"
[[ $NODES =~ ^[1-9][0-9]*$ ]] || die "NODES is '$NODES'; it must be a number from 1 on"
for name in RESUME DRY_RUN; do
    [[ ${!name} == [01] ]] || die "$name is '${!name}'; it must be 0 or 1"
done
[[ -z $NODE_RANK || $NODE_RANK =~ ^(0|[1-9][0-9]*)$ ]] || die "NODE_RANK is '$NODE_RANK'; it must be a number from 0 on"
grace=()
if [[ -n ${PREEMPTION_GRACE:-} ]]; then
    [[ $PREEMPTION_GRACE =~ ^[1-9][0-9]*$ ]] || die "PREEMPTION_GRACE is '$PREEMPTION_GRACE'; it must be seconds from 1 on"
    grace=(--preemption-grace "$PREEMPTION_GRACE")
fi
[[ $NODE_TIMEOUT =~ ^[1-9][0-9]*$ ]] || die "NODE_TIMEOUT is '$NODE_TIMEOUT'; it must be seconds from 1 on"

CORES=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
THREADS=${THREADS:-$((CORES > CPU_PROCESSES ? CORES / CPU_PROCESSES : 1))}
[[ $THREADS =~ ^[1-9][0-9]*$ ]] || die "THREADS is '$THREADS'; it must be a number from 1 on"
export OMP_NUM_THREADS=$THREADS PYTHONUNBUFFERED=1
activate_environment
# what is recorded before a training begins is written whole or not at all
trap 'log "preempted before the training began; the same command begins it"; exit 85' TERM USR1

# One training a folder: the lock is held by every process started from here, and ends with the last.
# Further nodes join the training of node 0, which holds it.
lock_run() {
    [[ ${NODE_RANK:-0} -eq 0 && $DRY_RUN == 0 ]] || return 0
    exec 9>"$RUN/.lock"
    if command -v flock >/dev/null && ! flock --nonblock 9; then
        die "another training is at work in $RUN ($(lock_holders)); wait for it, or set RUN=FOLDER"
    fi
}

# The processes that hold the lock: they inherited it as this shell has it, as file 9.
lock_holders() {
    local file process found=()
    for file in /proc/[0-9]*/fd/9; do
        process=${file#/proc/}
        process=${process%%/*}
        if [[ $file -ef $RUN/.lock && $process != "$$" && $process != "$BASHPID" ]]; then
            found+=("$process")
        fi
    done
    if [[ ${#found[@]} -gt 0 ]]; then
        printf 'process %s' "${found[*]}"
    else
        printf 'of another user, or on another machine'
    fi
}
[[ ! -d $RUN ]] || lock_run

plan=(deepnet record --run "$RUN" --gpus "$GPUS" --nodes "$NODES")
plan+=(--cpu-processes "$CPU_PROCESSES" --precision "$PRECISION")
[[ -z ${DATA:-} ]] || plan+=(--data "$DATA")
[[ -z ${MEMORY:-} ]] || plan+=(--memory "$MEMORY")
plan+=(--launcher "$LAUNCHER" --node-timeout "$NODE_TIMEOUT")
[[ -z $NODE_RANK ]] || plan+=(--node-rank "$NODE_RANK")
[[ $RESUME == 0 ]] || plan+=(--resume)
if [[ $DRY_RUN == 1 ]]; then
    exec "${plan[@]}" --dry-run "$CONFIG" -- "$@"
fi
mapfile -d '' -t command < <("${plan[@]}" "$CONFIG" -- "$@")
wait "$!" || exit "$?"
[[ ${#command[@]} -gt 0 ]] || exit 0

if [[ ${command[0]} == sbatch ]]; then
    # the job runs this script again, from the project's folder
    mkdir -p "$RUN"
    RUN=$(cd "$RUN" && pwd)
    [[ -z ${DATA:-} || ! -d $DATA ]] || DATA=$(cd "$DATA" && pwd)
    export RUN DATA=${DATA:-}
    cd "$ROOT"
    exec "${command[@]}"
fi
lock_run
# From here on this process is the supervisor, so that a signal to it reaches the training.
supervisor=(python -m fairseq_deepnet.tools.training.supervisor --run "$RUN" --processes "$CPU_PROCESSES")
PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} exec "${supervisor[@]}" \
    --nodes "$NODES" --node-rank "${NODE_RANK:-0}" -- "${command[@]}" "${grace[@]}"
