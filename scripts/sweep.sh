#!/usr/bin/env bash
# Train and score all cells of a sweep: one of the paper's tables or figures, or a comparison of one's own; then
# print its tables (the paper's beside ours) and draw its figures.
#
#   bash scripts/sweep.sh SWEEP [key=value ...]
#
# Input: SWEEP, a name in configs/sweeps/ (table1, fig6, fig7, table2, compare_methods, lr_batch, methods_6l,
# learning_rates, depth, tatoeba) or a YAML file; the data folder of its config. `depth=6,18` replaces the values of a factor, `score.AVERAGE=0` sets
# a variable of scripts/eval_bleu.sh; any other key is a fairseq-train option of every cell.
#
# Output: runs/SWEEP/CELL, an ordinary run folder for each cell, with sweep.json (how it ended, last losses, end
# of the log) and console.log; runs/SWEEP/report.md, report.csv and figures (*.png). A cell with a result, a
# crash or a divergence included, is not run again; a sweep that was stopped goes on inside the cell it was in.
# The exit status is 1 if a cell crashed.
#
# Variables (with defaults):
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   SEEDS      seeds, each a run of every cell: 1,2,3 (1)
#   DRY_RUN    1: print the plan (cells, parameters, GPU-hours, what is done) and end (0)
#   DATA       data folder of all cells (the config's)
#   CONFIG     config of all cells, a name in configs/ or a file, of models of the same kind (the sweep's)
#   RUNS       folder of the cells (runs/SWEEP)
#   ONLY       only the cells with such a name: '*_18l' (all)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   TERAFLOPS  peak of one device, for the hours of the plan (312 for a GPU)
#   MEMORY     memory of one device in GiB, for the plan (as found)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: PARALLEL=4 ONLY='deepnorm_*' bash scripts/sweep.sh table1 depth=6,18
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ -n ${1:-} && $1 != -* ]] || die "a sweep is missing: bash scripts/sweep.sh table1; see --help"
for name in DRY_RUN TINY; do
    [[ ${!name:-0} == [01] ]] || die "$name is '${!name}'; it must be 0 or 1"
done
options=()
for name in GPUS PARALLEL SEEDS DATA CONFIG RUNS ONLY RETRY TERAFLOPS MEMORY; do
    [[ -z ${!name:-} ]] || options+=("--${name,,}=${!name}")
done
[[ ${DRY_RUN:-0} == 0 ]] || options+=(--dry-run)
[[ ${TINY:-0} == 0 ]] || options+=(--tiny)
activate_environment
exec deepnet sweep "$@" "${options[@]}"
