#!/usr/bin/env bash
# The sample corpus, ready for fairseq-train: German to English sentences that a seeded grammar makes.
#
#   bash scripts/preprocess_sample.sh [fairseq-preprocess options]
#
# Input: none; nothing is downloaded. Valid and test hold combinations of words that train does not.
# Output: OUT, a data folder as scripts/preprocess.sh makes it, and in it sample.txt (the settings).
# A second run with the same settings has nothing to do, and says so.
#
# Variables (with defaults):
#   OUT                                 folder to make (data/sample.de-en)
#   SEED                                of the grammar: another seed, other sentences (1)
#   TRAIN_LINES, VALID_LINES, TEST_LINES   sentence pairs (25000, 500, 500)
#   VOCAB_SIZE                          number of subwords (2000)
#   FORCE                               1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP                  1: use the Python environment that is active, without checking it (0)
#
# Example: SEED=2 OUT=data/sample2.de-en bash scripts/preprocess_sample.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

OUT=${OUT:-$ROOT/data/sample.de-en}
OUT=${OUT%/}
SEED=${SEED:-1}
TRAIN_LINES=${TRAIN_LINES:-25000}
VALID_LINES=${VALID_LINES:-500}
TEST_LINES=${TEST_LINES:-500}
VOCAB_SIZE=${VOCAB_SIZE:-2000}
FORCE=${FORCE:-0}
for name in SEED TRAIN_LINES VALID_LINES TEST_LINES VOCAB_SIZE; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name is '${!name}'; it must be a number"
done

# What the corpus depends on, the grammar included.
settings() {
    local name
    for name in SEED TRAIN_LINES VALID_LINES TEST_LINES VOCAB_SIZE; do
        printf '%s=%s\n' "$name" "${!name}"
    done
    printf 'options=%s\n' "$*"
    printf 'grammar=%s\n' "$(cat "$ROOT"/fairseq_deepnet/tools/corpora/sample/*.py | cksum)"
}

if [[ $FORCE != 1 && -f $OUT/corpus.json && -f $OUT/sample.txt ]] &&
    [[ $(<"$OUT/sample.txt") == "$(settings "$@")" ]]; then
    log "$OUT is complete: nothing to do"
    exit 0
fi

activate_environment
raw=$(mktemp -d "${TMPDIR:-/tmp}/sample.XXXXXX")
trap 'rm -rf "$raw"' EXIT
log "generating $TRAIN_LINES sentence pairs"
run_deepnet sample --seed "$SEED" \
    --train "$TRAIN_LINES" --valid "$VALID_LINES" --test "$TEST_LINES" --out "$raw/text"
SRC=de TGT=en TRAIN=$raw/text/train VALID=$raw/text/valid TEST=$raw/text/test \
    OUT=$OUT VOCAB_SIZE=$VOCAB_SIZE FORCE=$FORCE DEEPNET_SKIP_SETUP=1 \
    bash "$ROOT/scripts/preprocess.sh" "$@"
settings "$@" >"$OUT/sample.txt.part"
mv "$OUT/sample.txt.part" "$OUT/sample.txt"
