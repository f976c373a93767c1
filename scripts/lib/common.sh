# shellcheck shell=bash
# What every script shares: where the project is, how it speaks, how it fails, and its Python environment.
# Sourced, never run. A script sets `set -euo pipefail` itself before sourcing this file.

# What a user's shell may have set, and what would lead astray: with CDPATH, cd goes elsewhere and prints where;
# `python -m` takes modules of the working folder first, and that may be a stranger's.
unset CDPATH
export PYTHONSAFEPATH=1

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export ROOT

# Print the comment header of the calling script (from line 2 to the first line that is no comment).
usage() {
    awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
}

# Answer --help and -h, wherever a script's first argument is one of them.
help_if_asked() {
    case "${1:-}" in
        --help | -h)
            usage
            exit 0
            ;;
    esac
}

# One line on standard error, so that standard output stays free for results.
log() {
    printf '%s\n' "[$(basename "$0" .sh)] $*" >&2
}

# The command that was typed: errors of the scripts and subcommands that it starts bear its name.
export DEEPNET_COMMAND=${DEEPNET_COMMAND:-$(basename "$0" .sh)}

# One line that names the cause and the remedy, then exit 2 (bad usage or bad input).
die() {
    printf '%s\n' "[$DEEPNET_COMMAND] error: $*" >&2
    exit 2
}

# Paths that the user sets: one that begins with a dash would be read as an option, one with a line break as two.
check_paths() {
    local name
    for name in OUT RUN RUNS DATA TRAIN VALID TEST TEXT RAW TABLE DOWNLOADS UNPACKED CONFIG VENV PYTHON TMPDIR; do
        [[ ${!name:-} != *[[:cntrl:]]* ]] || die "$name is $(printf '%q' "${!name}"); a path has no line breaks or tabs"
        [[ ${!name:-} != -* ]] || export "$name=./${!name}"
    done
}
check_paths

# The absolute path of the Python environment: the active one, otherwise VENV, otherwise .venv in the project.
environment_dir() {
    local place=${VIRTUAL_ENV:-${VENV:-$ROOT/.venv}}
    [[ $place == /* ]] || place=$PWD/$place
    printf '%s' "$place"
}

# The command `deepnet` of this very clone, whatever is installed.
run_deepnet() {
    PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" python -m fairseq_deepnet.cli "$@"
}

# Append to the array `arguments` an option for each of these variables that is set: --cpu-processes=2 for CPU_PROCESSES.
add_options() {
    local name option
    for name in "$@"; do
        [[ -n ${!name:-} ]] || continue
        option=${name,,}
        arguments+=("--${option//_/-}=${!name}")
    done
}

# Append to the array `arguments` an option for each of these variables that is 1: --drop-duplicates for DROP_DUPLICATES.
add_switches() {
    local name option
    for name in "$@"; do
        case ${!name:-0} in
            0) ;;
            1)
                option=${name,,}
                arguments+=("--${option//_/-}")
                ;;
            *) die "$name is '${!name}'; it must be 0 or 1" ;;
        esac
    done
}

# Hold the folder $1 while this script runs: two runs that make the same one would overwrite each other's work.
hold_output() {
    HELD=$1.lock
    mkdir -p "$(dirname "$1")"
    if command -v flock >/dev/null; then
        exec 9>"$HELD"
        flock --timeout 2 9 || die "another run is making $1; wait for it, or set OUT=FOLDER"
        trap 'rm -f "$HELD"' EXIT # the name is not part of the command: it may hold anything
    fi
}

# Set up the environment if needed (silent when nothing changed) and put it first on PATH.
# DEEPNET_SKIP_SETUP=1 trusts the environment that is on PATH already (tests, containers).
activate_environment() {
    if [[ ${DEEPNET_SKIP_SETUP:-0} == 1 ]]; then
        return
    fi
    bash "$ROOT/scripts/setup.sh"
    VIRTUAL_ENV=$(environment_dir)
    export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH
}

# End this script as `deepnet` with these words, which takes its variables.
hand_over() {
    activate_environment
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
    exec python -m fairseq_deepnet.cli "$@"
}
