#!/usr/bin/env bash
# Set up the Python environment: torch, then fairseq compiled against it, then this project (editable).
#
# Every other script calls this one first. It says nothing and takes a fraction of a second when setup.py,
# this file and the environment's Python are what they were the last time it ended well.
#
# Environment: the active virtual environment (VIRTUAL_ENV), otherwise VENV, which is made when it is missing.
# Needs:       Python >= 3.11 with venv and headers, gcc and g++ (fairseq has C++ parts), free disk space.
# Writes:      the environment, and in it deepnet-setup.log (what pip said) and .deepnet-setup (done, and for what).
# Takes:       2 to 5 minutes, of which one or two compile fairseq; 1.6 GB with a CPU build of torch.
#
# Variables (with their defaults):
#   VENV=.venv         where to make an environment when none is active
#   PYTHON=            the Python to make it with; default: the first suitable of python3.11, python3.12, ..., python3
#   EXTRAS=dev         extras of setup.py, comma-separated; later calls without EXTRAS keep those of the last
#   DISK_GB=           free space to ask for; default 3, or 10 where there is an NVIDIA driver
#
# setup.py's pin of torch fits every build of that version. From PyPI on Linux it is the CUDA build: it runs without a GPU
# too, but takes several GB. For the small CPU build, show pip PyTorch's CPU wheels (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
#
# Example: EXTRAS=dev,moses,ctranslate2 bash scripts/setup.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ $# -eq 0 ]] || die "unknown argument $1: the variables that --help lists are the only settings"

ENVIRONMENT=$(environment_dir)
STAMP=$ENVIRONMENT/.deepnet-setup
LOCK=$ENVIRONMENT/.deepnet-setup.lock
LOG=$ENVIRONMENT/deepnet-setup.log
OLDEST_PYTHON=$(sed -n 's/.*python_requires=">=\([0-9.]*\)".*/\1/p' "$ROOT/setup.py")

# What the stamp holds: the extras, then everything else that an installation depends on.
fingerprint() {
    cksum <"$ROOT/setup.py"
    cksum <"$ROOT/scripts/setup.sh"
    printf 'clone %s\n' "$ROOT"
    grep -s '^version' "$ENVIRONMENT/pyvenv.cfg" || true
}

stamp_text() {
    printf '%s\n' "$extras"
    fingerprint
}

# Whether all is installed; also sets `extras`: those asked for, otherwise those of the last time, otherwise dev.
is_done() {
    local installed=dev
    [[ ! -f $STAMP ]] || installed=$(<"$STAMP")
    extras=${EXTRAS-${installed%%$'\n'*}}
    [[ -x $ENVIRONMENT/bin/python && $installed == "$(stamp_text)" ]]
}

# The requirement of a package exactly as setup.py has it, such as torch==2.13.0.
requirement() {
    local found
    found=$(sed -n "s/^ *\"\($1[=<>][^\"]*\)\",\$/\1/p" "$ROOT/setup.py")
    [[ -n $found ]] || die "setup.py names no version of $1: restore its install_requires"
    printf '%s' "$found"
}

is_recent_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$OLDEST_PYTHON'.split('.'))))" 2>/dev/null
}

version_of() {
    "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || printf 'no working Python'
}

# Sets `python`: the environment's own if there is one, otherwise PYTHON or the first suitable on PATH.
find_python() {
    if [[ -n ${VIRTUAL_ENV:-} ]]; then
        python=$VIRTUAL_ENV/bin/python
        is_recent_enough "$python" || die "the active environment $VIRTUAL_ENV has $(version_of "$python")," \
            "but Python >= $OLDEST_PYTHON is needed: deactivate it, or activate another"
        return
    fi
    if [[ -n ${PYTHON:-} ]]; then
        python=$PYTHON
        is_recent_enough "$python" || die "PYTHON=$PYTHON has $(version_of "$python")," \
            "but Python >= $OLDEST_PYTHON is needed: set PYTHON to a newer one"
        return
    fi
    for python in python3.11 python3.12 python3.13 python3.14 python3; do
        if is_recent_enough "$python"; then return; fi
    done
    die "found no Python >= $OLDEST_PYTHON (python3 is $(version_of python3)): install one" \
        "(Debian, Ubuntu: apt install python3.11 python3.11-venv python3.11-dev), or set PYTHON=/path/to/python3.11"
}

check_python_parts() {
    local missing
    missing=$("$python" -c '
import importlib.util, pathlib, sysconfig
missing = [m for m in ("venv", "ensurepip") if importlib.util.find_spec(m) is None]
if not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
    missing.append("Python.h")
print(" ".join(missing))')
    [[ -z $missing ]] || die "$python ($(version_of "$python")) lacks $missing: install its venv and dev packages" \
        "(Debian, Ubuntu: apt install python3.11-venv python3.11-dev), or set PYTHON to a complete one"
}

check_compilers() {
    local compiler
    for compiler in "${CC:-gcc}" "${CXX:-g++}"; do
        command -v "${compiler%% *}" >/dev/null || die "found no compiler ${compiler%% *}, which fairseq needs:" \
            "install one (Debian, Ubuntu: apt install build-essential), or set CC and CXX"
    done
}

check_disk() {
    local need=${DISK_GB:-} place=$ENVIRONMENT free_kb
    [[ ${need:-0} =~ ^[0-9]+$ ]] || die "DISK_GB=$need is not a whole number of gigabytes"
    if [[ -z $need ]]; then
        if command -v nvidia-smi >/dev/null; then need=10; else need=3; fi
    fi
    while [[ ! -d $place ]]; do place=$(dirname "$place"); done
    free_kb=$(df -Pk "$place" | awk 'NR == 2 { print $4 }')
    ((free_kb >= 10#$need * 1024 * 1024)) || die "only $((free_kb / 1024 / 1024)) GB free in $place, and the" \
        "installation takes up to $need GB: free some, or set VENV to a folder on a larger disk"
}

check_place() {
    [[ ! -e $ENVIRONMENT || -f $ENVIRONMENT/pyvenv.cfg || -e $LOCK || -z $(ls -A "$ENVIRONMENT") ]] ||
        die "$ENVIRONMENT exists and is no virtual environment: set VENV to another folder, or remove it"
}

say() {
    log "$(printf '%3d s' "$SECONDS")  $*"
}

# Run a command with its output in the log; on failure show the end of the log and where it lies.
quietly() {
    printf '\n$ %s\n' "$*" >>"$LOG"
    local status=0
    "$@" >>"$LOG" 2>&1 || status=$?
    if ((status != 0)); then
        tail -n 15 "$LOG" >&2
        printf '%s\n' "[$DEEPNET_COMMAND] error: failed with status $status: $*" \
            "[setup] all that it said is in $LOG; run this again to go on from here" >&2
        exit 1
    fi
}

pip_install() {
    quietly "$ENVIRONMENT/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_environment() {
    if [[ -z ${VIRTUAL_ENV:-} ]]; then
        if is_recent_enough "$ENVIRONMENT/bin/python" && "$ENVIRONMENT/bin/python" -m pip --version &>/dev/null; then
            return
        fi
        say "making $ENVIRONMENT with Python $(version_of "$python")"
        quietly "$python" -m venv "$ENVIRONMENT"
    fi
}

install_everything() {
    say "pip, and what builds packages"
    pip_install --upgrade pip "setuptools>=77.0.3,<81" wheel
    say "$(requirement torch)"
    pip_install "$(requirement torch)"
    say "$(requirement fairseq-fixed), compiling takes a minute or two"
    pip_install "$(requirement numpy)" cython
    # With build isolation pip would compile against a second torch, the newest. Without debugging symbols
    # compiling takes three quarters of the time, and the result half the space. pip keeps the wheel and
    # takes it again next time, also after torch moved: what links to torch in it (libnat, libbase) serves
    # Levenshtein and BASE models only.
    CFLAGS="${CFLAGS:--O2 -g0 -fwrapv -DNDEBUG}" \
        pip_install --no-build-isolation "$(requirement torch)" "$(requirement fairseq-fixed)"
    say "fairseq_deepnet${extras:+ with $extras}"
    pip_install --no-build-isolation --editable "$ROOT${extras:+[$extras]}"
}

# An active environment may have been set up from another clone, which then imports this one's code.
say_whose() {
    local clone
    clone=$(sed -n 's|^clone ||p' "$STAMP" 2>/dev/null || true)
    [[ -z $clone || $clone == "$ROOT" || ! -d $clone ]] || say "$ENVIRONMENT was set up from $clone: from now on it" \
        "imports $ROOT (for an environment of its own, deactivate it and run this again)"
}

check_installation() {
    quietly "$ENVIRONMENT/bin/python" -c '
import platform, torch, fairseq
cuda = f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no CUDA"
print(f"Python {platform.python_version()}, torch {torch.__version__} ({cuda}), fairseq {fairseq.__version__}")'
    say "done: $(tail -n 1 "$LOG")"
}

if is_done; then exit; fi
find_python
check_python_parts
check_compilers
check_disk
check_place

mkdir -p "$ENVIRONMENT"
exec 9>"$LOCK"
if command -v flock >/dev/null && ! flock -n 9; then
    say "another set-up of $ENVIRONMENT is running: waiting for it"
    flock 9
    if is_done; then exit; fi
fi
say_whose
rm -f "$STAMP"
: >"$LOG"
make_environment
install_everything
check_installation
stamp_text >"$STAMP.part"
mv "$STAMP.part" "$STAMP"
