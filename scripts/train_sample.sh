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
#   DATA     data folder (data/sample.de-en)
#   RUN      run folder (runs/sample; DEPTH, SCHEME and SEED are added where they differ)
# @lib/help/recipe.txt
#
# Example: DEPTH=6 SCHEME=post-ln bash scripts/train_sample.sh --max-update 600
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

recipe_variables 18 sample
train_recipe sample "$name" sample.de-en preprocess_sample.sh "$@"
