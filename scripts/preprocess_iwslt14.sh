#!/usr/bin/env bash
# IWSLT 2014 German-English (TED talks, 160,239 training pairs), ready for fairseq-train.
#
#   bash scripts/preprocess_iwslt14.sh [fairseq-preprocess options]            # downloads 19 MB
#   RAW=de-en.tgz JOINED=1 bash scripts/preprocess_iwslt14.sh
#
# As fairseq's recipe makes it (examples/translation/prepare-iwslt14.sh): titles and descriptions are training
# text too; Moses tokens, lower case; pairs with 1 to 175 tokens a side and at most 1.5 times as many on one
# side as on the other; every 23rd pair for validation; test is dev2010 + TEDX.dev2012 + tst2010 + tst2011 +
# tst2012 (6,750); 10,000 byte-pair codes learnt on both languages together; a dictionary for each language.
#
# Input: RAW, the archive de-en.tgz or the folder it was unpacked to; without RAW it is downloaded.
# Output: OUT, a data folder as scripts/preprocess_moses.sh makes it, or scripts/preprocess.sh for the variant
# sentencepiece. A run that was killed goes on at the stage where it stopped.
#
# Variables (with defaults):
#   RAW         archive or folder (none: download)
#   VARIANT     tokenized: as above; sentencepiece: raw cased text and sentencepiece (tokenized)
#   OUT         folder to make (data/iwslt14.VARIANT.de-en)
#   SRC, TGT    de and en, in either order (de, en)
#   DOWNLOADS   folder for what is downloaded (data/downloads/iwslt14)
#   DEEPNET_MIRROR   addresses to download from first
#   JOINED      tokenized: 1 for one dictionary, as models with shared embeddings need it (0)
#   HOLD_OUT    every such training pair is for validation (23)
#   MERGES, MAX_RATIO, ...             tokenized: every other variable of scripts/preprocess_moses.sh
#   VOCAB_SIZE, SUBWORDS, ...          sentencepiece: every other variable of scripts/preprocess.sh (10000, bpe)
#   FORCE       1: make OUT anew even if it is there (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/corpora.sh"
help_if_asked "$@"

VARIANT=${VARIANT:-tokenized}
SRC=${SRC:-de}
TGT=${TGT:-en}
[[ $VARIANT == tokenized || $VARIANT == sentencepiece ]] || die "VARIANT is '$VARIANT'; it must be tokenized or sentencepiece"
[[ "$SRC $TGT" == "de en" || "$SRC $TGT" == "en de" ]] || die "SRC and TGT are '$SRC' and '$TGT'; they must be de and en"
OUT=${OUT:-$ROOT/data/iwslt14.$VARIANT.$SRC-$TGT}
OUT=${OUT%/}
DOWNLOADS=${DOWNLOADS:-$ROOT/data/downloads/iwslt14}
check_numbers

activate_environment
hold_out=()
[[ $VARIANT == tokenized ]] || hold_out=(--hold-out "${HOLD_OUT:-23}")
extract_corpus iwslt14 "${hold_out[@]}"

export SRC TGT OUT TRAIN=$TEXT/train TEST=$TEXT/test
if [[ $VARIANT == tokenized ]]; then
    export HOLD_OUT=${HOLD_OUT:-23} MERGES=${MERGES:-10000} JOINED=${JOINED:-0} LOWERCASE=${LOWERCASE:-1}
    export APOSTROPHES=${APOSTROPHES:-1} MAX_RATIO=${MAX_RATIO:-1.5} MAX_TOKENS=${MAX_TOKENS:-175}
    bash "$ROOT/scripts/preprocess_moses.sh" "$@"
else
    export VALID=$TEXT/valid VOCAB_SIZE=${VOCAB_SIZE:-10000}
    bash "$ROOT/scripts/preprocess.sh" "$@"
fi
forget_text
