#!/usr/bin/env bash
# Translate a test set and score it with sacreBLEU (cased, detokenised) and chrF, with signatures.
#
#   bash scripts/eval_bleu.sh RUN or CHECKPOINT [fairseq-generate options]
#
# Input: a run folder or a checkpoint, which may be a stock fairseq model. The reference is the raw text in the data
# folder (DATA/text/SPLIT.TARGET).
#
# For a multilingual model, the script scores all directions with text in the data folder, including zero-shot
# directions. It scores several directions at a time and skips directions that have a score.
#
# Output: one line on standard output, and two files in the run's scores/: NAME.json (scores, signatures, model,
# settings, versions) and NAME.txt (hypotheses, detokenised, in corpus order). A second call does not translate again.
# For many directions: a table, and scores/NAME/ with both files for each direction, table.md and summary.json.
# NAME is SPLIT.CHECKPOINT.beamN.lenpenN. For other text (TEXT, or a DATA other than the run's), the name begins
# with text.FOLDER-DIGEST, so that reports do not confuse it with the test set's score.
#
# Variables (with defaults):
#   DATA        data folder (as recorded in the run or the checkpoint)
#   SPLIT       test or valid (test)
#   BEAM        beam size (5)
#   LENPEN      length penalty; above 1 favours longer translations (1)
#   AVERAGE     N: average the run's last N checkpoints; 0: use checkpoint_best.pt (0)
#   GPUS        number of GPUs; 0 translates on the CPU (all visible GPUs)
#   PROCESSES   on the CPU: processes that share the sentences (one per core)
#   BATCH       source tokens per batch (4000, fewer above 100 layers)
#   DIRECTIONS  for a multilingual model: only these directions, such as de-en,en-de (all)
#   TEXT        folder of other text with SPLIT.A-B.A and SPLIT.A-B.B, raw or .gz (the data folder's text)
#   TOKENIZER   sacreBLEU's tokenizer, such as char or flores101; it is part of the score's name (by target language)
#   OUT         folder for scores and hypotheses (scores/ in the run, or beside the checkpoint)
#
# Example: AVERAGE=5 BEAM=4 LENPEN=0.6 bash scripts/eval_bleu.sh runs/multi30k
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ $# -gt 0 && $1 != -* ]] || die "name a run or a checkpoint before the options; see --help"
run=$1
shift
[[ ${1:-} != -- ]] || shift
hand_over evaluate --variables "$run" -- "$@"
