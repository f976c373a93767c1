#!/usr/bin/env bash
# From raw text of many language pairs to one data folder with language tokens: check, clean, a joint
# sentencepiece model, binarise. For one pair there is scripts/preprocess.sh.
#
#   TABLE=pairs.tsv OUT=data/mine bash scripts/preprocess_multilingual.sh
#
# Input: TABLE, one line a split and pair, four columns separated by tabs, no header:
#   train   de   en   raw/de-en/train      raw/de-en/train.de and .en, plain or .gz
#   valid   de   en   raw/de-en/dev
#   test    de   fr   raw/de-fr/test       no train line: a zero-shot direction, only translated
# Every pair is listed once, whichever way round, and is trained in both directions. Training text is
# cleaned; of the other splits no line is dropped.
#
# Output: OUT with dict.txt, languages.txt (the order of the language tokens), {train,valid,test}.A-B.* (binarised),
# spm.model, spm.vocab, text/ (the checked raw text) and corpus.json (settings, counts, versions). Work is
# done in OUT.part: OUT exists only when complete. A run that was killed goes on where it stopped.
#
# Variables (with defaults):
#   TABLE                the table of pairs (required)
#   OUT                  folder to make (required)
#   VOCAB_SIZE           number of subwords (32000)
#   SUBWORDS             bpe or unigram (bpe)
#   TEMPERATURE          of the text that subwords are learnt on: 1 keeps the languages' proportions, larger
#                        values even them out (5)
#   SAMPLE               lines that subwords are learnt on, at most (2000000)
#   CHARACTER_COVERAGE   share of characters in the vocabulary (0.9995)
#   BYTE_FALLBACK        1: spell unseen characters as bytes, so that nothing is unknown (0)
#   MIN_WORDS, MAX_WORDS, MAX_RATIO   training pairs outside are dropped (1, 250, 5)
#   DROP_DUPLICATES      1: drop repeated training pairs (0)
#   WORKERS              processes (all cores)
#   FORCE                1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess pairs --variables -- "$@"
