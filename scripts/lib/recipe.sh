# shellcheck shell=bash
# Common parts of the training recipes (scripts/train_*.sh): variables, the name of the run folder, building
# missing data, and the call of scripts/train.sh. Sourced after common.sh, never run.

# recipe_variables LAYERS [NAME]: DEPTH (LAYERS), SCHEME (deepnorm), SEED (1) and DRY_RUN (0), checked; `name` is
# NAME, plus DEPTH if it differs.
recipe_variables() {
    local variable
    DEPTH=${DEPTH:-$1}
    SCHEME=${SCHEME:-deepnorm}
    SEED=${SEED:-1}
    DRY_RUN=${DRY_RUN:-0}
    for variable in DEPTH SEED; do
        [[ ${!variable} =~ ^[1-9][0-9]*$ ]] || die "$variable is '${!variable}'; it must be a number from 1 on"
    done
    [[ $SCHEME =~ ^[a-z0-9-]+$ ]] || die "SCHEME is '$SCHEME'; it must be a name such as deepnorm"
    [[ $DRY_RUN == [01] ]] || die "DRY_RUN is '$DRY_RUN'; it must be 0 or 1"
    name=${2:-}
    [[ $DEPTH == "$1" ]] || name+=_${DEPTH}l
}

# train_recipe CONFIG NAME DATA SCRIPT [fairseq-train options]: build data/DATA with SCRIPT if it is missing, and train
# in runs/NAME, plus SCHEME and SEED if they differ from the defaults. The variables DATA and RUN override these folders.
# STACKS lists the stacks whose depth is DEPTH (encoder decoder). Never returns.
train_recipe() {
    local config=$1 run=$2 script=$4 stack depths=()
    [[ $SCHEME == deepnorm ]] || run+=_$SCHEME
    [[ $SEED == 1 ]] || run+=_seed$SEED
    RUN=${RUN:-$ROOT/runs/$run}
    DATA=${DATA:-$ROOT/data/$3}
    DATA=${DATA%/}
    export RUN DATA
    shift 4
    if [[ ! -f $DATA/corpus.json && $DRY_RUN == 0 ]]; then
        # nodes and queued jobs that wait for the data would cost money
        if [[ ${NODES:-1} != 1 || ${LAUNCHER:-auto} == slurm ]]; then
            die "no data in $DATA: make it first, on one machine, with OUT=$(printf '%q' "$DATA") bash scripts/$script, or set DATA=FOLDER"
        fi
        log "no data in $DATA yet: making it"
        # SEED does not apply to the corpus: every run trains on the same sentences
        (unset SEED && OUT=$DATA bash "$ROOT/scripts/$script")
    fi
    for stack in ${STACKS:-encoder decoder}; do
        depths+=("--$stack-layers" "$DEPTH")
    done
    exec bash "$ROOT/scripts/train.sh" "$config" --seed "$SEED" \
        "${depths[@]}" --residual-scheme "$SCHEME" "$@"
}
