#!/usr/bin/env bash
# Train and score all cells of a sweep: one of the paper's tables or figures, or a comparison of your own; then
# print its tables (the paper's beside ours) and draw its figures.
#
#   bash scripts/sweep.sh SWEEP [key=value ...]
#
# Input: SWEEP, a YAML file or a name in configs/sweeps/ (table1, table2, fig3b, fig3c, fig4, fig5, fig6, fig7,
# compare_methods, lr_batch, methods_6l, depth, tatoeba); the data folder of its config. `depth=6,18` replaces the
# values of a factor, `score.AVERAGE=0` sets an option of `deepnet evaluate`, `score=false` leaves the scores out; any
# other key is a fairseq-train option of every cell. Tables need pandas: pip install '.[paper]'.
#
# Output: runs/SWEEP/CELL, an ordinary run folder for each cell, with result.json (how it ended, its score) and
# console.log; in runs/SWEEP results.csv (one line per run), report.md, report.csv (one line per entry of a table) and
# figures. A cell with a result, a crash or a divergence included, is not run again; a sweep that was stopped resumes
# inside the cells that it was in. The exit status is 1 if a cell crashed.
#
# Variables (with defaults):
#   CONFIG     config of all cells, a name in configs/ or a file (the sweep's)
#   DATA       data folder of all cells (the config's)
#   RUNS       folder of the cells (runs/SWEEP)
#   ONLY       only the cells with such names: '*_18l deepnorm_*' (all)
#   SEEDS      seeds, each a run of every cell: 1,2,3 (1)
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   THREADS    threads of each cell on the CPU: fewer beside other work (cores / PARALLEL)
#   DRY_RUN    1: print the plan (cells, what is done, every option that differs from the config) and end (0)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: PARALLEL=4 ONLY='deepnorm_*' bash scripts/sweep.sh table1 depth=6,18
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ -n ${1:-} && $1 != -* ]] || die "a sweep is missing: bash scripts/sweep.sh table1; see --help"
hand_over sweep --variables "$@"
