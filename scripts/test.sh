#!/usr/bin/env bash
# Check the project with ruff, mypy, mkdocs and shellcheck, then run the tests on all cores. The first call sets up the
# environment.
#
# Prints the output of each check and ends with pytest's own summary line.
# Exit status: 0 if everything passed; pytest's if tests failed; 1 if only another check failed.
#
# Usage: bash scripts/test.sh [--all] [pytest's arguments]
#   --all   also run the slow tests, which train until a model has learnt something
#
# Variables (with their defaults):
#   JOBS=auto   number of test processes; auto is one per core
#
# Examples: bash scripts/test.sh
#           bash scripts/test.sh tests/unit -k alpha
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
refuse_dry_run

selection=()
if [[ ${1:-} == --all ]]; then
    selection=(-m "slow or not slow")
    shift
fi
activate_environment
cd "$ROOT"
unset PYTHONSAFEPATH # tests run modules of this folder

failed=()
check() {
    "${@:2}" || failed+=("$1")
}

check "ruff (lint)" ruff check --quiet
check "ruff (format: 'ruff format' fixes it)" ruff format --check --quiet
check "mypy" mypy --no-error-summary
site=$(mktemp -d)
check "mkdocs" env NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet --site-dir "$site"
rm -rf "$site"
check "shellcheck" shellcheck scripts/*.sh scripts/*.sbatch scripts/lib/*.sh .ci/run
for name in "${failed[@]}"; do
    log "FAILED: $name"
done
[[ ${#failed[@]} -gt 0 ]] || log "ruff, mypy, mkdocs and shellcheck are clean"

unset DEEPNET_COMMAND # the tests set their own command names
# The workers share the cores: one thread each.
export OMP_NUM_THREADS=1
python -m pytest -n "${JOBS:-auto}" --dist worksteal "${selection[@]}" "$@"
[[ ${#failed[@]} -eq 0 ]]
