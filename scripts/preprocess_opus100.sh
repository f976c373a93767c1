#!/usr/bin/env bash
# OPUS-100 (English with 99 languages, 55 million pairs, and 15 zero-shot pairs), ready for fairseq-train.
#
#   bash scripts/preprocess_opus100.sh                            # download everything
#   LANGS="de fr nl" OUT=data/opus100.de-fr-nl bash scripts/preprocess_opus100.sh
#   RAW=opus-100-corpus-v1.0.tar.gz bash scripts/preprocess_opus100.sh
#
# RAW is an archive, a folder of archives, or a folder of unpacked text in the corpus's layout. For the five pairs
# without a dev set, a few training pairs are held out. The paper does not state the number of subwords. The default
# of 64,000 follows Zhang et al. 2020; the paper's parameter counts fit VOCAB_SIZE=250000. `deepnet preprocess --help`
# lists the other variables and options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
hand_over preprocess --variables opus100 "$@"
