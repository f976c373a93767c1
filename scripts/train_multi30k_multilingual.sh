#!/usr/bin/env bash
# Train one model on Multi30k in four languages, English into and from each of the others: the multilingual
# recipe of OPUS-100 at a size that two cores train within two hours or so (configs/multi30k_multilingual.yaml).
#
#   bash scripts/train_multi30k_multilingual.sh [fairseq-train options]
#
# Input: the data folder DATA; where it is missing it is made by scripts/preprocess_multi30k_multilingual.sh,
# from the folder RAW, or from what that script downloads.
# Output: a run folder, see scripts/train.sh; score all directions with scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers of the encoder and, as many, of the decoder (12)
#   DATA     data folder (data/multi30k_multilingual)
#   RAW      raw text to make it from, see scripts/preprocess_multi30k_multilingual.sh (none: download)
#   LANGS    languages of the data that are made (cs de en fr)
#   RUN      run folder (runs/multi30k_multilingual; DEPTH, SCHEME and SEED are added where they differ)
# @lib/help/recipe.txt
#
# Example: RAW=my/multi30k bash scripts/train_multi30k_multilingual.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

recipe_variables 12 multi30k_multilingual
train_recipe multi30k_multilingual "$name" multi30k_multilingual preprocess_multi30k_multilingual.sh "$@"
