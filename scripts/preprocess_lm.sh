#!/usr/bin/env bash
# From raw text of one language to what fairseq's language models train on: check, clean, sentencepiece,
# binarise.
#
#   LANG_CODE=en TRAIN=raw/train VALID=raw/valid TEST=raw/test OUT=data/mine_lm.en bash scripts/preprocess_lm.sh
#
# Input: for each of TRAIN, VALID and TEST a prefix, of which PREFIX.LANG_CODE (plain or .gz) is the text:
# UTF-8, raw (not tokenised), a sentence or a paragraph a line. Training lines are cleaned; of valid and
# test only blank lines are left out.
#
# Output: OUT with dict.txt, {train,valid,test}.{bin,idx}, spm.model, spm.vocab, text/ (the checked raw
# text) and corpus.json (settings, counts, versions), for scripts/train.sh with an LM or a masked LM. Work
# is done in OUT.part: OUT exists only when complete. A run that was killed goes on at the stage where it
# stopped; a run that has nothing to do says so.
#
# Variables (with defaults):
#   LANG_CODE            language of the text: the ending of the files (required)
#   TRAIN, VALID         prefixes (required)
#   TEST                 prefix (none); several, separated by commas, become test, test1, test2, ...
#   OUT                  folder to make (data/corpus_lm.LANG_CODE)
#   VOCAB_SIZE           number of subwords (8000)
#   SUBWORDS             bpe or unigram (bpe)
#   CHARACTER_COVERAGE   share of characters in the vocabulary; 0.9995 for Chinese or noisy text (1.0)
#   BYTE_FALLBACK        1: spell unseen characters as bytes, so that nothing is unknown (0)
#   SAMPLE               lines that sentencepiece looks at, at most (2000000)
#   MIN_WORDS, MAX_WORDS training lines outside are dropped (1, 1000)
#   DROP_DUPLICATES      1: drop repeated training lines (0)
#   WORKERS              processes (all cores)
#   FORCE                1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess language --variables -- "$@"
