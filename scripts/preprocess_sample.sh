#!/usr/bin/env bash
# The sample corpus, ready for fairseq-train: German to English sentences that a grammar has made.
#
#   bash scripts/preprocess_sample.sh [fairseq-preprocess options]
#
# Input: data/sample, which is part of the project; nothing is downloaded. Valid and test hold
# combinations of words that train does not.
# Output: OUT, a data folder as scripts/preprocess.sh makes it.
# A second run with the same settings has nothing to do, and says so.
#
# Variables (with defaults):
#   OUT                                 folder to make (data/sample.de-en)
#   TRAIN_LINES, VALID_LINES, TEST_LINES   sentence pairs, the first so many (25000, 500, 500: all)
#   VOCAB_SIZE                          number of subwords (2000)
#   FORCE                               1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP                  1: use the Python environment that is active, without checking it (0)
#
# Example: TRAIN_LINES=5000 OUT=data/small.de-en bash scripts/preprocess_sample.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ ${SEED:-1} == 1 ]] || die "SEED is '$SEED', and the sample corpus is one text now: leave SEED out"

declare -A lines=([train]=${TRAIN_LINES:-25000} [valid]=${VALID_LINES:-500} [test]=${TEST_LINES:-500})
declare -A all=([train]=25000 [valid]=500 [test]=500)
for split in train valid test; do
    [[ ${lines[$split]} =~ ^[1-9][0-9]{0,4}$ && ${lines[$split]} -le ${all[$split]} ]] ||
        die "${split^^}_LINES is '${lines[$split]}'; it must be a number from 1 to ${all[$split]}"
done

activate_environment
text=$(mktemp -d "${TMPDIR:-/tmp}/sample.XXXXXX")
trap 'rm -rf "$text"' EXIT
# Python 3.11.0 to 3.11.3 know no --filter, and 3.12 warns where there is none; the archive is our own.
python -W ignore -m tarfile --extract "$ROOT/data/sample/sample.tar.bz2" "$text/all"
for split in train valid test; do
    for language in de en; do
        head -n "${lines[$split]}" "$text/all/$split.$language" >"$text/$split.$language"
    done
done
SRC=de TGT=en TRAIN=$text/train VALID=$text/valid TEST=$text/test \
    OUT=${OUT:-$ROOT/data/sample.de-en} VOCAB_SIZE=${VOCAB_SIZE:-2000} DEEPNET_SKIP_SETUP=1 \
    bash "$ROOT/scripts/preprocess.sh" "$@"
