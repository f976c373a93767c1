#!/usr/bin/env bash
# Train a deep multilingual Transformer on OPUS-100 (100 languages, English into and from each of the others)
# with the DeepNet paper's hyper-parameters (table 7): configs/opus100.yaml. Meant for many GPUs; the batch of
# 128 x 4,096 tokens holds for any number of GPUs and nodes.
#
#   bash scripts/train_opus100.sh [fairseq-train options]
#
# Input: the data folder DATA; where it is missing, scripts/preprocess_opus100.sh downloads and makes it.
# Output: a run folder, see scripts/train.sh; score all directions with scripts/eval_bleu.sh.
#
# Variables (with defaults):
#   DEPTH    layers of the encoder and, as many, of the decoder: half of what the paper and the archs count. Its
#            models of 12, 20, 100, 200 and 1,000 layers are DEPTH=6, 10, 50, 100 and 500. Above 100 a layer's
#            activations are computed again in the backward pass (configs/opus100_1000.yaml) (100)
#   MEMORY   GiB of one GPU: what makes the training fit is asked of `deepnet plan` and added; MEMORY= asks
#            nothing (auto: of the GPUs that are visible, 80 where they are elsewhere)
#   DATA     data folder (data/opus100)
#   RAW      files to make it from, see scripts/preprocess_opus100.sh (none: download)
#   RUN      run folder (runs/opus100_DEPTHl-DEPTHl; SCHEME and SEED are added where they differ)
# @lib/help/recipe.txt
#
# Examples: DEPTH=6 bash scripts/train_opus100.sh                             # the paper's 12 layers
#           DRY_RUN=1 DEPTH=500 GPUS=8 NODES=16 bash scripts/train_opus100.sh # its 1,000 layers
#           DEPTH=500 GPUS=8 NODES=16 LAUNCHER=slurm bash scripts/train_opus100.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib/recipe.sh"
help_if_asked "$@"

recipe_variables 100
export MEMORY=${MEMORY-auto}
config=opus100
((DEPTH <= 100)) || config=opus100_1000
case $DEPTH in
    6 | 10 | 50 | 100 | 500) arch=deepnet_transformer_opus100_$((2 * DEPTH)) ;;
    *) arch=deepnet_transformer ;;
esac
train_recipe "$config" "opus100_${DEPTH}l-${DEPTH}l" opus100 preprocess_opus100.sh --arch "$arch" "$@"
