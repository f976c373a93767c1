#!/usr/bin/env bash
# The analysis figures of the DeepNet paper: train their runs with monitoring on, then write ours beside the
# paper's as a table, a CSV and a PNG for each figure.
#
#   bash scripts/reproduce_analysis.sh [FIGURE [key=value ...]]
#
# Input: FIGURE, all (the default) or one of
#   fig3a  gradient norm of decoder layers 13 to 18, 18L-18L, Post-LN and Post-LN-init (the runs of fig4)
#   fig3b  gradient norm of the last decoder layer, 6L-6L to 24L-24L
#   fig3c  validation loss by epoch, 18L-18L
#   fig4   the first 30 updates at 18L-18L: model update, inputs of LayerNorms, gradient norm of all decoder layers
#   fig5   model update by depth, 6L-6L to 100L-100L, Post-LN and DeepNorm, tiny models
# and the data folder of configs/analysis.yaml: Multi30k (scripts/preprocess_multi30k.sh). CONFIG=iwslt14 takes
# the paper's corpus instead (scripts/preprocess_iwslt14.sh). `depth=6,50` replaces the values of a factor; any other
# key is a fairseq-train option of every run. docs/analysis.md shows the figures and what differs from the paper.
#
# Output: RUNS/SWEEP/CELL, a run folder each with its monitor.jsonl (SWEEP: fig3b, fig3c, fig4 or fig5 of
# configs/sweeps/); OUT/FIGURE.csv and OUT/FIGURE.png; the table on standard output. Restart-safe, see
# scripts/sweep.sh.
#
# Variables (with defaults):
#   SIZE       small: fewer depths and tokens, and for fig3c a narrower model: two cores bear it;
#              paper: the paper's batch, width and epochs, for a GPU (small)
#   UPDATES    which updates are shown, 10 or 1-5 (their mean): of gradients in fig3a, fig3b and fig4, and of the
#              model update in fig5; the paper does not state them (as in docs/analysis.md)
#   OUT        folder of CSV and PNG (RUNS)
#   RUNS       folder of the sweeps' folders (runs/analysis.SIZE, with the names of CONFIG and DATA after it)
#   CONFIG     config of every run, a name in configs/ or a file (analysis)
#   ONLY       only the runs with such a name: 'deepnorm_*' (all)
# @lib/help/sweep.txt
#
# Example: SEEDS=1,2,3 PARALLEL=2 bash scripts/reproduce_analysis.sh fig5
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

FIGURES=(fig3a fig3b fig3c fig4 fig5)
FIGURE=${1:-all}
[[ " all ${FIGURES[*]} " == *" $FIGURE "* ]] ||
    die "FIGURE is '$FIGURE'; it must be all or one of ${FIGURES[*]}; see --help"
[[ $# == 0 ]] || shift
SIZE=${SIZE:-small}
[[ $SIZE == small || $SIZE == paper ]] || die "SIZE is '$SIZE'; it must be small or paper"
for name in DRY_RUN TINY; do
    [[ ${!name:-0} == [01] ]] || die "$name is '${!name}'; it must be 0 or 1"
done
if [[ -z ${RUNS:-} ]]; then
    RUNS=$ROOT/runs/analysis.$SIZE
    [[ -z ${CONFIG:-} ]] || RUNS+=.$(basename "$CONFIG" .yaml)
    [[ -z ${DATA:-} ]] || RUNS+=.$(basename "$DATA")
fi
RUNS=${RUNS%/}

# What the small size changes, as words of `deepnet sweep`: $1 a sweep.
small_size() {
    local tokens=(max-tokens=1000 recipe.global-batch-tokens=1000)
    case $1 in
        fig3b) echo "${tokens[*]} depth=6,9,12,15,18,21,24" ;;
        # the warm-up ends in the fourth epoch, as the paper's 4,000 updates do
        fig3c) echo "max-epoch=8 warmup-updates=480 \
encoder-embed-dim=64 decoder-embed-dim=64 encoder-ffn-embed-dim=128 decoder-ffn-embed-dim=128 \
encoder-attention-heads=2 decoder-attention-heads=2" ;;
        fig4) echo "${tokens[*]}" ;;
        fig5) echo "${tokens[*]} depth=6,10,18,25,35,50,75,100" ;;
    esac
}

# Train the runs of a figure, $1, and draw it; then the words of the command line.
reproduce() {
    local figure=$1 sweep=$1 words=() folder options=()
    shift
    [[ $figure != fig3a ]] || sweep=fig4
    if [[ ${TINY:-0} == 1 ]]; then
        UPDATES=${UPDATES:-1-2} # a rehearsal has no more
    elif [[ $SIZE == small ]]; then
        read -ra words <<<"$(small_size "$sweep")"
    fi
    folder=$RUNS/$sweep
    RUNS=$folder deepnet sweep --variables "$sweep" "${words[@]}" "$@" >&2 || return
    [[ ${DRY_RUN:-0} == 0 ]] || return 0
    [[ ${TINY:-0} == 0 ]] || folder+=.tiny
    [[ -z ${UPDATES:-} ]] || options+=(--updates "$UPDATES")
    deepnet analysis "$figure" "$folder" --out "${OUT:-$RUNS}" "${options[@]}"
}

activate_environment
if [[ $FIGURE == all ]]; then
    # one after another; a run that crashed leaves the others their turn
    failed=()
    for figure in fig4 fig3a fig5 fig3b fig3c; do
        reproduce "$figure" "$@" || failed+=("$figure")
    done
    [[ ${#failed[@]} == 0 ]] || die "not complete: ${failed[*]}; the same command goes on"
else
    reproduce "$FIGURE" "$@"
fi
