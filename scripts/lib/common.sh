# shellcheck shell=bash
# Common parts of all scripts: folders, messages, and the Python environment. Sourced after `set -euo pipefail`.

# With CDPATH, cd may change to another folder and print it. `python -m` would import modules from the working
# folder first, which may be a stranger's.
unset CDPATH
export PYTHONSAFEPATH=1

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export ROOT
# Name of the user's command; errors of its subcommands begin with this name.
export DEEPNET_COMMAND=${DEEPNET_COMMAND:-$(basename "$0" .sh)}

# Answer --help and -h with the comment header of the calling script, from line 2 to the first line of code.
help_if_asked() {
    [[ ${1:-} == --help || ${1:-} == -h ]] || return 0
    awk -v scripts="$ROOT/scripts/" 'NR > 1 {
        if (!/^#/) exit
        sub(/^# ?/, "")
        if (!/^@/) { print; next }
        while ((getline line < (scripts substr($0, 2))) > 0) print line
    }' "$0"
    exit 0
}

# One line on standard error, so that standard output stays free for results.
log() {
    printf '%s\n' "[$(basename "$0" .sh)] $*" >&2
}

# One line that names the cause and the remedy, then exit 2 (bad usage or bad input).
die() {
    printf '%s\n' "[$DEEPNET_COMMAND] error: $*" >&2
    exit 2
}

# Absolute path of the Python environment: the active environment, otherwise VENV, otherwise .venv in the project.
environment_dir() {
    local place=${VIRTUAL_ENV:-${VENV:-$ROOT/.venv}}
    [[ $place == /* ]] || place=$PWD/$place
    printf '%s' "$place"
}

# Set up the environment if needed (silent when nothing changed) and put it first on PATH.
# DEEPNET_SKIP_SETUP=1 trusts the environment on PATH (tests, containers).
activate_environment() {
    export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} # this clone's code comes before an installed package
    [[ ${DEEPNET_SKIP_SETUP:-0} != 1 ]] || return 0
    bash "$ROOT/scripts/setup.sh"
    VIRTUAL_ENV=$(environment_dir)
    export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH
}

# Replace this script by `deepnet` with these words; --variables makes the script's variables its options.
hand_over() {
    activate_environment
    exec deepnet "$@"
}
