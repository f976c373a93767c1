# shellcheck shell=bash
# What scripts that score a model share: a run or checkpoint first, variables as options, the rest passed on.
# Sourced after lib/common.sh.

# Run `deepnet COMMAND` with the words of the script.
#   $1 COMMAND, $2 names of variables that are numbers, $3 names of those that are words; then the script's words
score_model() {
    local command=$1 name option target=() arguments=()
    read -ra numbers <<<"$2"
    read -ra words <<<"$3"
    shift 3
    if [[ $# -gt 0 && $1 != -* ]]; then
        target=("$1")
        shift
        [[ -e ${target[0]} ]] || die "there is no run or checkpoint ${target[0]}"
    fi
    [[ ${SPLIT:-test} =~ ^[A-Za-z0-9_]+$ ]] || die "SPLIT is '$SPLIT'; it must be a name such as test or valid"
    arguments=(--split "${SPLIT:-test}")
    for name in "${numbers[@]}"; do
        [[ -z ${!name:-} || ${!name} =~ ^[0-9]+$ ]] || die "$name is '${!name}'; it must be a number"
    done
    for name in "${numbers[@]}" "${words[@]}"; do
        [[ -n ${!name:-} ]] || continue
        option=${name,,}
        arguments+=("--$option" "${!name}")
    done
    activate_environment
    if [[ $# -gt 0 ]]; then
        [[ ${#target[@]} -gt 0 ]] || die "options need a run or a checkpoint before them; see --help"
        target+=(-- "$@")
    fi
    deepnet "$command" "${arguments[@]}" "${target[@]}"
}
