#!/usr/bin/env bash
# Translate a test set and score it: sacreBLEU (cased, detokenised, 13a) and chrF, with signatures.
#
#   bash scripts/eval_bleu.sh [RUN or CHECKPOINT] [fairseq-generate options]
#
# Input: a run folder or a checkpoint, stock fairseq models included; without one, the newest run in
# runs/. The reference is the raw text in the data folder (DATA/text/SPLIT.TARGET).
#
# A multilingual model is scored in all directions that the data folder has text of, zero-shot ones
# included: several at a time, and those that are done are not done again.
#
# Output: one readable line on standard output; in scores/ of the run NAME.json (scores, signatures,
# model, settings, versions) and NAME.txt (hypotheses, detokenised, in corpus order). A model that is already
# scored is not translated with again; scores by another engine have names of their own (NAME.ctranslate2-int8).
# Of many directions: a table, and scores/NAME/ with a JSON and the hypotheses of each, table.md, table.csv, summary.json.
# NAME is SPLIT.CHECKPOINT.beamN.lenpenN; of other text (TEXT, or DATA of another folder than the run's) it begins with
# text.FOLDER-DIGEST, and no report takes it for the test set's.
#
# Variables (with defaults):
#   DATA        data folder (the one recorded in the run or the checkpoint)
#   SPLIT       test or valid (test)
#   BEAM        beam size (5)
#   LENPEN      length penalty; above 1 favours longer translations (1)
#   AVERAGE     N: the mean of the run's last N checkpoints; 0: checkpoint_best.pt (0)
#   GPUS        number of GPUs; 0 translates on the CPU (all that are visible)
#   PROCESSES   on the CPU: processes that share the sentences (one a core)
#   ENGINE      fairseq, or ctranslate2: the model is exported to RUN/export/ctranslate2-QUANTIZATION, once, and
#               decoded several times faster, on the CPU by all cores; "How fast" and "Measured" in docs/guides/serving.md
#               say how much, and what that changes (fairseq)
#   QUANTIZATION  of ctranslate2: type of the weights, such as float32 (int8)
#   THREADS     cores to use (all)
#   BATCH       source tokens per batch (what is best for the engine)
#   DIRECTIONS  of a multilingual model: only these, as in de-en,en-de (all)
#   TEXT        folder of other text with SPLIT.A-B.A and SPLIT.A-B.B, raw or .gz (the data folder's text)
#   TOKENIZER   sacreBLEU's tokenizer, such as char or flores101; the score's name says so (chosen by the target language)
#   OUT         folder for scores and hypotheses (scores/ in the run, or beside the checkpoint)
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
#
# Example: AVERAGE=5 BEAM=4 LENPEN=0.6 bash scripts/eval_bleu.sh runs/multi30k
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
evaluate evaluate "$@"
