#!/usr/bin/env bash
# See DeepNorm at work within 15 minutes on two cores, installation included: a deep DeepNorm Transformer
# and its Post-LN twin (same seed, data and options) are trained side by side, scored and compared.
#
#   bash scripts/quickstart.sh
#
# Input: none. The corpus is part of the project, nothing but Python packages is downloaded.
# Output: the comparison on standard output, also in OUT/summary.txt; OUT/curves.png (loss curves of both);
# OUT/deepnorm and OUT/post-ln (run folders, see scripts/train.sh). Ctrl-C stops both trainings; the same
# command resumes them. What is complete is not made again.
#
# Variables (with defaults):
#   DEPTH     layers of the encoder and of the decoder (18)
#   SEED      of initialisation and batches (1)
#   UPDATES   training length (configs/sample.yaml)
#   DATA      data folder (data/sample.de-en)
#   OUT       folder of the results (runs/quickstart; DEPTH, SEED and UPDATES are added where they differ)
#   GPUS      0: CPU; 1: one model after the other on one GPU; 2: a GPU for each (all that are visible)
#   THREADS   CPU threads of each of the two trainings (half of the cores)
#   DRY_RUN   1: print what would run, and end (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: DEPTH=6 bash scripts/quickstart.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

hand_over quickstart --variables "$@"
