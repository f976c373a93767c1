#!/usr/bin/env bash
# Multi30k (29,000 image captions in German, English, French and Czech), ready for fairseq-train.
#
#   bash scripts/preprocess_multi30k.sh                                  # download, German to English
#   RAW=my/multi30k SRC=fr TGT=cs bash scripts/preprocess_multi30k.sh
#
# Input: a folder RAW with {train,valid,test}.{SRC,TGT}[.gz], or with the names of the public
# repository multi30k/dataset ({train,val,test_2016_flickr}.{SRC,TGT}[.gz], also below
# data/task1/raw). Without RAW, the files are downloaded from that repository.
# Output: OUT, a data folder as scripts/preprocess.sh makes it; test is the 2016 Flickr set.
#
# Variables (with defaults):
#   RAW                  folder with the raw text (none: download)
#   SRC, TGT             two of de, en, fr, cs (de, en)
#   OUT                  folder to make (data/multi30k.SRC-TGT)
#   DOWNLOADS            folder for what is downloaded (data/downloads/multi30k)
#   DEEPNET_MIRROR, ...  every variable of scripts/download.sh
#   VOCAB_SIZE           number of subwords (4000)
#   SUBWORDS, ...        every other variable of scripts/preprocess.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess multi30k --variables -- "$@"
