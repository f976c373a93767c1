#!/usr/bin/env bash
# Train all cells of a sweep: a table or figure of the paper, or your own comparison. Score them if the sweep or
# score=true says so. Then print the sweep's tables with the paper's numbers beside ours, and draw its figures.
#
#   bash scripts/sweep.sh SWEEP [key=value ...]
#
# Input: SWEEP, a YAML file or a name in configs/sweeps/ (table1, table2, fig3b, fig3c, fig4, fig5, fig6, fig7,
# compare_methods, lr_batch, methods_6l, depth, fair, tatoeba), and the data folder of its config. `depth=6,18` replaces the
# values of a factor, `score.AVERAGE=0` sets an option of `deepnet evaluate`, and `score=false` skips scoring. Any
# other key is a fairseq-train option of every cell. Tables need pandas: pip install '.[paper]'.
#
# Output: runs/SWEEP/CELL, an ordinary run folder for each cell, with result.json (outcome and score) and console.log.
# runs/SWEEP gets results.csv (one line per run), report.md, report.csv (one line per table entry) and figures.
# The same command resumes stopped and crashed cells. A cell that is complete or has diverged is not run again. The
# exit status is 1 if a cell crashed.
#
# Variables (with defaults):
#   CONFIG     config of all cells, a name in configs/ or a file (the sweep's)
#   DATA       data folder of all cells (the config's)
#   RUNS       folder for the cells (runs/SWEEP)
#   ONLY       patterns of cell names, such as '*_18l deepnorm_*' (all)
#   SEEDS      seeds, such as 1,2,3; each cell runs once per seed (1)
#   GPUS       total number of GPUs; 0 trains on the CPU (all visible GPUs)
#   THREADS    CPU threads of each cell (all cores, shared by the cells that run at once)
#   PARALLEL   number of cells to run at once, each with its share of the GPUs or cores (1)
#   DRY_RUN    1: only print the plan: cells, their state, and the options that the sweep sets (0)
#
# Example: PARALLEL=4 ONLY='deepnorm_*' bash scripts/sweep.sh table1 depth=6,18
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ -n ${1:-} && $1 != -* ]] || die "a sweep is missing: bash scripts/sweep.sh table1; see --help"
[[ -z ${THREADS:-} ]] || export OMP_NUM_THREADS=$THREADS
hand_over sweep --variables "$@"
