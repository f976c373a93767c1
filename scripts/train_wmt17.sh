#!/usr/bin/env bash
# Train a deep Transformer on WMT-17 English-German with the DeepNet paper's hyper-parameters (base size,
# table 5): configs/wmt17_base.yaml. Meant for GPUs; the batch of 128 x 4,096 tokens holds for any number.
#
#   bash scripts/train_wmt17.sh [fairseq-train options]
#
# Input: the data folder DATA. This script does not download WMT-17; without DATA it says how to make it.
#
# Output: a run folder, see scripts/train.sh; score it with AVERAGE=10 bash scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH   layers of the encoder and of the decoder; the paper has 6, 18, 50 and 100 (18)
#   SCHEME  deepnorm, post-ln, post-ln-init or pre-ln (deepnorm)
#   DATA    data folder (data/wmt17.en-de)
#   RUN     run folder (runs/wmt17_DEPTHl, with SCHEME added where it is not deepnorm)
#   GPUS, PRECISION, ...   every other variable of scripts/train.sh
#
# Example: DEPTH=100 bash scripts/train_wmt17.sh --max-tokens 2048 --checkpoint-activations
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

DEPTH=${DEPTH:-18}
SCHEME=${SCHEME:-deepnorm}
[[ $DEPTH =~ ^[1-9][0-9]*$ ]] || die "DEPTH is '$DEPTH'; it must be a number of layers from 1 on"
DATA=${DATA:-$ROOT/data/wmt17.en-de}
DATA=${DATA%/}
name=wmt17_${DEPTH}l
[[ $SCHEME == deepnorm ]] || name+=_$SCHEME
RUN=${RUN:-$ROOT/runs/$name}

if [[ ! -f $DATA/corpus.json ]]; then
    log "There is no WMT-17 data in $DATA, and this script does not download it. It takes:
  training    europarl-v7, commoncrawl and news-commentary-v12, one after the other: raw/train.en, raw/train.de
  validation  newstest2013 (or every 100th training pair, held out): raw/valid.en, raw/valid.de
  test        newstest2014: raw/test.en, raw/test.de
All are on https://www.statmt.org/wmt17/translation-task.html: raw text, one sentence a line. Then run
  SRC=en TGT=de TRAIN=raw/train VALID=raw/valid TEST=raw/test VOCAB_SIZE=32000 OUT=$DATA \\
      bash scripts/preprocess.sh"
    die "no data in $DATA; make it as above, or set DATA=FOLDER"
fi
export DATA RUN
exec bash "$ROOT/scripts/train.sh" wmt17_base \
    --encoder-layers "$DEPTH" --decoder-layers "$DEPTH" --residual-scheme "$SCHEME" "$@"
