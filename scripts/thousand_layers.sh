#!/usr/bin/env bash
# A Transformer of 1,000 layers that translates: 500L-500L DeepNet on Multi30k, German to English, width 64, and the
# first updates of its Pre-LN and Post-LN twins; gradients by layer, the rank of the tokens, the model update and its
# bound are measured on the way. Cells *_500l of configs/sweeps/depth.yaml.
#
#   bash scripts/thousand_layers.sh [key=value ...]
#
# Input: the data folder that scripts/preprocess_multi30k.sh makes. `scheme=deepnorm` trains that one alone; any
# other key is a fairseq-train option of every cell.
#
# Output: runs/depth/SCHEME_500l, a run folder each with its score and monitor.jsonl, which `deepnet plot` draws; the
# tables and figures of runs/depth. On one core, in float32, an update of 1,024 tokens takes 7 to 8 s and DeepNorm's
# 2,400 some five hours with what it validates; a checkpoint is saved every 200 and on SIGTERM. Restart-safe, see scripts/sweep.sh.
#
# Variables (with defaults):
#   RUNS       folder of the cells (runs/depth)
#   ONLY       only the cells with such a name (*_500l)
# @lib/help/sweep.txt
#
# Example: ONLY=deepnorm_500l bash scripts/thousand_layers.sh
#          deepnet plot runs/depth/deepnorm_500l --out thousand.html   # the page; .png: a figure
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

export ONLY=${ONLY:-*_500l}
[[ ${TINY:-0} != 1 ]] || ONLY=${ONLY/500l/3l}
hand_over sweep --variables depth "$@"
