#!/usr/bin/env bash
# Train a model as a config says, on all GPUs of this machine, or on the CPU where there are none.
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
#   GPUS            number of GPUs; 0 trains on the CPU (all that are visible)
#   NODES           number of machines; only 1 for now (1)
#   CPU_PROCESSES   on the CPU: processes that share each update (1)
#   THREADS         threads of each CPU process (cores / CPU_PROCESSES)
#   PRECISION       auto, bf16, fp16 or fp32; auto is bf16 or fp16 on GPUs, fp32 on the CPU (auto)
#   RESUME          1: go on with a run although settings differ from the recorded ones (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# The batch is the config's, whatever the machine: update-freq follows from recipe.global-batch-tokens,
# max-tokens and the number of devices.
#
# Example: DATA=data/mine.de-en RUN=runs/mine bash scripts/train.sh multi30k --lr 5e-4 --max-update 8000
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
[[ $CPU_PROCESSES =~ ^[1-9][0-9]*$ ]] || die "CPU_PROCESSES is '$CPU_PROCESSES'; it must be a number from 1 on"
[[ $NODES =~ ^[1-9][0-9]*$ ]] || die "NODES is '$NODES'; it must be a number from 1 on"
[[ $RESUME == [01] ]] || die "RESUME is '$RESUME'; it must be 0 or 1"

CORES=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
THREADS=${THREADS:-$((CORES > CPU_PROCESSES ? CORES / CPU_PROCESSES : 1))}
[[ $THREADS =~ ^[1-9][0-9]*$ ]] || die "THREADS is '$THREADS'; it must be a number from 1 on"
export OMP_NUM_THREADS=$THREADS PYTHONUNBUFFERED=1
activate_environment

# One training a folder: the lock is held by every process started from here, and ends with the last.
lock_run() {
    exec 9>"$RUN/.lock"
    if command -v flock >/dev/null && ! flock --nonblock 9; then
        die "another training is at work in $RUN; wait for it, or set RUN=FOLDER"
    fi
}
[[ ! -d $RUN ]] || lock_run

plan=(deepnet record --run "$RUN" --gpus "$GPUS" --nodes "$NODES")
plan+=(--cpu-processes "$CPU_PROCESSES" --precision "$PRECISION")
[[ -z ${DATA:-} ]] || plan+=(--data "$DATA")
[[ $RESUME == 0 ]] || plan+=(--resume)
mapfile -d '' -t command < <("${plan[@]}" "$CONFIG" -- "$@")
wait "$!" || exit "$?"
[[ ${#command[@]} -gt 0 ]] || exit 0
lock_run

# Ranks above 0 of a CPU run in several processes work in the background and end with this script.
helpers=()
trap '[[ ${#helpers[@]} -eq 0 ]] || kill "${helpers[@]}" 2>/dev/null || true' EXIT
rank=()
if [[ " ${command[*]} " == *" --distributed-no-spawn "* ]]; then
    rank=(--distributed-rank 0)
    for ((index = 1; index < CPU_PROCESSES; index++)); do
        "${command[@]}" --distributed-rank "$index" >>"$RUN/rank$index.log" 2>&1 &
        helpers+=("$!")
    done
fi

max_update=()
for ((index = 0; index < ${#command[@]} - 1; index++)); do
    [[ ${command[index]} != --max-update ]] || max_update=(--max-update "${command[index + 1]}")
done

log "training; everything is logged in $RUN/train.log; Ctrl-C stops, the same command goes on"
# In a process group of its own, so that one signal reaches fairseq-train with all that it started.
set -m
("${command[@]}" "${rank[@]}" </dev/null 2>&1 |
    python "$ROOT/fairseq_deepnet/progress.py" "$RUN/train.log" "${max_update[@]}") &
training=$!
set +m

stop() {
    trap - INT TERM HUP
    kill -INT -- "-$training" 2>/dev/null || true
    wait "$training" || true
    log "stopped; the same command goes on from the last checkpoint"
    exit 130
}
trap stop INT TERM HUP

status=0
wait "$training" || status=$?
if [[ $status -ne 0 ]]; then
    log "fairseq-train ended with status $status; see the end of $RUN/train.log"
    exit "$status"
fi
date -u +'%Y-%m-%dT%H:%M:%SZ' >"$RUN/done.part"
mv "$RUN/done.part" "$RUN/done"
log "trained: $RUN"
log "next: bash scripts/eval_bleu.sh $RUN"
