#!/usr/bin/env bash
# Train, score and compare a deep DeepNorm Transformer and its Post-LN twin (same seed, data and options) side by
# side. This takes about 12 minutes on two cores, including installation.
#
#   bash scripts/quickstart.sh
#
# Input: none. The corpus is part of the project; only Python packages are downloaded.
# Output: the comparison on standard output and in OUT/summary.txt; OUT/curves.png (loss curves of both);
# OUT/deepnorm and OUT/post-ln (run folders, see scripts/train.sh). Ctrl-C stops both runs; the same
# command resumes them and skips complete parts.
#
# Variables (with defaults):
#   DEPTH     layers of the encoder and of the decoder (18)
#   SEED      seed of initialisation and batches (1)
#   DATA      data folder (data/sample.de-en)
#   OUT       folder for the results (runs/quickstart, plus DEPTH and SEED if they differ)
#   GPUS      0: CPU; 1: one model after the other on one GPU; 2: one GPU per model (all visible GPUs)
#   DRY_RUN   1: only print the plan (0)
#
# Example: DEPTH=6 bash scripts/quickstart.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

hand_over quickstart --variables "$@"
