#!/usr/bin/env bash
# Train a deep masked language model (an encoder) on the English captions of Multi30k: 18 DeepNet layers
# within minutes on one core (configs/multi30k_masked_lm.yaml). Makes the data first if they are not there.
#
#   bash scripts/train_multi30k_masked_lm.sh [fairseq-train options]
#
# Input: the data folder DATA. Where it is missing it is made by scripts/preprocess_multi30k_lm.sh: from
# the folder RAW, or from what that script downloads.
#
# Output: a run folder, see scripts/train.sh; its perplexity: scripts/eval_perplexity.sh.
#
# Variables (with defaults):
#   DEPTH      layers (18)
#   LANG_CODE  de, en, fr or cs (en)
#   DATA       data folder (data/multi30k_lm.LANG_CODE)
#   RAW        raw text to make it from, see scripts/preprocess_multi30k.sh (none: download)
#   RUN        run folder (runs/multi30k_masked_lm; language, DEPTH, SCHEME and SEED are added where they differ)
# @lib/help/recipe.txt
#
# Example: RAW=my/multi30k DEPTH=50 bash scripts/train_multi30k_masked_lm.sh --max-update 1000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

train_multi30k_captions multi30k_masked_lm encoder "$@"
