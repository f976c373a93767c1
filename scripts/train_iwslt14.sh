#!/usr/bin/env bash
# Train a deep Transformer on IWSLT-14 German-English with the DeepNet paper's hyper-parameters (table 4):
# configs/iwslt14.yaml. One GPU is enough; the batch is 4,000 tokens on any number of GPUs.
#
#   bash scripts/train_iwslt14.sh [fairseq-train options]
#
# Input: the data folder DATA; if it is missing, scripts/preprocess_iwslt14.sh downloads and builds it.
# Output: a run folder, see scripts/train.sh; score it with scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers of the encoder and of the decoder; the paper's figure 6 has 10 to 100 (18)
#   SRC, TGT languages: de and en, in either order (de, en)
#   DATA     data folder (data/iwslt14.tokenized.SRC-TGT)
#   RAW      source files, see scripts/preprocess_iwslt14.sh (none: download)
#   RUN      run folder (runs/iwslt14_DEPTHl, plus language pair, SCHEME and SEED if they differ)
# @lib/help/recipe.txt
#
# Examples: DEPTH=100 bash scripts/train_iwslt14.sh
#           DRY_RUN=1 GPUS=1 SCHEME=post-ln bash scripts/train_iwslt14.sh --max-update 33000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

pair=.${SRC:-de}-${TGT:-en}
[[ -z ${DATA:-} ]] || set -- ${SRC:+--source-lang "$SRC"} ${TGT:+--target-lang "$TGT"} "$@"
recipe_variables 18
train_recipe iwslt14 "iwslt14${pair#.de-en}_${DEPTH}l" "iwslt14.tokenized$pair" preprocess_iwslt14.sh "$@"
