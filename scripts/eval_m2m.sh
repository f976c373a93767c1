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
#   RAW         its published folder or archive (data/downloads/CORPUS, as scripts/download.sh fetches it; WMT is
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

[[ $# -gt 0 && $1 != -* ]] || die "which model? name a run folder or a checkpoint; --help says more"
target=$1
shift
[[ -e $target ]] || die "there is no run or checkpoint $target"
SET=${SET:-flores101}
[[ $SET =~ ^[a-z0-9_]+$ && -f $ROOT/configs/evaluation/$SET.yaml ]] || die "SET is '$SET'; choose flores101, ted28, opus30 or wmt10"
corpus=$(sed -n 's/^download: *//p' "$ROOT/configs/evaluation/$SET.yaml")
paper=$(sed -n 's/^paper: *//p' "$ROOT/configs/evaluation/$SET.yaml")
tokenizer=$(sed -n '/^tokenizer: *null/d; s/^tokenizer: *//p' "$ROOT/configs/evaluation/$SET.yaml")
if [[ -n $corpus ]]; then
    RAW=${RAW:-$ROOT/data/downloads/$corpus}
    [[ -e $RAW ]] || die "there is no $RAW: bash scripts/download.sh $corpus, or set RAW to what you have"
fi
model_spm=$ROOT/data/downloads/flores101/sacrebleu_tokenizer_spm.model
if [[ $tokenizer == flores101 && -z ${FLORES101_SPM:-} && -f $model_spm ]]; then
    export FLORES101_SPM=$model_spm
fi
folder=$target
[[ -d $target ]] || folder=$(dirname "$target")
OUT=${OUT:-$folder/scores/$SET}
TEXT=${TEXT:-$OUT/text}

activate_environment
make=(evaluation-set "$SET" --out "$TEXT" --model "$target")
[[ -z ${RAW:-} || -z $corpus ]] || make+=(--raw "$RAW")
[[ -z ${DATA:-} ]] || make+=(--data "$DATA")
deepnet "${make[@]}" >&2

export BEAM=${BEAM:-5} LENPEN=${LENPEN:-1} TEXT OUT SPLIT=$SET TOKENIZER=${TOKENIZER:-$tokenizer}
deepnet evaluate --variables "$target" -- "$@" >/dev/null
newest=$(cd "$OUT" && find . -mindepth 2 -maxdepth 2 -path "./$SET.*" -name summary.json -printf '%T@ %h\n' | sort -g | tail -1)
[[ -n $newest ]] || die "the evaluation left no summary in $OUT"
expect=(--expect "$TEXT/directions.txt")
[[ -z ${DIRECTIONS:-} ]] || expect=()
deepnet directions "$OUT/${newest#* ./}" "${expect[@]}" --paper "$paper"
