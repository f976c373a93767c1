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
help_if_asked "$@"
hand_over preprocess opus100 --variables -- "$@"
