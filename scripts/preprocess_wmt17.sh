#!/usr/bin/env bash
# WMT 2017 English-German (Europarl v7, Common Crawl, News Commentary v12: 4.59 million pairs), ready for
# fairseq-train.
#
#   bash scripts/preprocess_wmt17.sh [dictionary options of fairseq-preprocess]               # downloads 1.8 GB
#   RAW=archives/ WORKERS=32 bash scripts/preprocess_wmt17.sh
#
# Input: RAW, a folder with the published archives (or with what is in them); without RAW they are downloaded.
# Output: OUT, a data folder in which valid is newstest2013, test newstest2014 and test1 newstest2017
# (SPLIT=test1 bash scripts/eval_bleu.sh). Line counts other than the published ones are reported. A run that
# was killed goes on at the stage where it stopped.
#
# Variables (with defaults):
#   RAW         folder (none: download)
#   VARIANT     sentencepiece: raw cased text, joint sentencepiece; tokenized: as fairseq's recipe makes it
#               (prepare-wmt14en2de.sh): punctuation normalised, Moses tokens split at hyphens, every 100th
#               training pair for validation in place of newstest2013, 40,000 joint byte-pair codes, then
#               pairs with 1 to 250 subwords a side and a ratio of at most 1.5 (sentencepiece)
#   OUT         folder to make (data/wmt17.en-de, or data/wmt17.tokenized.en-de)
#   DOWNLOADS   folder for what is downloaded (data/downloads/wmt17)
#   DEEPNET_MIRROR   addresses to download from first
#   VOCAB_SIZE, SUBWORDS, ...   sentencepiece: every other variable of scripts/preprocess.sh (32000, bpe)
#   JOINED      tokenized: 1 for one dictionary, as configs/wmt17_base.yaml needs it (1)
#   MERGES, HOLD_OUT, ...       tokenized: every other variable of scripts/preprocess_moses.sh
#   WORKERS     processes (all cores)
#   FORCE       1: make OUT anew even if it is there (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
case ${VARIANT:-sentencepiece} in
    sentencepiece) hand_over preprocess wmt17 --variables -- "$@" ;;
    tokenized) hand_over preprocess wmt17-tokenized --variables -- "$@" ;;
    *) die "VARIANT is '$VARIANT'; it must be tokenized or sentencepiece" ;;
esac
