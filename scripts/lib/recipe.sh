# shellcheck shell=bash
# Common parts of the training recipes (scripts/train_*.sh). Sourced after common.sh, never run.

# recipe_variables LAYERS [NAME]: set DEPTH (default LAYERS), SCHEME (deepnorm) and SEED (1). `name` becomes NAME,
# plus DEPTH if it differs from LAYERS.
recipe_variables() {
    DEPTH=${DEPTH:-$1}
    SCHEME=${SCHEME:-deepnorm}
    SEED=${SEED:-1}
    [[ $DEPTH =~ ^[1-9][0-9]*$ ]] || die "DEPTH is '$DEPTH'; it must be a positive integer"
    [[ $SCHEME$SEED =~ ^[a-z0-9-]+$ ]] || die "SCHEME is '$SCHEME' and SEED is '$SEED'; see --help"
    name=${2:-}
    [[ $DEPTH == "$1" ]] || name+=_${DEPTH}l
}

# train_recipe CONFIG NAME DATA SCRIPT [fairseq-train options]: build data/DATA with SCRIPT if the folder is missing, and
# train in runs/NAME (plus SCHEME and SEED if they differ from the defaults). The variables DATA and RUN override these
# folders; DATA may be a folder from fairseq-preprocess, which has dictionaries but no corpus.json. Never returns.
train_recipe() {
    local config=$1 run=$2 script=$4
    [[ $SCHEME == deepnorm ]] || run+=_$SCHEME
    [[ $SEED == 1 ]] || run+=_seed$SEED
    RUN=${RUN:-$ROOT/runs/$run}
    DATA=${DATA:-$ROOT/data/$3}
    DATA=${DATA%/}
    export RUN DATA
    shift 4
    if [[ ! -f $DATA/corpus.json && ${DRY_RUN:-0} == 0 ]] && ! (cd -- "$DATA" && compgen -G 'dict*.txt') &>/dev/null; then
        # other nodes and queued jobs would wait for the data, at a cost
        if [[ ${NODES:-1} != 1 || ${LAUNCHER:-auto} == slurm ]]; then
            local name settings
            settings=OUT=$(printf '%q' "$DATA")
            for name in SRC TGT LANGS VARIANT; do # otherwise, DATA would contain other text than its name says
                [[ -z ${!name:-} ]] || settings+=" $name=$(printf '%q' "${!name}")"
            done
            die "no data in $DATA: build it first with $settings bash scripts/$script, or set DATA=FOLDER"
        fi
        log "no data in $DATA yet: building it"
        # SEED does not apply to the corpus: every run trains on the same sentences
        (unset SEED && OUT=$DATA bash "$ROOT/scripts/$script")
    fi
    exec bash "$ROOT/scripts/train.sh" "$config" --seed "$SEED" --encoder-layers "$DEPTH" --decoder-layers "$DEPTH" \
        --residual-scheme "$SCHEME" "$@"
}
