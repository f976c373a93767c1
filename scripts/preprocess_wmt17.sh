#!/usr/bin/env bash
# WMT 2017 English-German (Europarl v7, Common Crawl, News Commentary v12: 4.59 million pairs), ready for
# fairseq-train.
#
#   bash scripts/preprocess_wmt17.sh                              # downloads 1.8 GB
#   RAW=FOLDER VARIANT=tokenized bash scripts/preprocess_wmt17.sh
#
# VARIANT=sentencepiece (default) keeps raw cased text: valid is newstest2013, test newstest2014, test1
# newstest2017 (SPLIT=test1 bash scripts/eval_bleu.sh). VARIANT=tokenized follows fairseq's
# prepare-wmt14en2de.sh: Moses tokens, 40,000 byte-pair codes, every 100th pair for validation. RAW is a folder
# with the published archives. `deepnet preprocess --help` lists the other variables and options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
case ${VARIANT:-sentencepiece} in
    sentencepiece) hand_over preprocess --variables wmt17 "$@" ;;
    tokenized) hand_over preprocess --variables wmt17-tokenized "$@" ;;
    *) die "VARIANT is '$VARIANT'; it must be tokenized or sentencepiece" ;;
esac
