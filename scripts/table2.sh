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
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   SEEDS      seeds, each a run of every cell: 1,2,3 (1)
#   DRY_RUN    1: print the plan (cells, parameters, GPU-hours, what is done) and end (0)
#   DATA       data folder of all cells (the config's)
#   RUNS       folder of the cells (runs/table2)
#   ONLY       only the cells with such a name: 'depth1*' (all)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   TERAFLOPS  peak of one device, for the hours of the plan (312 for a GPU)
#   MEMORY     memory of one device in GiB, for the plan (as found)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: DRY_RUN=1 GPUS=128 bash scripts/table2.sh depth=200,1000
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

exec bash "$ROOT/scripts/sweep.sh" table2 "$@"
