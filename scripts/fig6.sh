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
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   SEEDS      seeds, each a run of every cell: 1,2,3 (1)
#   DRY_RUN    1: print the plan (cells, parameters, GPU-hours, what is done) and end (0)
#   DATA       data folder of all cells (the config's)
#   RUNS       folder of the cells (runs/fig6)
#   ONLY       only the cells with such a name: 'deepnorm_*' (all)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   TERAFLOPS  peak of one device, for the hours of the plan (312 for a GPU)
#   MEMORY     memory of one device in GiB, for the plan (as found)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: PARALLEL=8 bash scripts/fig6.sh scheme=deepnorm,pre-ln
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

exec bash "$ROOT/scripts/sweep.sh" fig6 "$@"
