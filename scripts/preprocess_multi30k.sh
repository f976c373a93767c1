#!/usr/bin/env bash
# Multi30k (29,000 image captions in German, English, French and Czech), ready for fairseq-train.
#
#   bash scripts/preprocess_multi30k.sh                           # download, German-English
#   RAW=FOLDER SRC=fr TGT=en bash scripts/preprocess_multi30k.sh
#
# RAW is a folder with {train,valid,test}.LANGUAGE[.gz], or with the names of the repository multi30k/dataset
# ({train,val,test_2016_flickr}.LANGUAGE.gz). test is the 2016 Flickr set. `deepnet preprocess --help` lists the
# other variables and options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess --variables multi30k "$@"
