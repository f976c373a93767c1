#!/usr/bin/env bash
# Average the weights of a run's last checkpoints, or of the named checkpoints.
#
#   bash scripts/average.sh RUN
#   bash scripts/average.sh CHECKPOINT CHECKPOINT ...
#
# Input: a run folder (or its checkpoints/), whose N latest checkpoints are averaged (saved by epoch or interval, and
# checkpoint_last.pt if the run ended between two of them); or two or more checkpoints of one model.
#
# Output: one checkpoint without optimiser state, for use like any other. Its path goes to standard output.
#
# Variables (with defaults):
#   N     for a run: number of checkpoints (5)
#   OUT   checkpoint to write (average_N.pt in the run's checkpoints/; average_of_N.pt beside the first named checkpoint)
#
# Example: N=10 bash scripts/average.sh runs/multi30k
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ $# -gt 0 && $1 != -* ]] || die "a run or checkpoints are missing: bash scripts/average.sh RUN; see --help"
if [[ -d $1 ]]; then
    folder=${1%/}
    [[ ! -d $folder/checkpoints ]] || folder=$folder/checkpoints
    hand_over average --variables "--last=${N:-5}" --out "${OUT:-$folder/average_${N:-5}.pt}" "$@"
fi
[[ -z ${N:-} ]] || die "N=$N needs a run; named checkpoints are all averaged, so leave N out"
hand_over average --variables --out "${OUT:-$(dirname "$1")/average_of_$#.pt}" "$@"
