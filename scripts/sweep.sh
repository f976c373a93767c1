#!/usr/bin/env bash
# Train and score all cells of a sweep: one of the paper's tables or figures, or a comparison of one's own; then
# print its tables (the paper's beside ours) and draw its figures.
#
#   bash scripts/sweep.sh SWEEP [key=value ...]
#
# Input: SWEEP, a name in configs/sweeps/ (table1, fig6, fig7, table2, compare_methods, lr_batch, methods_6l,
# depth, tatoeba) or a YAML file; the data folder of its config. `depth=6,18` replaces
# the values of a factor, `score.AVERAGE=0` sets a variable of scripts/eval_bleu.sh; any other key is a
# fairseq-train option of every cell.
#
# Output: runs/SWEEP/CELL, an ordinary run folder for each cell, with sweep.json (how it ended, last losses, end
# of the log) and console.log; runs/SWEEP/report.md, report.csv and figures (*.png). A cell with a result, a
# crash or a divergence included, is not run again; a sweep that was stopped goes on inside the cell it was in.
# The exit status is 1 if a cell crashed.
#
# Variables (with defaults):
#   CONFIG     config of all cells, a name in configs/ or a file, of models of the same kind (the sweep's)
#   RUNS       folder of the cells (runs/SWEEP)
#   ONLY       only the cells with such a name: '*_18l' (all)
# @lib/help/sweep.txt
#
# Example: PARALLEL=4 ONLY='deepnorm_*' bash scripts/sweep.sh table1 depth=6,18
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ -n ${1:-} && $1 != -* ]] || die "a sweep is missing: bash scripts/sweep.sh table1; see --help"
hand_over sweep --variables "$@"
