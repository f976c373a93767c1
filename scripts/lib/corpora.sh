# shellcheck shell=bash
# What the recipes of published corpora share: from download or RAW to raw text. Sourced after lib/common.sh.

# Check settings that a later script takes, before hours of download: numbers, where they are set.
check_numbers() {
    local name
    for name in VOCAB_SIZE MERGES SAMPLE HOLD_OUT MIN_WORDS MAX_WORDS MIN_TOKENS MAX_TOKENS WORKERS; do
        [[ ${!name:-0} =~ ^[0-9]+$ ]] || die "$name is '${!name}'; it must be a whole number"
    done
    for name in MAX_RATIO TEMPERATURE CHARACTER_COVERAGE; do
        [[ ${!name:-0} =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "$name is '${!name}'; it must be a number"
    done
    [[ ${SUBWORDS:-bpe} == bpe || ${SUBWORDS:-bpe} == unigram ]] || die "SUBWORDS is '$SUBWORDS'; it must be bpe or unigram"
}

# Write the raw text of corpus $1 into TEXT (OUT.raw) with `deepnet $1`, the further arguments being its options:
# from RAW, or from what is downloaded into DOWNLOADS. Does nothing where OUT is complete.
extract_corpus() {
    local name=$1 files
    shift
    TEXT=$OUT.raw
    # Two runs that make the same folder would remove each other's text.
    mkdir -p "$(dirname "$OUT")"
    if command -v flock >/dev/null; then
        exec 8>"$OUT.raw.lock"
        flock --timeout 2 8 || die "another run is making $OUT; wait for it, or set OUT=FOLDER"
        trap 'rm -f "$OUT.raw.lock"' EXIT
    fi
    if [[ -f $OUT/corpus.json && ${FORCE:-0} != 1 ]]; then
        return
    fi
    if [[ -n ${RAW:-} ]]; then
        [[ -e $RAW ]] || die "there is no archive or folder RAW=$RAW"
        files=$RAW
    else
        log "downloading"
        files=$(run_deepnet download "$name" --out "$DOWNLOADS") || exit 2
    fi
    mapfile -t files <<<"$files"
    log "reading the archives"
    run_deepnet "$name" "${files[@]}" --out "$TEXT" "$@" >/dev/null || exit 2
}

# Remove the raw text that extract_corpus made, and nothing that it did not make.
forget_text() {
    [[ ! -f $TEXT/extracted.json ]] || rm -rf "$TEXT"
}
