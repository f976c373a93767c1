#!/usr/bin/env bash
# From raw parallel text to fairseq's data as published recipes make it: Moses tokens, byte-pair codes.
#
#   SRC=de TGT=en TRAIN=raw/train TEST=raw/test HOLD_OUT=23 OUT=data/mine.de-en \
#       bash scripts/preprocess_moses.sh [fairseq-preprocess options]
#
# For results that are to be compared with published ones; for your own text scripts/preprocess.sh is
# simpler. Needs sacremoses and subword-nmt (the extra "moses").
#
# Input: prefixes, of which PREFIX.SRC and PREFIX.TGT (plain or .gz) are the two sides: UTF-8, raw.
#
# Output: OUT with dict.*.txt, {train,valid,test}.SRC-TGT.* (binarised), bpe.codes, text/ (raw text of the
# pairs that are left, for sacreBLEU), tokenised/ (their tokens, for tokenised BLEU), preprocess.log and, last
# of all, corpus.json. Work is done in OUT.part, as by scripts/preprocess.sh.
#
# Variables (with defaults):
#   SRC, TGT             source and target language: the endings of the files (required)
#   TRAIN                prefix (required)
#   VALID                prefix; or instead
#   HOLD_OUT             N: every Nth training pair is for validation (0)
#   TEST                 prefix (none); several, separated by commas, become test, test1, test2, ...
#   OUT                  folder to make (data/corpus.tokenized.SRC-TGT)
#   MERGES               number of byte-pair codes, learnt on both languages together (10000)
#   JOINED               1: one dictionary for both languages; 0: one each (0)
#   LOWERCASE            1: lower case (0)
#   AGGRESSIVE           1: split words at hyphens, as tokenizer.perl -a (0)
#   PUNCTUATION          1: normalise punctuation and drop non-printing characters in TRAIN (0)
#   APOSTROPHES          1: make ’ a plain apostrophe in VALID and TEST (0)
#   CLEAN_ON             words: clean TRAIN before pairs are held out, by tokens;
#                        subwords: clean train and valid at the end, by subwords (words)
#   MIN_TOKENS, MAX_TOKENS, MAX_RATIO   pairs outside are dropped (1, 175, 1.5)
#   WORKERS              processes (all cores)
#   FORCE                1: make OUT anew even if it is there (0)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/stages.sh"
help_if_asked "$@"

for name in SRC TGT TRAIN; do
    [[ -n ${!name:-} ]] || die "$name is not set; see --help"
done
VALID=${VALID:-}
TEST=${TEST:-}
HOLD_OUT=${HOLD_OUT:-0}
OUT=${OUT:-$ROOT/data/corpus.tokenized.$SRC-$TGT}
OUT=${OUT%/}
MERGES=${MERGES:-10000}
JOINED=${JOINED:-0}
LOWERCASE=${LOWERCASE:-0}
AGGRESSIVE=${AGGRESSIVE:-0}
PUNCTUATION=${PUNCTUATION:-0}
APOSTROPHES=${APOSTROPHES:-0}
CLEAN_ON=${CLEAN_ON:-words}
MIN_TOKENS=${MIN_TOKENS:-1}
MAX_TOKENS=${MAX_TOKENS:-175}
MAX_RATIO=${MAX_RATIO:-1.5}
WORKERS=${WORKERS:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}
FORCE=${FORCE:-0}

for name in JOINED LOWERCASE AGGRESSIVE PUNCTUATION APOSTROPHES FORCE; do
    [[ ${!name} == [01] ]] || die "$name is '${!name}'; it must be 0 or 1"
done
for name in MERGES MIN_TOKENS MAX_TOKENS WORKERS; do
    [[ ${!name} =~ ^[1-9][0-9]{0,8}$ ]] || die "$name is '${!name}'; it must be a whole number above 0"
done
[[ $HOLD_OUT =~ ^(0|[1-9][0-9]{0,8})$ && $HOLD_OUT != 1 ]] || die "HOLD_OUT is '$HOLD_OUT'; it must be 0, or 2 and more"
[[ $MAX_RATIO =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "MAX_RATIO is '$MAX_RATIO'; it must be a number"
for name in SRC TGT; do
    [[ ${!name} =~ ^[A-Za-z][A-Za-z0-9_]*$ ]] || die "$name is '${!name}'; it must be a language code such as de"
done
[[ $SRC != "$TGT" ]] || die "SRC and TGT are both '$SRC'; they must differ"
[[ $OUT != *,* ]] || die "OUT is '$OUT'; fairseq-preprocess splits paths at commas, so choose a name without"
[[ $CLEAN_ON == words || $CLEAN_ON == subwords ]] || die "CLEAN_ON is '$CLEAN_ON'; it must be words or subwords"
if [[ -n $VALID ]]; then
    [[ $HOLD_OUT == 0 ]] || die "both VALID and HOLD_OUT are set; choose one"
else
    [[ $HOLD_OUT != 0 ]] || die "set VALID=PREFIX, or HOLD_OUT=N to take every Nth training pair"
fi

activate_environment
check_passed_on "$@"
begin_stages

inputs=(--input "train=$TRAIN")
[[ -z $VALID ]] || inputs+=(--input "valid=$VALID")
[[ -z $TEST ]] || inputs+=(--input "test=$TEST")
limits=(--clean-on "$CLEAN_ON" --min-tokens "$MIN_TOKENS" --max-tokens "$MAX_TOKENS" --max-ratio "$MAX_RATIO")

tokenise() {
    local options=(--train "$TRAIN" --hold-out "$HOLD_OUT") name
    [[ -z $VALID ]] || options+=(--valid "$VALID")
    [[ -z $TEST ]] || options+=(--test "$TEST")
    for name in LOWERCASE AGGRESSIVE PUNCTUATION APOSTROPHES; do
        [[ ${!name} == 0 ]] || options+=("--${name,,}")
    done
    run_deepnet moses tokenise --src "$SRC" --tgt "$TGT" "${options[@]}" "${limits[@]}" \
        --workers "$WORKERS" --out "$1"
}

learn() {
    run_deepnet moses learn --src "$SRC" --tgt "$TGT" --tokens "$PART/tokenised/tokenised/train" \
        --merges "$MERGES" --workers "$WORKERS" --out "$1/bpe.codes"
}

encode() {
    run_deepnet moses encode --src "$SRC" --tgt "$TGT" --tokenised "$PART/tokenised" \
        --codes "$PART/codes/bpe.codes" "${limits[@]}" --workers "$WORKERS" --out "$1"
}

binarise() {
    local options=()
    [[ $JOINED == 0 ]] || options+=(--joined-dictionary)
    [[ -z $TEST ]] || options+=(--testpref "$(test_prefixes "$PART/encoded")")
    fairseq_preprocess "$1" "${options[@]}" "${passed_on[@]}"
    cp "$PART/codes/bpe.codes" "$1/"
}

passed_on=("$@")
settings=(
    --setting "source=$SRC" --setting "target=$TGT" --setting "tokenisation=moses"
    --setting "lowercase=$(true_or_false "$LOWERCASE")" --setting "aggressive=$(true_or_false "$AGGRESSIVE")"
    --setting "punctuation=$(true_or_false "$PUNCTUATION")"
    --setting "apostrophes=$(true_or_false "$APOSTROPHES")"
    --setting "subwords=subword-nmt" --setting "merges=$MERGES" --setting "joint=$(true_or_false "$JOINED")"
    --setting "hold_out=$HOLD_OUT" --setting "clean_on=$CLEAN_ON" --setting "min_tokens=$MIN_TOKENS"
    --setting "max_tokens=$MAX_TOKENS" --setting "max_ratio=$MAX_RATIO" --setting "fairseq_options=$*"
)
if [[ $FORCE == 1 ]]; then
    settings+=(--force)
fi
end_if_complete "${settings[@]}" "${inputs[@]}"
stage tokenised "tokenising and cleaning the text" tokenise
stage codes "learning byte-pair codes" learn
stage encoded "encoding" encode
stage binarised "binarising" binarise
end_stages
