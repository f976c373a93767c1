#!/usr/bin/env bash
# Train a deep Transformer on Multi30k, German to English. An 18L-18L DeepNet takes about an hour on one CPU core.
#
#   bash scripts/train_multi30k.sh [fairseq-train options]
#
# Input: the data folder DATA; if it is missing, scripts/preprocess_multi30k.sh builds it from RAW or a download.
# Output: a run folder, see scripts/train.sh; score it with scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers of the encoder and of the decoder (18)
#   SRC, TGT two of de, en, fr, cs (de, en)
#   DATA     data folder (data/multi30k.SRC-TGT)
#   RAW      raw text, see scripts/preprocess_multi30k.sh (none: download)
#   RUN      run folder (runs/multi30k, plus language pair, DEPTH, SCHEME and SEED if they differ)
# @lib/help/recipe.txt
#
# Examples: RAW=my/multi30k DEPTH=6 SCHEME=post-ln bash scripts/train_multi30k.sh
#           DRY_RUN=1 bash scripts/train_multi30k.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

pair=.${SRC:-de}-${TGT:-en}
[[ -z ${DATA:-} ]] || set -- ${SRC:+--source-lang "$SRC"} ${TGT:+--target-lang "$TGT"} "$@"
recipe_variables 18 "multi30k${pair#.de-en}"
train_recipe multi30k "$name" "multi30k$pair" preprocess_multi30k.sh "$@"
