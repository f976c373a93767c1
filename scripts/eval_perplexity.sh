#!/usr/bin/env bash
# The perplexity of a language model, or of a masked one, on a test set: measured by fairseq-eval-lm, or by
# fairseq-validate.
#
#   bash scripts/eval_perplexity.sh [RUN or CHECKPOINT] [options of fairseq-eval-lm or fairseq-validate]
#
# Input: a run folder or a checkpoint, stock fairseq models included; without one, the newest run in runs/.
#
# Output: one readable line on standard output: perplexity per subword and bits; of a language model also per
# word, which does not depend on the subwords; of a masked model over the masked subwords alone. In scores/ of
# the run NAME.json (the same, with model, settings, versions). A model that is already measured is not
# measured again.
#
# Variables (with defaults):
#   DATA     data folder (the one recorded in the run or the checkpoint)
#   SPLIT    test or valid (test)
#   AVERAGE  N: the mean of the run's last N checkpoints; 0: checkpoint_best.pt (0)
#   GPUS     0 measures on the CPU (one GPU, where there is one)
#   BATCH    tokens a batch (4000)
#   OUT      folder for the JSON (scores/ in the run, or beside the checkpoint)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: SPLIT=valid bash scripts/eval_perplexity.sh runs/multi30k_lm
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
evaluate perplexity "$@"
