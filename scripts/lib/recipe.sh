# shellcheck shell=bash
# What the training recipes (scripts/train_*.sh) share: their variables, the name of the run folder, making
# the data where they are missing, and the step to scripts/train.sh. Sourced after common.sh, never run.

# recipe_variables LAYERS: DEPTH (LAYERS), SCHEME (deepnorm), SEED (1) and DRY_RUN (0), checked.
recipe_variables() {
    local name
    DEPTH=${DEPTH:-$1}
    SCHEME=${SCHEME:-deepnorm}
    SEED=${SEED:-1}
    DRY_RUN=${DRY_RUN:-0}
    for name in DEPTH SEED; do
        [[ ${!name} =~ ^[1-9][0-9]*$ ]] || die "$name is '${!name}'; it must be a number from 1 on"
    done
    [[ $SCHEME =~ ^[a-z0-9-]+$ ]] || die "SCHEME is '$SCHEME'; it must be a name such as deepnorm"
    [[ $DRY_RUN == [01] ]] || die "DRY_RUN is '$DRY_RUN'; it must be 0 or 1"
}

# recipe_folders NAME DATA: the run folder RUN (runs/NAME, with SCHEME and SEED added where they differ from
# the defaults) and the data folder DATA, unless the user names others.
recipe_folders() {
    local name=$1
    [[ $SCHEME == deepnorm ]] || name+=_$SCHEME
    [[ $SEED == 1 ]] || name+=_seed$SEED
    RUN=${RUN:-$ROOT/runs/$name}
    DATA=${DATA:-$2}
    DATA=${DATA%/}
    export RUN DATA
}

# make_data SCRIPT: run a preprocessing script of this project where DATA is not there (complete) yet. With
# several nodes, or a queue, it is the user's step: nodes that wait for it would be paid for nothing.
make_data() {
    local script=$1
    [[ ! -f $DATA/corpus.json && $DRY_RUN == 0 ]] || return 0
    if [[ ${NODES:-1} != 1 || ${LAUNCHER:-auto} == slurm ]]; then
        die "no data in $DATA: make it first, on one machine, with OUT=$(printf '%q' "$DATA") bash scripts/$script, or set DATA=FOLDER"
    fi
    log "no data in $DATA yet: making it"
    # the seed of a corpus is another one: every run trains on the same sentences
    (unset SEED && OUT=$DATA bash "$ROOT/scripts/$script")
}

# train_recipe CONFIG [fairseq-train options]: never returns. STACKS names those that DEPTH is the depth of
# (encoder decoder).
train_recipe() {
    local config=$1 stack depths=()
    shift
    for stack in ${STACKS:-encoder decoder}; do
        depths+=("--$stack-layers" "$DEPTH")
    done
    exec bash "$ROOT/scripts/train.sh" "$config" --seed "$SEED" \
        "${depths[@]}" --residual-scheme "$SCHEME" "$@"
}

# Train on one language of Multi30k: $1 the config, $2 the stack it has; then the script's words.
train_multi30k_captions() {
    local config=$1 stack=$2 name=$1
    shift 2
    recipe_variables 18
    export LANG_CODE=${LANG_CODE:-en}
    [[ $LANG_CODE == en ]] || name+=.$LANG_CODE
    [[ $DEPTH == 18 ]] || name+=_${DEPTH}l
    recipe_folders "$name" "$ROOT/data/multi30k_lm.$LANG_CODE"
    make_data preprocess_multi30k_lm.sh
    STACKS=$stack train_recipe "$config" "$@"
}
