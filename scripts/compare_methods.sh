#!/usr/bin/env bash
# Residual schemes side by side: methods x depths x seeds on one corpus, then tables (mean and spread over seeds,
# which diverged and why) and figures: loss against depth, loss curves.
#
#   bash scripts/compare_methods.sh [key=value ...]
#
# Input: the data folder of CONFIG, or DATA. Without variables: Multi30k (scripts/preprocess_multi30k.sh), the
# paper's tiny shape, 200 updates of 1,000 tokens, every scheme at 6, 18 and 50 layers a side and four of them at
# 100: some three hours on two cores (PARALLEL=2). Any other key is a fairseq-train option of every cell, as in
# max-update=2000 lr=5e-4.
#
# Output: RUNS/CELL, a run folder each; report.md, report.csv, valid_nll.png, curves.png in RUNS, and bleu.png
# where cells are scored. Restart-safe, see scripts/sweep.sh. fairseq_deepnet/divergence/verdict.py says what counts
# as diverged.
#
# Variables (with defaults):
#   SCHEME     schemes, at every depth, as in deepnorm,post-ln (all at 6, 18 and 50 layers, four at 100)
#   DEPTH      layers a side, as in 6,18 (6, 18, 50 and 100)
#   SEEDS      seeds, each a run of every cell (1,2)
#   CONFIG     config of every cell, a name in configs/ or a file, of an encoder-decoder model (multi30k_tiny)
#   DATA       data folder of all cells (the config's)
#   SCORE      1: translate the test set with every cell, as scripts/eval_bleu.sh does; score.BEAM=4 sets a
#              variable of that (1 with a CONFIG, otherwise 0: losses alone)
#   RUNS       folder of the cells (runs/compare_methods, with the names of CONFIG and DATA after it)
#   GPUS       GPUs to use in all; 0 trains on the CPU (all that are visible)
#   PARALLEL   cells at once, each with its share of the GPUs or cores (1)
#   DRY_RUN    1: print the plan (cells, parameters, hours, what is done) and end (0)
#   ONLY       only the cells with such a name: 'deepnorm_*' (all)
#   RETRY      failed, diverged or all: run these again (none)
#   TINY       1: a rehearsal of the whole way with tiny models, in RUNS.tiny (0)
#   TERAFLOPS  peak of one device, for the hours of the plan (312 for a GPU)
#   MEMORY     memory of one device in GiB, for the plan (as found)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: CONFIG=iwslt14 SCHEME=deepnorm,admin,pre-ln DEPTH=18,50 GPUS=8 PARALLEL=8 bash scripts/compare_methods.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ ${TINY:-0} == [01] ]] || die "TINY is '$TINY'; it must be 0 or 1"
SCORE=${SCORE:-${CONFIG:+1}}
[[ ${SCORE:-0} == [01] ]] || die "SCORE is '$SCORE'; it must be 0 or 1"
words=()
for former in METHODS:SCHEME DEPTHS:DEPTH; do
    name=${former#*:}
    former=${former%:*}
    [[ -n ${!former:-} ]] || continue
    log "$former is now called $name; the former name still works"
    [[ -n ${!name:-} ]] || printf -v "$name" %s "${!former}"
done
[[ -z ${SCHEME:-} ]] || words+=("scheme=$SCHEME")
[[ -z ${DEPTH:-} ]] || words+=("depth=$DEPTH")
[[ ${SCORE:-0} == 0 ]] || words+=(score=true)
if [[ -z ${RUNS:-} ]]; then
    RUNS=$ROOT/runs/compare_methods
    [[ -z ${CONFIG:-} ]] || RUNS+=.$(basename "$CONFIG" .yaml)
    [[ -z ${DATA:-} ]] || RUNS+=.$(basename "$DATA")
fi
export RUNS SEEDS=${SEEDS:-1,2}
exec bash "$ROOT/scripts/sweep.sh" compare_methods "${words[@]}" "$@"
