#!/usr/bin/env bash
# From raw parallel text to what fairseq-train reads: check, clean, sentencepiece, binarise.
#
#   SRC=de TGT=en TRAIN=raw/train VALID=raw/valid TEST=raw/test OUT=data/mine.de-en \
#       bash scripts/preprocess.sh [dictionary options of fairseq-preprocess]
#
# Input: for each of TRAIN, VALID and TEST a prefix, of which PREFIX.SRC and PREFIX.TGT (plain or .gz)
# are the two sides: UTF-8, raw (not tokenised), line i of one a translation of line i of the other.
# Training pairs are cleaned; valid and test are checked only, and never changed.
#
# Output: OUT with dict.*.txt, {train,valid,test}.SRC-TGT.* (binarised), spm.model, spm.vocab, text/
# (the checked raw text) and, last of all, corpus.json (settings, counts, versions).
# Work is done in OUT.part: OUT exists only when complete. A run that was killed goes on at the stage
# where it stopped; a run that has nothing to do says so.
#
# Variables (with defaults):
#   SRC, TGT             source and target language: the endings of the files (required)
#   TRAIN, VALID         prefixes (required)
#   TEST                 prefix (none); several, separated by commas, become test, test1, test2, ...
#   OUT                  folder to make (data/corpus.SRC-TGT)
#   VOCAB_SIZE           number of subwords (8000)
#   SUBWORDS             bpe or unigram (bpe)
#   JOINT                1: one model and dictionary for both languages; 0: one each (1)
#   CHARACTER_COVERAGE   share of characters in the vocabulary; 0.9995 for Chinese or noisy text (1.0)
#   BYTE_FALLBACK        1: spell unseen characters as bytes, so that nothing is unknown (0)
#   SAMPLE               lines that sentencepiece looks at, at most (2000000)
#   MIN_WORDS, MAX_WORDS, MAX_RATIO   training pairs outside are dropped (1, 250, 5)
#   DROP_DUPLICATES      1: drop repeated training pairs (0)
#   WORKERS              processes (all cores)
#   FORCE                1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess pair --variables -- "$@"
