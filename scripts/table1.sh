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
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   SEEDS      seeds, each a run of every cell: 1,2,3 (1)
#   DRY_RUN    1: print the plan (cells, parameters, GPU-hours, what is done) and end (0)
#   DATA       data folder of all cells (the config's)
#   RUNS       folder of the cells (runs/table1)
#   ONLY       only the cells with such a name: 'deepnorm_*' (all)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   TERAFLOPS  peak of one device, for the hours of the plan (312 for a GPU)
#   MEMORY     memory of one device in GiB, for the plan (as found)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: DRY_RUN=1 GPUS=8 bash scripts/table1.sh depth=18,50
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

exec bash "$ROOT/scripts/sweep.sh" table1 "$@"
