#!/usr/bin/env bash
# Table 2 and figure 8 of the DeepNet paper: OPUS-100, DeepNet of 12 to 1,000 layers in all, average BLEU beside
# the paper's, and the law L(d) = A log(d) + B fitted to both.
#
#   bash scripts/table2.sh [key=value ...]
#
# Input: data/opus100, made by scripts/preprocess_opus100.sh. `depth=12,20` (layers of encoder and decoder
# together) chooses among the cells; any other key is a fairseq-train option of every cell.
#
# Output: runs/table2/CELL, a run folder each, and the table: on standard output, in runs/table2/report.md and
# report.csv. Restart-safe, see scripts/sweep.sh.
#
# Variables (with defaults):
#   RUNS       folder of the cells (runs/table2)
#   ONLY       only the cells with such a name: 'depth1*' (all)
# @lib/help/sweep.txt
#
# Example: DRY_RUN=1 GPUS=128 bash scripts/table2.sh depth=200,1000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

hand_over sweep --variables table2 "$@"
