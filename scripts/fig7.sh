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
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   SEEDS      seeds, each a run of every cell: 1,2,3 (1)
#   DRY_RUN    1: print the plan (cells, parameters, GPU-hours, what is done) and end (0)
#   DATA       data folder of all cells (the config's)
#   RUNS       folder of the cells (runs/fig7)
#   ONLY       only the cells with such a name: 'lr*' (all)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   TERAFLOPS  peak of one device, for the hours of the plan (312 for a GPU)
#   MEMORY     memory of one device in GiB, for the plan (as found)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: PARALLEL=2 bash scripts/fig7.sh width=512,768
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

exec bash "$ROOT/scripts/sweep.sh" fig7 "$@"
