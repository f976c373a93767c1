#!/usr/bin/env bash
# Train a deep, narrow Transformer on the sample corpus: within minutes on one core. Makes the data first if
# they are not there.
#
#   bash scripts/train_sample.sh [fairseq-train options]
#
# Input: the data folder DATA; where it is missing, scripts/preprocess_sample.sh makes it.
# Output: a run folder, see scripts/train.sh; score it with scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers of the encoder and of the decoder (18)
#   SCHEME   deepnorm, post-ln, post-ln-init or pre-ln (deepnorm)
#   SEED     of initialisation and batches (1)
#   DATA     data folder (data/sample.de-en)
#   RUN      run folder (runs/sample; DEPTH, SCHEME and SEED are added where they differ)
#   GPUS, CPU_PROCESSES, THREADS, ...   every other variable of scripts/train.sh
#
# Example: DEPTH=6 SCHEME=post-ln bash scripts/train_sample.sh --max-update 600
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

DEPTH=${DEPTH:-18}
SCHEME=${SCHEME:-deepnorm}
SEED=${SEED:-1}
for name in DEPTH SEED; do
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || die "$name is '${!name}'; it must be a number from 1 on"
done
DATA=${DATA:-$ROOT/data/sample.de-en}
DATA=${DATA%/}
name=sample
[[ $DEPTH == 18 ]] || name+=_${DEPTH}l
[[ $SCHEME == deepnorm ]] || name+=_$SCHEME
[[ $SEED == 1 ]] || name+=_seed$SEED
RUN=${RUN:-$ROOT/runs/$name}

if [[ ! -f $DATA/corpus.json ]]; then
    log "no data in $DATA yet: making it"
    # the seed of the corpus is another one: every run trains on the same sentences
    (unset SEED && OUT=$DATA bash "$ROOT/scripts/preprocess_sample.sh")
fi
export DATA RUN
exec bash "$ROOT/scripts/train.sh" sample --seed "$SEED" \
    --encoder-layers "$DEPTH" --decoder-layers "$DEPTH" --residual-scheme "$SCHEME" "$@"
