#!/usr/bin/env bash
# From raw parallel text to what fairseq-train reads: check, clean, sentencepiece, binarise.
#
#   SRC=de TGT=en TRAIN=raw/train VALID=raw/valid TEST=raw/test OUT=data/mine.de-en \
#       bash scripts/preprocess.sh [fairseq-preprocess options]
#
# Input: for each of TRAIN, VALID and TEST a prefix, of which PREFIX.SRC and PREFIX.TGT (plain or .gz)
# are the two sides: UTF-8, raw (not tokenised), line i of one a translation of line i of the other.
# Training pairs are cleaned; valid and test are checked only, and never changed.
#
# Output: OUT with dict.*.txt, {train,valid,test}.SRC-TGT.* (binarised), spm.model, spm.vocab, text/
# (the checked raw text), preprocess.log and, last of all, corpus.json (settings, counts, versions).
# Work is done in OUT.part: OUT exists only when complete. A run that was killed goes on at the stage
# where it stopped; a run that has nothing to do says so.
#
# Variables (with defaults):
#   SRC, TGT             source and target language: the endings of the files (required)
#   TRAIN, VALID         prefixes (required)
#   TEST                 prefix (none); several, separated by commas, become test, test1, test2, ...
#   OUT                  folder to make (data/corpus.SRC-TGT)
#   VOCAB_SIZE           number of subwords (8000)
#   SUBWORDS             bpe or unigram (bpe)
#   JOINT                1: one model and dictionary for both languages; 0: one each (1)
#   CHARACTER_COVERAGE   share of characters in the vocabulary; 0.9995 for Chinese or noisy text (1.0)
#   BYTE_FALLBACK        1: spell unseen characters as bytes, so that nothing is unknown (0)
#   SAMPLE               lines that sentencepiece looks at, at most (2000000)
#   MIN_WORDS, MAX_WORDS, MAX_RATIO   training pairs outside are dropped (1, 250, 5)
#   DROP_DUPLICATES      1: drop repeated training pairs (0)
#   WORKERS              processes (all cores)
#   FORCE                1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/stages.sh"
help_if_asked "$@"

for name in SRC TGT TRAIN VALID; do
    [[ -n ${!name:-} ]] || die "$name is not set; see --help"
done
TEST=${TEST:-}
OUT=${OUT:-$ROOT/data/corpus.$SRC-$TGT}
OUT=${OUT%/}
VOCAB_SIZE=${VOCAB_SIZE:-8000}
SUBWORDS=${SUBWORDS:-bpe}
JOINT=${JOINT:-1}
CHARACTER_COVERAGE=${CHARACTER_COVERAGE:-1.0}
BYTE_FALLBACK=${BYTE_FALLBACK:-0}
SAMPLE=${SAMPLE:-2000000}
MIN_WORDS=${MIN_WORDS:-1}
MAX_WORDS=${MAX_WORDS:-250}
MAX_RATIO=${MAX_RATIO:-5}
DROP_DUPLICATES=${DROP_DUPLICATES:-0}
WORKERS=${WORKERS:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}
FORCE=${FORCE:-0}

for name in JOINT BYTE_FALLBACK DROP_DUPLICATES FORCE; do
    [[ ${!name} == [01] ]] || die "$name is '${!name}'; it must be 0 or 1"
done
for name in VOCAB_SIZE SAMPLE MIN_WORDS MAX_WORDS WORKERS; do
    [[ ${!name} =~ ^[1-9][0-9]{0,8}$ ]] || die "$name is '${!name}'; it must be a whole number above 0"
done
for name in CHARACTER_COVERAGE MAX_RATIO; do
    [[ ${!name} =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "$name is '${!name}'; it must be a number"
done
for name in SRC TGT; do
    [[ ${!name} =~ ^[A-Za-z][A-Za-z0-9_]*$ ]] || die "$name is '${!name}'; it must be a language code such as de"
done
[[ $SRC != "$TGT" ]] || die "SRC and TGT are both '$SRC'; they must differ"
[[ $OUT != *,* ]] || die "OUT is '$OUT'; fairseq-preprocess splits paths at commas, so choose a name without"
[[ $SUBWORDS == bpe || $SUBWORDS == unigram ]] || die "SUBWORDS is '$SUBWORDS'; it must be bpe or unigram"

activate_environment
check_passed_on "$@"
begin_stages

inputs=(--input "train=$TRAIN" --input "valid=$VALID")
[[ -z $TEST ]] || inputs+=(--input "test=$TEST")

clean() {
    local options=(--min-words "$MIN_WORDS" --max-words "$MAX_WORDS" --max-ratio "$MAX_RATIO")
    [[ $DROP_DUPLICATES == 0 ]] || options+=(--drop-duplicates)
    [[ -z $TEST ]] || options+=(--test "$TEST")
    run_deepnet clean --src "$SRC" --tgt "$TGT" --train "$TRAIN" --valid "$VALID" \
        "${options[@]}" --workers "$WORKERS" --out "$1" >/dev/null
}

learn() {
    local options=(--kind "$SUBWORDS" --vocab-size "$VOCAB_SIZE" --sample "$SAMPLE")
    options+=(--character-coverage "$CHARACTER_COVERAGE")
    [[ $BYTE_FALLBACK == 0 ]] || options+=(--byte-fallback)
    [[ $JOINT == 1 ]] || options+=(--separate)
    run_deepnet subwords train --text "$PART/text/train" --src "$SRC" --tgt "$TGT" \
        "${options[@]}" --out "$1"
}

encode() {
    run_deepnet subwords encode --model "$PART/subwords" --workers "$WORKERS" --out "$1" \
        "$PART"/text/*."$SRC" "$PART"/text/*."$TGT"
}

binarise() {
    local out=$1 options=(--srcdict "$PART/subwords/dict.$SRC.txt")
    if [[ $JOINT == 1 ]]; then
        options+=(--joined-dictionary)
    else
        options+=(--tgtdict "$PART/subwords/dict.$TGT.txt")
    fi
    [[ -z $TEST ]] || options+=(--testpref "$(test_prefixes "$PART/encoded")")
    fairseq_preprocess "$out" "${options[@]}" "${passed_on[@]}"
    cp "$PART"/subwords/spm.* "$out/"
}

passed_on=("$@")
settings=(
    --setting "source=$SRC" --setting "target=$TGT" --setting "vocab_size=$VOCAB_SIZE"
    --setting "subwords=$SUBWORDS" --setting "joint=$(true_or_false "$JOINT")"
    --setting "character_coverage=$CHARACTER_COVERAGE"
    --setting "byte_fallback=$(true_or_false "$BYTE_FALLBACK")"
    --setting "sample=$SAMPLE" --setting "min_words=$MIN_WORDS"
    --setting "max_words=$MAX_WORDS" --setting "max_ratio=$MAX_RATIO"
    --setting "drop_duplicates=$(true_or_false "$DROP_DUPLICATES")"
    --setting "fairseq_options=$*"
)
if [[ $FORCE == 1 ]]; then
    settings+=(--force)
fi
end_if_complete "${settings[@]}" "${inputs[@]}"
stage text "checking and cleaning the text" clean
stage subwords "training subwords" learn
stage encoded "encoding" encode
stage binarised "binarising" binarise
end_stages
