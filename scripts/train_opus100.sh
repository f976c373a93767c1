#!/usr/bin/env bash
# Train a deep multilingual Transformer on OPUS-100 (100 languages, English into and from each of the others)
# with the DeepNet paper's hyper-parameters (table 7): configs/opus100.yaml. Use many GPUs. The batch is
# 128 x 4,096 tokens on any number of GPUs and nodes.
#
#   bash scripts/train_opus100.sh [fairseq-train options]
#
# Input: the data folder DATA; if it is missing, scripts/preprocess_opus100.sh downloads and builds it.
# Output: a run folder, see scripts/train.sh; score all directions with TOKENIZER=13a bash scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers per side. The paper and the architectures' names count both sides: the paper's models of
#            12, 20, 100, 200 and 1,000 layers are DEPTH=6, 10, 50, 100 and 500. Above 100, the backward pass recomputes activations
#            (configs/opus100_1000.yaml). `deepnet plan` shows the memory, and options that make it fit (100)
#   LANGS    languages besides English, such as "de fr" (all 99)
#   DATA     data folder (data/opus100, plus LANGS)
#   RAW      source files, see scripts/preprocess_opus100.sh (none: download)
#   RUN      run folder (runs/opus100_DEPTHl-DEPTHl, plus LANGS, SCHEME and SEED if they differ)
# @lib/help/recipe.txt
#
# Examples: DEPTH=6 bash scripts/train_opus100.sh                             # the paper's 12 layers
#           DRY_RUN=1 DEPTH=500 GPUS=8 NODES=16 bash scripts/train_opus100.sh # the paper's 1,000 layers
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

recipe_variables 100
config=opus100
((DEPTH <= 100)) || config=opus100_1000
case $DEPTH in
    6 | 10 | 50 | 100 | 500) arch=deepnet_transformer_opus100_$((2 * DEPTH)) ;;
    *) arch=deepnet_transformer ;;
esac
name=opus100${LANGS:+.${LANGS// /-}} pairs=
[[ -z ${DATA:-} ]] || for code in ${LANGS:-}; do pairs+=,$code-en,en-$code; done
train_recipe "$config" "${name}_${DEPTH}l-${DEPTH}l" "$name" preprocess_opus100.sh --arch "$arch" ${pairs:+--lang-pairs "${pairs#,}"} "$@"
