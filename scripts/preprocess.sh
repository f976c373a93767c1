#!/usr/bin/env bash
# Raw text to what fairseq-train reads: check, clean, learn subwords, binarise.
#
#   SRC=de TGT=en TRAIN=raw/train VALID=raw/valid TEST=raw/test OUT=data/mine.de-en bash scripts/preprocess.sh
#   TABLE=pairs.tsv OUT=data/mine bash scripts/preprocess.sh pairs
#   LANG_CODE=en TRAIN=raw/train VALID=raw/valid OUT=data/mine_lm.en bash scripts/preprocess.sh language
#   bash scripts/preprocess.sh multi30k-lm
#
# The first word is a recipe of `deepnet preprocess` (pair), whose --help lists all recipes and options. Each
# option is a variable, too: VOCAB_SIZE=8000 is --vocab-size 8000. FORCE=1 rebuilds OUT, DRY_RUN=1 only prints.
#
# OUT appears only when it is complete; work is done in OUT.part, and a run that was killed is resumed by the
# same command. data/README.md shows what is in the folders.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ $# -gt 0 && $1 != -* ]] || set -- pair "$@"
hand_over preprocess --variables "$@"
