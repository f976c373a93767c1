#!/usr/bin/env bash
# Figure 7 of the DeepNet paper: WMT-17 English-German, 18L-18L DeepNet, learning rate, batch and width changed
# one at a time; validation losses at 5,000 to 30,000 updates beside the paper's.
#
#   bash scripts/fig7.sh [key=value ...]
#
# Input: data/wmt17.en-de, made by scripts/preprocess_wmt17.sh. `lr=...`, `batch=...` (x 4,096 tokens) and
# `width=...` replace the values of a factor; any other key is a fairseq-train option of every cell.
#
# Output: runs/fig7/CELL, a run folder each, and the table: on standard output, in runs/fig7/report.md and
# report.csv. Restart-safe, see scripts/sweep.sh.
#
# Variables (with defaults):
#   RUNS       folder of the cells (runs/fig7)
#   ONLY       only the cells with such a name: 'lr*' (all)
# @lib/help/sweep.txt
#
# Example: PARALLEL=2 bash scripts/fig7.sh width=512,768
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

hand_over sweep --variables fig7 "$@"
