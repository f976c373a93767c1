#!/usr/bin/env bash
# Build a data folder for fairseq-train from raw text: check, clean, learn subwords, binarise.
#
#   SRC=de TGT=en TRAIN=raw/train VALID=raw/valid TEST=raw/test OUT=data/mine.de-en bash scripts/preprocess.sh
#   TABLE=pairs.tsv OUT=data/mine bash scripts/preprocess.sh pairs
#   LANG_CODE=en TRAIN=raw/train VALID=raw/valid OUT=data/mine_lm.en bash scripts/preprocess.sh language
#   bash scripts/preprocess.sh multi30k-lm
#
# The first word is a recipe of `deepnet preprocess` (default: pair), whose --help lists all recipes and options.
# Each option is also a variable: VOCAB_SIZE=8000 is --vocab-size 8000. FORCE=1 rebuilds OUT, DRY_RUN=1 only prints.
#
# OUT appears only when it is complete; until then, the work is in OUT.part. If the script is killed, the same command
# resumes the work. data/README.md describes the content of the folders.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ $# -gt 0 && $1 != -* ]] || set -- pair "$@"
hand_over preprocess --variables "$@"
