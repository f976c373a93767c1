# shellcheck shell=bash
# What the preprocessing scripts share: work in OUT.part, stage by stage, each renamed when complete.
# Sourced after lib/common.sh. A script sets OUT, calls begin_stages, asks `manifest state`, runs its stages
# (text, ..., binarised) and ends with end_stages.

# Make OUT.part and lock it; sets PART.
begin_stages() {
    PART=$OUT.part
    mkdir -p "$PART"
    # Two runs that make the same folder would overwrite each other's stages.
    if command -v flock >/dev/null; then
        exec 9<"$PART"
        flock --timeout 2 9 || die "another run is making $OUT; wait for it, or set OUT=FOLDER"
    fi
    trap tidy EXIT
}

# After a failure OUT.part holds finished stages, or is not there at all.
tidy() {
    rm -rf "$PART"/*.part
    if [[ -f $PART/plan.json && -z $(find "$PART" -mindepth 1 -maxdepth 1 -type d) ]]; then
        rm -f "$PART/plan.json"
    fi
    rmdir "$PART" 2>/dev/null || true
}

manifest() {
    PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" python -m fairseq_deepnet.tools.corpora.manifest "$@"
}

true_or_false() { if [[ $1 == 1 ]]; then echo true; else echo false; fi; }

# Ends the script if OUT is complete and was made with these settings (arguments of `manifest state`).
end_if_complete() {
    local state
    state=$(manifest state "$OUT" "$@") || exit 2
    if [[ $state == complete ]]; then
        trap - EXIT
        # what a run that was killed in its last moment left behind
        if [[ -f $PART/plan.json ]]; then
            rm -rf "$PART" "$OUT.old"
        fi
        rmdir "$PART" 2>/dev/null || true
        log "$OUT is complete: nothing to do"
        exit 0
    fi
}

# Run one stage: a function that fills the folder $1.part, renamed to $1 when done.
stage() {
    local folder=$PART/$1 what=$2
    shift 2
    if [[ -d $folder ]]; then
        log "$what: done before"
        return
    fi
    log "$what"
    rm -rf "$folder.part"
    "$@" "$folder.part"
    mv "$folder.part" "$folder"
}

# fairseq-preprocess into the folder $1, with the options after it; only its counts are shown.
fairseq_preprocess() {
    local out=$1 output=$PART/fairseq-preprocess.out
    # its first worker begins when the others have ended: with one more, no core waits as long
    local processes=$WORKERS
    ((processes == 1)) || processes=$((processes + 1))
    shift
    fairseq-preprocess --source-lang "$SRC" --target-lang "$TGT" --trainpref "$PART/encoded/train" \
        --validpref "$PART/encoded/valid" --destdir "$out" --workers "$processes" "$@" 2>&1 |
        tee "$output" | awk '/ sents, / { sub(/.*\//, ""); print; fflush() }' >&2 ||
        die "fairseq-preprocess failed: $(tail -n 1 "$output"); all it said is in $output"
    rm "$output"
}

# "test,test1,..." below the folder $1, for the prefixes in TEST.
test_prefixes() {
    local index prefixes=() result=$1/test
    IFS=, read -ra prefixes <<<"$TEST"
    for ((index = 1; index < ${#prefixes[@]}; index++)); do
        result+=,$1/test$index
    done
    printf '%s' "$result"
}

# Check the counts of all stages and give the folder its name.
end_stages() {
    local summary
    log "checking line counts"
    summary=$(manifest finish "$PART") || exit 2
    rm -rf "$OUT.old"
    if [[ -d $OUT ]]; then # FORCE=1
        mv "$OUT" "$OUT.old"
    fi
    mv "$PART/binarised" "$OUT"
    trap - EXIT
    rm -rf "$PART" "$OUT.old"
    log "made $OUT: $summary"
}

# The options that a user passes on to fairseq-preprocess, checked before hours of other work.
check_passed_on() {
    local option said
    for option in "$@"; do
        case $option in
            --dataset-impl* | --destdir* | --trainpref* | --validpref* | --testpref* | --srcdict* | --tgtdict* | --only-source* | --joined-dictionary* | --workers*)
                die "$option is set by this script; see --help for its variables"
                ;;
        esac
    done
    [[ $# -gt 0 ]] || return 0
    said=$(python -c 'import sys; from fairseq import options
options.get_preprocessing_parser().parse_args(sys.argv[1:])' "$@" 2>&1 >/dev/null) ||
        die "fairseq-preprocess would not take this: ${said##*error: }"
}
