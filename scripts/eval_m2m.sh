#!/usr/bin/env bash
# Score a multilingual model as M2M-100 and table 3 of the DeepNet paper do: beam 5, length penalty 1.
#
#   SET=flores101 bash scripts/eval_m2m.sh RUN [fairseq-generate options]
#
# SET is one of these; configs/evaluation/SET.yaml tells what the paper leaves open.
#   flores101   Flores-101 devtest, 87 languages, 7,482 directions, spBLEU
#   ted28       TED talks, 28 languages, 756 directions
#   opus30      the 15 zero-shot pairs of OPUS-100 in both directions
#   wmt10       WMT test sets from and into English, 10 languages
# Only directions between languages that the model knows are scored; the table says how many these are.
#
# Input: a run folder or a checkpoint of a multilingual model, and the published test set in RAW.
# Output: the table of all directions beside the paper's averages, and OUT with a JSON and the hypotheses of
# each direction, table.md, table.csv and summary.json. A run that was stopped goes on where it was.
#
# Variables (with defaults):
#   SET         which test set (flores101)
#   RAW         its published folder or archive (data/downloads/CORPUS, as deepnet download fetches it; WMT is
#               fetched by sacreBLEU, or taken from the folder SACREBLEU)
#   TEXT        folder for the text to translate (OUT/text)
#   OUT         folder for the scores (scores/SET in the run, or beside the checkpoint)
#   BEAM, LENPEN    as the protocol has them (5, 1)
#   TOKENIZER   sacreBLEU's tokenizer (flores101 for flores101, otherwise by the target language)
#   FLORES101_SPM   the sentencepiece model of spBLEU (fetched by sacreBLEU, or from data/downloads/flores101)
#   DATA, AVERAGE, GPUS, PROCESSES, BATCH, DIRECTIONS   as for scripts/eval_bleu.sh
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
evaluate m2m "$@"
