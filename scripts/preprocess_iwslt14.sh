#!/usr/bin/env bash
# IWSLT 2014 German-English (TED talks, 160,239 training pairs), ready for fairseq-train.
#
#   bash scripts/preprocess_iwslt14.sh [dictionary options of fairseq-preprocess]            # downloads 19 MB
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
help_if_asked "$@"
case ${VARIANT:-tokenized} in
    tokenized) hand_over preprocess iwslt14 --variables -- "$@" ;;
    sentencepiece) hand_over preprocess iwslt14-sentencepiece --variables -- "$@" ;;
    *) die "VARIANT is '$VARIANT'; it must be tokenized or sentencepiece" ;;
esac
