#!/usr/bin/env bash
# Figure 6 of the DeepNet paper: IWSLT-14 German-English, every residual scheme at 10, 20, ... 100 layers a
# side after 8,000 updates, BLEU beside the paper's.
#
#   bash scripts/fig6.sh [key=value ...]
#
# Input: the data folder of configs/iwslt14.yaml, made by scripts/preprocess_iwslt14.sh. `depth=10,50` and
# `scheme=deepnorm` choose among the cells; any other key is a fairseq-train option of every cell.
#
# Output: runs/fig6/CELL, a run folder each, and the table: on standard output, in runs/fig6/report.md and
# report.csv. Restart-safe, see scripts/sweep.sh.
#
# Variables (with defaults):
#   RUNS       folder of the cells (runs/fig6)
#   ONLY       only the cells with such a name: 'deepnorm_*' (all)
# @lib/help/sweep.txt
#
# Example: PARALLEL=8 bash scripts/fig6.sh scheme=deepnorm,pre-ln
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

hand_over sweep --variables fig6 "$@"
