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
#   CONFIG     config of every cell, a name in configs/ or a file, of an encoder-decoder model (multi30k_tiny)
#   SCORE      1: translate the test set with every cell, as scripts/eval_bleu.sh does; score.BEAM=4 sets a
#              variable of that (1 with a CONFIG, otherwise 0: losses alone)
#   RUNS       folder of the cells (runs/compare_methods, with the names of CONFIG and DATA after it)
#   ONLY       only the cells with such a name: 'deepnorm_*' (all)
# @lib/help/sweep.txt
#
# Example: CONFIG=iwslt14 SCHEME=deepnorm,admin,pre-ln DEPTH=18,50 GPUS=8 PARALLEL=8 bash scripts/compare_methods.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

SCORE=${SCORE:-${CONFIG:+1}}
[[ ${SCORE:-0} == [01] ]] || die "SCORE is '$SCORE'; it must be 0 or 1"
words=()
[[ -z ${SCHEME:-} ]] || words+=("scheme=$SCHEME")
[[ -z ${DEPTH:-} ]] || words+=("depth=$DEPTH")
[[ ${SCORE:-0} == 0 ]] || words+=(score=true)
if [[ -z ${RUNS:-} ]]; then
    RUNS=$ROOT/runs/compare_methods
    [[ -z ${CONFIG:-} ]] || RUNS+=.$(basename "$CONFIG" .yaml)
    [[ -z ${DATA:-} ]] || RUNS+=.$(basename "$DATA")
fi
export RUNS SEEDS=${SEEDS:-1,2}
hand_over sweep --variables compare_methods "${words[@]}" "$@"
