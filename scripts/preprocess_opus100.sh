#!/usr/bin/env bash
# OPUS-100 (English with 99 languages, 55 million sentence pairs; 15 zero-shot pairs), ready for fairseq-train.
#
#   bash scripts/preprocess_opus100.sh                            # download everything
#   LANGS="de fr nl" bash scripts/preprocess_opus100.sh           # download and use some languages only
#   RAW=opus-100-corpus-v1.0.tar.gz bash scripts/preprocess_opus100.sh
#
# Input: RAW, an archive of OPUS-100, a folder of its archives, or a folder with its text unpacked
# (supervised/de-en/opus.de-en-train.de and so on, at any depth). Without RAW, it is downloaded: the whole
# archive, or with LANGS those of the pairs.
# Output: OUT, a data folder as scripts/preprocess_multilingual.sh makes it, the zero-shot pairs among its test
# sets; OUT.pairs.tsv names the pairs, OUT.overlap.json counts the test sentences in the training text. Pairs
# without a dev set (five) have a few training pairs held out for it. A killed run goes on where it stopped.
#
# Variables (with defaults):
#   RAW                  archive or folder (none: download)
#   LANGS                codes of the languages to use besides English (all 99)
#   OUT                  folder to make (data/opus100, with LANGS data/opus100.LANGS)
#   DOWNLOADS            folder for what is downloaded (data/downloads/opus100)
#   UNPACKED             folder for what is unpacked, about 10 GB for all (data/opus100.raw)
#   VOCAB_SIZE           number of subwords. The DeepNet paper does not state it: Zhang et al. 2020 took 64,000,
#                        the parameter counts of the paper's table 2 fit 250,000, which VOCAB_SIZE=250000 gives (64000)
#   SUBWORDS             bpe or unigram; not stated (unigram, as sentencepiece has it by default)
#   CHARACTER_COVERAGE   as Zhang et al., who regret it for Chinese: see BYTE_FALLBACK (0.9995)
#   BYTE_FALLBACK        1: spell rare characters as bytes instead of losing them; not stated (1)
#   SAMPLE               lines that subwords are learnt on, as Zhang et al. (10000000)
#   TEMPERATURE          of that sample; not stated (5)
#   OVERLAP              1: count test sentences in the training text, which takes minutes for all (1)
#   WORKERS, ...         every other variable of scripts/preprocess_multilingual.sh
#   DEEPNET_MIRROR, ...  every variable of scripts/download.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
source "$ROOT/scripts/lib/corpora.sh"
help_if_asked "$@"

[[ $# -eq 0 ]] || die "unexpected argument $1; this script takes variables, see --help"
check_numbers
read -ra languages <<<"${LANGS:-}"
for language in "${languages[@]}"; do
    [[ $language =~ ^[a-z]{2,3}$ ]] || die "LANGS has '$language'; it must be codes such as: de fr nl"
done
mapfile -t languages < <(printf '%s\n' "${languages[@]}" | sed '/^en$/d; /^$/d' | sort -u)
[[ -z ${LANGS:-} || ${#languages[@]} -gt 0 ]] || die "LANGS is '$LANGS'; name a language besides English"
if [[ ${#languages[@]} -gt 0 ]]; then
    chosen=$(IFS=-; echo "${languages[*]}")
    [[ ${#chosen} -le 60 ]] || chosen=${#languages[@]}-languages
    OUT=${OUT:-$ROOT/data/opus100.$chosen}
fi
OUT=${OUT:-$ROOT/data/opus100}
OUT=${OUT%/}
DOWNLOADS=${DOWNLOADS:-$ROOT/data/downloads/opus100}
UNPACKED=${UNPACKED:-$ROOT/data/opus100.raw}
OVERLAP=${OVERLAP:-1}
[[ $OVERLAP == [01] ]] || die "OVERLAP is '$OVERLAP'; it must be 0 or 1"
export VOCAB_SIZE=${VOCAB_SIZE:-64000} SUBWORDS=${SUBWORDS:-unigram} TEMPERATURE=${TEMPERATURE:-5}
export CHARACTER_COVERAGE=${CHARACTER_COVERAGE:-0.9995} BYTE_FALLBACK=${BYTE_FALLBACK:-1}
export SAMPLE=${SAMPLE:-10000000}
export WORKERS=${WORKERS:-$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}
[[ $WORKERS =~ ^[1-9][0-9]*$ ]] || die "WORKERS is '$WORKERS'; it must be a whole number above 0"

if [[ -n ${RAW:-} ]]; then
    [[ -e $RAW ]] || die "RAW=$RAW is neither a folder nor an archive"
fi
activate_environment
choice=()
[[ ${#languages[@]} -eq 0 ]] || choice=(--languages "${languages[@]}")
if [[ -z ${RAW:-} ]]; then
    needed=("${choice[@]}")
    [[ ! -f $DOWNLOADS/opus-100-corpus-v1.0.tar.gz ]] || needed=() # it holds the pairs, too
    OUT=$DOWNLOADS bash "$ROOT/scripts/download.sh" opus100 "${needed[@]}" >/dev/null || exit 2
    RAW=$DOWNLOADS
fi
options=(--table "$OUT.pairs.tsv" --unpacked "$UNPACKED" --workers "$WORKERS" "${choice[@]}")
[[ $OVERLAP == 0 ]] || options+=(--overlap "$OUT.overlap.json")
mkdir -p "$(dirname "$OUT")"
said=$(run_deepnet opus100 "$RAW" "${options[@]}") || exit 2
while IFS= read -r line; do
    log "$line"
done <<<"$said"
export OUT TABLE=$OUT.pairs.tsv
exec bash "$ROOT/scripts/preprocess_multilingual.sh" "$@"
