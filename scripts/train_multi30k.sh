#!/usr/bin/env bash
# Train a deep Transformer on Multi30k, German to English: an 18L-18L DeepNet within an hour or so on the
# two cores of a laptop. Makes the data first if they are not there.
#
#   bash scripts/train_multi30k.sh [fairseq-train options]
#
# Input: the data folder DATA. Where it is missing it is made by scripts/preprocess_multi30k.sh: from
# the folder RAW, or from what that script downloads.
#
# Output: a run folder, see scripts/train.sh; score it with scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH      layers of the encoder and of the decoder (18)
#   SCHEME     deepnorm, post-ln, post-ln-init or pre-ln (deepnorm)
#   SRC, TGT   two of de, en, fr, cs (de, en)
#   DATA       data folder (data/multi30k.SRC-TGT)
#   RAW        raw text to make it from, see scripts/preprocess_multi30k.sh (none: download)
#   RUN        run folder (runs/multi30k; the language pair, DEPTH and SCHEME are added where they differ)
#   GPUS, CPU_PROCESSES, THREADS, ...   every other variable of scripts/train.sh
#
# Example: RAW=../shared/data/multi30k DEPTH=6 SCHEME=post-ln bash scripts/train_multi30k.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

DEPTH=${DEPTH:-18}
SCHEME=${SCHEME:-deepnorm}
SRC=${SRC:-de}
TGT=${TGT:-en}
[[ $DEPTH =~ ^[1-9][0-9]*$ ]] || die "DEPTH is '$DEPTH'; it must be a number of layers from 1 on"
DATA=${DATA:-$ROOT/data/multi30k.$SRC-$TGT}
DATA=${DATA%/}
name=multi30k
[[ $SRC-$TGT == de-en ]] || name+=.$SRC-$TGT
[[ $DEPTH == 18 ]] || name+=_${DEPTH}l
[[ $SCHEME == deepnorm ]] || name+=_$SCHEME
RUN=${RUN:-$ROOT/runs/$name}

if [[ ! -f $DATA/corpus.json ]]; then
    log "no data in $DATA yet: making it"
    OUT=$DATA SRC=$SRC TGT=$TGT bash "$ROOT/scripts/preprocess_multi30k.sh"
fi
export DATA RUN
exec bash "$ROOT/scripts/train.sh" multi30k \
    --encoder-layers "$DEPTH" --decoder-layers "$DEPTH" --residual-scheme "$SCHEME" "$@"
