#!/usr/bin/env bash
# See DeepNorm at work within 15 minutes on two cores, installation included: a deep DeepNorm Transformer
# and its Post-LN twin (same seed, data and options) are trained side by side, scored and compared.
#
#   bash scripts/quickstart.sh
#
# Input: none. The corpus is part of the project, nothing but Python packages is downloaded.
# Output: the comparison on standard output, also in OUT/summary.txt; OUT/curves.png (loss curves of both);
# OUT/deepnorm and OUT/post-ln (run folders, see scripts/train.sh). Ctrl-C stops both trainings; the same
# command goes on where it was. What is complete is not made again.
#
# Variables (with defaults):
#   DEPTH     layers of the encoder and of the decoder (18)
#   SEED      of initialisation and batches (1)
#   UPDATES   training length (configs/sample.yaml)
#   DATA      data folder (data/sample.de-en)
#   OUT       folder of the results (runs/quickstart; DEPTH, SEED and UPDATES are added where they differ)
#   GPUS      1: both models share the first GPU; 0: CPU (1 where there is one)
#   THREADS   CPU threads of each of the two trainings (half of the cores)
#   DRY_RUN   1: print what would run, and end (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: DEPTH=6 bash scripts/quickstart.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ $# -eq 0 ]] || die "unknown argument $1; see --help for the variables"

DEPTH=${DEPTH:-18}
SEED=${SEED:-1}
UPDATES=${UPDATES:-}
for name in DEPTH SEED UPDATES; do
    [[ -z ${!name} || ${!name} =~ ^[1-9][0-9]*$ ]] || die "$name is '${!name}'; it must be a number from 1 on"
done
DATA=${DATA:-$ROOT/data/sample.de-en}
if [[ -z ${OUT:-} ]]; then
    OUT=$ROOT/runs/quickstart
    [[ $DEPTH == 18 ]] || OUT+=_${DEPTH}l
    [[ $SEED == 1 ]] || OUT+=_seed$SEED
    [[ -z $UPDATES ]] || OUT+=_${UPDATES}updates
fi
SCHEMES=(deepnorm post-ln)
[[ ${DRY_RUN:-0} == [01] ]] || die "DRY_RUN is '$DRY_RUN'; it must be 0 or 1"
if [[ ${DRY_RUN:-0} == 1 ]]; then
    for scheme in "${SCHEMES[@]}"; do
        log "would train ${DEPTH}L-${DEPTH}L $scheme on $DATA in $OUT/$scheme, and score it"
    done
    exit 0
fi

SECONDS=0
activate_environment
export DEEPNET_SKIP_SETUP=1
mkdir -p "$OUT"
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
THREADS=${THREADS:-$((cores > 2 ? cores / 2 : 1))}

[[ -f $DATA/corpus.json ]] || log "1/4 the sample corpus"
(unset SEED && OUT=$DATA bash "$ROOT/scripts/preprocess_sample.sh")

declare -A PID=()

# A run that diverged before would diverge again: it is left as it is.
is_over() {
    [[ -f $OUT/$1/done || -f $OUT/$1/diverged ]]
}

# Each training is a process group of its own, so that stopping it stops all that it started.
start() {
    local options=()
    [[ -z $UPDATES ]] || options=(--max-update "$UPDATES")
    mkdir -p "$OUT/$1"
    set -m
    SCHEME=$1 RUN=$OUT/$1 DATA=$DATA DEPTH=$DEPTH SEED=$SEED GPUS=$GPUS THREADS=$THREADS PRECISION=fp32 \
        bash "$ROOT/scripts/train_sample.sh" "${options[@]}" >"$OUT/$1.console.log" 2>&1 </dev/null &
    PID[$1]=$!
    set +m
}

stop_all() {
    local scheme
    for scheme in "${!PID[@]}"; do
        kill -TERM -- "-${PID[$scheme]}" 2>/dev/null || true
    done
    wait 2>/dev/null || true
}

interrupted() {
    trap - EXIT
    stop_all
    printf '\n' >&2
    log "stopped; the same command goes on from the last checkpoints"
    exit 130
}

# The last "update, loss" of a run, out of fairseq's JSON lines.
progress_of() {
    local line='' update=0
    if [[ -f $OUT/$1/train.log ]]; then
        line=$(tail -n 50 "$OUT/$1/train.log" | grep '| train_inner |' | tail -n 1) || true
    fi
    [[ $line =~ \"num_updates\":\ \"([0-9]+)\" ]] && update=${BASH_REMATCH[1]}
    if [[ $line =~ \"loss\":\ \"([^\"]+)\" ]]; then
        printf '%s: update %4d, loss %6.3f' "$1" "$update" "${BASH_REMATCH[1]}"
    else
        printf '%s: starting' "$1"
    fi
}

show_progress() {
    local line elapsed=$((SECONDS - began))
    line="$(progress_of deepnorm)   $(progress_of post-ln)   $(printf '%d:%02d' $((elapsed / 60)) $((elapsed % 60)))"
    if [[ -t 2 ]]; then
        printf '\r%-100s' "$line" >&2
    else
        printf '%s\n' "$line" >&2
    fi
}

# How a training ended. For the twin, divergence is a result; whatever else went wrong can be tried again.
finish() {
    local scheme=$1 status=0
    [[ -n ${PID[$scheme]:-} ]] || return 0
    wait "${PID[$scheme]}" || status=$?
    unset "PID[$scheme]"
    [[ $status -ne 0 ]] || return 0
    if [[ -f $OUT/$scheme/train.log ]] &&
        tail -n 200 "$OUT/$scheme/train.log" | grep -qE 'FloatingPointError|Minimum loss scale reached'; then
        touch "$OUT/$scheme/diverged"
    fi
    if [[ $scheme == deepnorm ]]; then
        stop_all
        tail -n 5 "$OUT/$scheme.console.log" >&2
        die "training the DeepNorm model failed with status $status; see $OUT/$scheme.console.log"
    fi
    log "the Post-LN twin ended with status $status; see $OUT/$scheme.console.log"
}

if is_over deepnorm && is_over post-ln; then
    log "both models are trained: nothing to do"
else
    GPUS=${GPUS:-$(python -c 'import torch; print(min(1, torch.cuda.device_count()))')}
    log "2/4 training ${DEPTH}L-${DEPTH}L, DeepNorm and Post-LN side by side, for some minutes"
    log "Ctrl-C stops both; the same command goes on"
    trap interrupted INT TERM HUP
    trap stop_all EXIT
    began=$SECONDS
    for scheme in "${SCHEMES[@]}"; do
        is_over "$scheme" || start "$scheme"
    done
    pause=$([[ -t 2 ]] && echo 2 || echo 20)
    set -m
    (while kill -0 $$ && sleep "$pause"; do show_progress; done) &
    PID[progress]=$!
    disown
    set +m
    for scheme in "${SCHEMES[@]}"; do
        finish "$scheme" # DeepNorm's first: its failure ends the other
    done
    stop_all
    [[ ! -t 2 ]] || printf '\n' >&2
    trap - INT TERM HUP EXIT
fi

log "3/4 translating the test set with both"
for scheme in "${SCHEMES[@]}"; do
    if compgen -G "$OUT/$scheme/checkpoints/*.pt" >/dev/null; then
        # A model that has not learnt to stop would write 200 words a sentence.
        bash "$ROOT/scripts/eval_bleu.sh" "$OUT/$scheme" --max-len-a 2 --max-len-b 10 >"$OUT/$scheme.score.log" 2>&1 ||
            die "scoring failed: $(tail -n 1 "$OUT/$scheme.score.log")"
    fi
done

log "4/4 drawing the loss curves"
runs=()
for scheme in "${SCHEMES[@]}"; do
    [[ ! -f $OUT/$scheme/train.log ]] || runs+=("$OUT/$scheme")
done
python -m fairseq_deepnet.cli plot "${runs[@]}" --out "$OUT/curves.png" \
    --title "Sample corpus, German-English, ${DEPTH}L-${DEPTH}L: DeepNorm and its Post-LN twin"
python -m fairseq_deepnet.experiments.quickstart "$OUT" "$DATA" >"$OUT/summary.txt.part"
mv "$OUT/summary.txt.part" "$OUT/summary.txt"
cat "$OUT/summary.txt"
log "took $((SECONDS / 60)) min $((SECONDS % 60)) s"
