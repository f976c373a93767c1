#!/usr/bin/env bash
# Table 1 of the DeepNet paper: WMT-17 English-German, every registered residual scheme of the table at 6, 18,
# 50 and 100 layers a side, BLEU beside the paper's.
#
#   bash scripts/table1.sh [key=value ...]
#
# Input: data/wmt17.en-de, made by scripts/preprocess_wmt17.sh. `depth=6,18` and `scheme=deepnorm` choose
# among the cells; any other key is a fairseq-train option of every cell.
#
# Output: runs/table1/CELL, a run folder each, and the table: on standard output, in runs/table1/report.md and
# report.csv. Restart-safe, see scripts/sweep.sh.
#
# Variables (with defaults):
#   RUNS       folder of the cells (runs/table1)
#   ONLY       only the cells with such a name: 'deepnorm_*' (all)
# @lib/help/sweep.txt
#
# Example: DRY_RUN=1 GPUS=8 bash scripts/table1.sh depth=18,50
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

hand_over sweep --variables table1 "$@"
