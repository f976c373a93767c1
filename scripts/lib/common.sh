# shellcheck shell=bash
# Common parts of all scripts: folders, messages, and the Python environment. Sourced after `set -euo pipefail`.

# With CDPATH, cd may change to another folder and print its name. Without PYTHONSAFEPATH, `python -m` would import
# modules from the working folder first, which may contain untrusted code.
unset CDPATH
export PYTHONSAFEPATH=1

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export ROOT
# Name of the user's command, with which error messages begin.
export DEEPNET_COMMAND=${DEEPNET_COMMAND:-$(basename "$0" .sh)}

# On --help or -h, print the calling script's comment header, from line 2 to the first line of code, and exit.
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

# Print one line to standard error, because standard output is for results.
log() {
    printf '%s\n' "[$(basename "$0" .sh)] $*" >&2
}

# Print one line with the cause and the remedy, then exit with status 2 (bad usage or input).
die() {
    printf '%s\n' "[$DEEPNET_COMMAND] error: $*" >&2
    exit 2
}

# Refuse DRY_RUN=1 in a script without a dry run.
refuse_dry_run() {
    [[ ${DRY_RUN:-0} == 0 ]] || die "DRY_RUN is '$DRY_RUN', but this command has no dry run; unset it"
}

# Print the absolute path of the Python environment: the active one, otherwise VENV, otherwise .venv in the project.
environment_dir() {
    local place=${VIRTUAL_ENV:-${VENV:-$ROOT/.venv}}
    [[ $place == /* ]] || place=$PWD/$place
    printf '%s' "$place"
}

# Set up the environment if needed (silently if nothing changed) and put it first on PATH.
# DEEPNET_SKIP_SETUP=1 trusts the environment on PATH (tests, containers).
activate_environment() {
    export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} # this clone's code comes before an installed package
    [[ ${DEEPNET_SKIP_SETUP:-0} != 1 ]] || return 0
    bash "$ROOT/scripts/setup.sh"
    VIRTUAL_ENV=$(environment_dir)
    export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH
}

# Replace this process with `deepnet` and these arguments; --variables turns the script's variables into options.
hand_over() {
    activate_environment
    exec deepnet "$@"
}
