#!/usr/bin/env bash
# One language of Multi30k (29,000 image captions in German, English, French and Czech), ready for fairseq's
# language models.
#
#   bash scripts/preprocess_multi30k_lm.sh                                # download, English
#   RAW=my/multi30k LANG_CODE=de bash scripts/preprocess_multi30k_lm.sh
#
# Input: a folder RAW as for scripts/preprocess_multi30k.sh. Without RAW, the files are downloaded.
# Output: OUT, a data folder as scripts/preprocess_lm.sh makes it; test is the 2016 Flickr set.
#
# Variables (with defaults):
#   RAW                  folder with the raw text (none: download)
#   LANG_CODE            de, en, fr or cs (en)
#   OUT                  folder to make (data/multi30k_lm.LANG_CODE)
#   DOWNLOADS            folder for what is downloaded (data/downloads/multi30k)
#   DEEPNET_MIRROR, ...  every variable of scripts/download.sh
#   VOCAB_SIZE           number of subwords (4000)
#   SUBWORDS, ...        every other variable of scripts/preprocess_lm.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess multi30k-lm --variables -- "$@"
