#!/usr/bin/env bash
# Train a deep Transformer on WMT-17 English-German with the DeepNet paper's hyper-parameters: base size
# (table 5) or the wider settings (table 6). Use GPUs. The batch is 128 x 4,096 tokens on any number of GPUs
# and nodes. SCHEME=rezero, r-fixup and t-fixup use the learning rate that table 5 gives for them.
#
#   bash scripts/train_wmt17.sh [fairseq-train options]
#
# Input: the data folder DATA; if it is missing, scripts/preprocess_wmt17.sh downloads and builds it.
# Output: a run folder, see scripts/train.sh; score it with AVERAGE=10 BEAM=4 LENPEN=0.6 bash scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers of the encoder and of the decoder; the paper has 6, 18, 50 and 100 (18)
#   SIZE     base: table 5, width 512, 100,000 updates; large-512, large-768 or large-1024: table 6, that width,
#            30,000 updates (base)
#   SRC, TGT languages: en and de, in either order (en, de)
#   DATA     data folder (data/wmt17.SRC-TGT; data/wmt17.tokenized.SRC-TGT with VARIANT=tokenized)
#   RAW      source files, see scripts/preprocess_wmt17.sh (none: download)
#   RUN      run folder (runs/wmt17_DEPTHl, plus variant, language pair, SIZE, SCHEME and SEED if they differ)
# @lib/help/recipe.txt
#
# Examples: DEPTH=100 bash scripts/train_wmt17.sh --max-tokens 2048 --checkpoint-activations-every auto
#           DRY_RUN=1 GPUS=8 NODES=4 SIZE=large-1024 bash scripts/train_wmt17.sh
#           NODES=4 NODE_RANK=0 MASTER_ADDR=node0 bash scripts/train_wmt17.sh   # on node0, and so on
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

recipe_variables 18
SIZE=${SIZE:-base}
pair=.${SRC:-en}-${TGT:-de}
[[ -z ${DATA:-} ]] || set -- ${SRC:+--source-lang "$SRC"} ${TGT:+--target-lang "$TGT"} "$@"
[[ ${VARIANT:-} != tokenized ]] || pair=.tokenized$pair
name=wmt17${pair#.en-de}_${DEPTH}l
case $SIZE in
    base)
        config=wmt17_base
        case $SCHEME in
            rezero | r-fixup | t-fixup) config=wmt17_base_nonorm ;;
        esac
        ;;
    large-512) config=wmt17_large ;;
    large-768 | large-1024) config=wmt17_large_${SIZE#large-} ;;
    *) die "SIZE is '$SIZE'; choose base, large-512, large-768 or large-1024" ;;
esac
[[ $SIZE == base ]] || name+=_$SIZE
train_recipe "$config" "$name" "wmt17$pair" preprocess_wmt17.sh "$@"
