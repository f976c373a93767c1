# shellcheck shell=bash
# What every script shares: where the project is, how it speaks, how it fails, and its Python environment.
# Sourced, never run. A script sets `set -euo pipefail` itself before sourcing this file.

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
    mkdir -p "$(dirname "$1")"
    if command -v flock >/dev/null; then
        exec 9>"$1.lock"
        flock --timeout 2 9 || die "another run is making $1; wait for it, or set OUT=FOLDER"
        # shellcheck disable=SC2064 # the name of now
        trap "rm -f '$1.lock'" EXIT
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
