#!/usr/bin/env bash
# The sample corpus, ready for fairseq-train: German to English sentences that a grammar has made.
#
#   bash scripts/preprocess_sample.sh [fairseq-preprocess options]
#
# Input: data/sample, which is part of the project; nothing is downloaded. Valid and test hold
# combinations of words that train does not.
# Output: OUT, a data folder as scripts/preprocess.sh makes it.
# A second run with the same settings has nothing to do, and says so.
#
# Variables (with defaults):
#   OUT                                 folder to make (data/sample.de-en)
#   TRAIN_LINES, VALID_LINES, TEST_LINES   sentence pairs, the first so many (25000, 500, 500: all)
#   VOCAB_SIZE                          number of subwords (2000)
#   FORCE                               1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP                  1: use the Python environment that is active, without checking it (0)
#
# Example: TRAIN_LINES=5000 OUT=data/small.de-en bash scripts/preprocess_sample.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ ${SEED:-1} == 1 ]] || die "SEED is '$SEED', and the sample corpus is one text now: leave SEED out"

hand_over preprocess sample --variables -- "$@"
