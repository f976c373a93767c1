#!/usr/bin/env bash
# Set up the Python environment: torch, then fairseq compiled against it, then this project (editable).
#
# Every other script calls this one first. If setup.py, this file and the environment's Python have not changed since
# the last success, it prints nothing and takes a fraction of a second. An interrupted set-up continues.
#
# Environment: the active virtual environment (VIRTUAL_ENV), otherwise VENV, which is created if missing.
# Needs:       Python >= 3.11 with venv and headers, gcc and g++ (fairseq has C++ parts), 3 GB of disk (CUDA: 10).
# Writes:      the environment (1.6 GB with a CPU build of torch), and in it deepnet-setup.log, the output of pip.
# Takes:       2 to 5 minutes, including one or two to compile fairseq.
#
# Variables (with their defaults):
#   VENV=.venv         folder of the environment to create if none is active
#   PYTHON=            Python to create it with; default: the first suitable of python3.11, ..., python3
#   EXTRAS=dev         extras of setup.py, comma-separated; later calls without EXTRAS keep the last extras
#   DEEPNET_SKIP_SETUP=1, for all other scripts: use the active Python environment without checking it
#
# setup.py's pin of torch fits every build of that version. PyPI has the CUDA build for Linux, which also runs without a
# GPU but takes several GB. For the small CPU build, give pip PyTorch's CPU wheels (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
#
# Example: EXTRAS=dev,moses,ctranslate2 bash scripts/setup.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ $# -eq 0 ]] || die "unknown argument $1: the variables that --help lists are the only settings"
[[ $DEEPNET_COMMAND != setup ]] || refuse_dry_run

ENVIRONMENT=$(environment_dir)
STAMP=$ENVIRONMENT/.deepnet-setup
LOCK=$ENVIRONMENT/.deepnet-setup.lock
LOG=$ENVIRONMENT/deepnet-setup.log

# Content of the stamp: the extras, then everything else on which an installation depends.
stamp_text() {
    printf '%s\n' "$extras"
    cksum <"$ROOT/setup.py"
    cksum <"$ROOT/scripts/setup.sh"
    printf 'clone %s\n' "$ROOT"
    grep -s '^version' "$ENVIRONMENT/pyvenv.cfg" || true
}

# Succeed if everything is installed. Also set `extras`: the requested extras, otherwise the last ones, otherwise dev.
is_done() {
    local installed=dev
    [[ ! -f $STAMP ]] || installed=$(<"$STAMP")
    extras=${EXTRAS-${installed%%$'\n'*}}
    [[ -x $ENVIRONMENT/bin/python && $installed == "$(stamp_text)" ]]
}

# The requirement of a package exactly as in setup.py, such as torch==2.13.0.
requirement() {
    sed -n "s/^ *\"\($1[=<>][^\"]*\)\",\$/\1/p" "$ROOT/setup.py"
}

# Set `python` to the active environment's Python, otherwise to PYTHON or the first suitable Python on PATH.
find_python() {
    local candidates=(python3.11 python3.12 python3.13 python3.14 python3)
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    [[ -z ${VIRTUAL_ENV:-} ]] || candidates=("$VIRTUAL_ENV/bin/python")
    for python in "${candidates[@]}"; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then return; fi
    done
    die "Python >= 3.11 is needed, but found none among ${candidates[*]}: install one (Debian, Ubuntu: apt install python3.11" \
        "python3.11-venv python3.11-dev) and set PYTHON=/path/to/python3.11, or deactivate an older environment"
}

check_machine() {
    local compiler
    for compiler in "${CC:-gcc}" "${CXX:-g++}"; do
        command -v "${compiler%% *}" >/dev/null || die "found no compiler ${compiler%% *}, which fairseq needs:" \
            "install one (Debian, Ubuntu: apt install build-essential), or set CC and CXX"
    done
    [[ ! -e $ENVIRONMENT || -f $ENVIRONMENT/pyvenv.cfg || -e $LOCK || -z $(ls -A "$ENVIRONMENT") ]] ||
        die "$ENVIRONMENT exists but is not a virtual environment: set VENV to another folder, or remove it"
}

say() {
    log "$(printf '%3d s' "$SECONDS")  $*"
}

# Run a command with its output in the log; on failure show the end of the log.
quietly() {
    printf '\n$ %s\n' "$*" >>"$LOG"
    local status=0
    "$@" >>"$LOG" 2>&1 || status=$?
    if ((status != 0)); then
        tail -n 15 "$LOG" >&2
        printf '%s\n' "[$DEEPNET_COMMAND] error: failed with status $status: $*" \
            "[setup] its output is in $LOG; run this again to continue" >&2
        exit 1
    fi
}

pip_install() {
    quietly "$ENVIRONMENT/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

install_everything() {
    if [[ -z ${VIRTUAL_ENV:-} ]] && ! "$ENVIRONMENT/bin/python" -m pip --version &>/dev/null; then
        say "creating $ENVIRONMENT with $python"
        quietly "$python" -m venv "$ENVIRONMENT"
    fi
    say "pip and build tools"
    pip_install --upgrade pip "setuptools>=77.0.3,<81" wheel
    say "$(requirement torch)"
    pip_install "$(requirement torch)"
    say "$(requirement fairseq-fixed), compiling takes a minute or two"
    pip_install "$(requirement numpy)" cython
    # With build isolation, pip would compile against a second torch, the newest. Omitting debugging symbols
    # saves a quarter of the time and half of the space.
    CFLAGS="${CFLAGS:--O2 -g0 -fwrapv -DNDEBUG}" \
        pip_install --no-build-isolation "$(requirement torch)" "$(requirement fairseq-fixed)"
    say "fairseq_deepnet${extras:+ with $extras}"
    pip_install --no-build-isolation --editable "$ROOT${extras:+[$extras]}"
    # fairseq-fixed requires torchaudio, which only its speech tasks use. The newest torchaudio does not work with this
    # torch, and transformers imports it if it is installed.
    "$ENVIRONMENT/bin/python" -c 'import torchaudio' &>/dev/null ||
        quietly "$ENVIRONMENT/bin/python" -m pip uninstall --quiet --yes torchaudio
    quietly "$ENVIRONMENT/bin/python" -c '
import platform, torch, fairseq
cuda = f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no CUDA"
print(f"Python {platform.python_version()}, torch {torch.__version__} ({cuda}), fairseq {fairseq.__version__}")'
    say "done: $(tail -n 1 "$LOG")"
}

if is_done; then exit; fi
find_python
check_machine

mkdir -p "$ENVIRONMENT"
exec 9>"$LOCK"
if command -v flock >/dev/null && ! flock -n 9; then
    say "another set-up of $ENVIRONMENT is running: waiting for it"
    flock 9
    if is_done; then exit; fi
fi
rm -f "$STAMP"
: >"$LOG"
install_everything
stamp_text >"$STAMP.part"
mv "$STAMP.part" "$STAMP"
