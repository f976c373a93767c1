#!/usr/bin/env bash
# From raw parallel text to fairseq's data as published recipes make it: Moses tokens, byte-pair codes.
#
#   SRC=de TGT=en TRAIN=raw/train TEST=raw/test HOLD_OUT=23 OUT=data/mine.de-en \
#       bash scripts/preprocess_moses.sh [dictionary options of fairseq-preprocess]
#
# For results that are to be compared with published ones; for your own text scripts/preprocess.sh is
# simpler. Needs sacremoses and subword-nmt (the extra "moses"). Dictionary options are --thresholdsrc,
# --thresholdtgt, --nwordssrc, --nwordstgt and --padding-factor.
#
# Input: prefixes, of which PREFIX.SRC and PREFIX.TGT (plain or .gz) are the two sides: UTF-8, raw.
#
# Output: OUT with dict.*.txt, {train,valid,test}.SRC-TGT.* (binarised), bpe.codes, text/ (raw text of the
# pairs that are left, for sacreBLEU), tokenised/ (their tokens, for tokenised BLEU) and, last of all,
# corpus.json. Work is done in OUT.part, as by scripts/preprocess.sh.
#
# Variables (with defaults):
#   SRC, TGT             source and target language: the endings of the files (required)
#   TRAIN                prefix (required)
#   VALID                prefix; or instead
#   HOLD_OUT             N: every Nth training pair is for validation (0)
#   TEST                 prefix (none); several, separated by commas, become test, test1, test2, ...
#   OUT                  folder to make (data/corpus.tokenized.SRC-TGT)
#   MERGES               number of byte-pair codes, learnt on both languages together (10000)
#   JOINED               1: one dictionary for both languages; 0: one each (0)
#   LOWERCASE            1: lower case (0)
#   AGGRESSIVE           1: split words at hyphens, as tokenizer.perl -a (0)
#   PUNCTUATION          1: normalise punctuation and drop non-printing characters in TRAIN (0)
#   APOSTROPHES          1: make ’ a plain apostrophe in VALID and TEST (0)
#   CLEAN_ON             words: clean TRAIN before pairs are held out, by tokens;
#                        subwords: clean train and valid at the end, by subwords (words)
#   MIN_TOKENS, MAX_TOKENS, MAX_RATIO   pairs outside are dropped (1, 175, 1.5)
#   WORKERS              processes (all cores)
#   FORCE                1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess moses --variables -- "$@"
