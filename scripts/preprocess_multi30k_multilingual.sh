#!/usr/bin/env bash
# Multi30k in four languages as one multilingual corpus: English into and from each of the others is
# trained, the directions without English are zero-shot.
#
#   bash scripts/preprocess_multi30k_multilingual.sh                              # download
#   RAW=my/multi30k LANGS="de en fr" bash scripts/preprocess_multi30k_multilingual.sh
#
# Input: a folder RAW as for scripts/preprocess_multi30k.sh. Without RAW, the files are downloaded.
# Output: OUT, a data folder as scripts/preprocess_multilingual.sh makes it; test is the 2016 Flickr set.
#
# Variables (with defaults):
#   RAW                  folder with the raw text (none: download)
#   LANGS                two or more of cs, de, en, fr; en among them (cs de en fr)
#   OUT                  folder to make (data/multi30k_multilingual)
#   DOWNLOADS            folder for what is downloaded (data/downloads/multi30k)
#   DEEPNET_MIRROR, ...  every variable of scripts/download.sh
#   VOCAB_SIZE           number of subwords (8000)
#   CHARACTER_COVERAGE   share of characters in the vocabulary (1.0)
#   TEMPERATURE          of the text that subwords are learnt on (1: the languages are of one size)
#   SUBWORDS, ...        every other variable of scripts/preprocess_multilingual.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess multi30k-multilingual --variables -- "$@"
