#!/usr/bin/env bash
# IWSLT 2014 German-English (TED talks, 160,239 training pairs), ready for fairseq-train.
#
#   bash scripts/preprocess_iwslt14.sh                            # download
#   RAW=FOLDER bash scripts/preprocess_iwslt14.sh
#
# The data follow fairseq's prepare-iwslt14.sh: Moses tokens, lower case, 10,000 byte-pair codes, and every 23rd pair
# for validation. The test set is dev2010, TEDX.dev2012 and tst2010 to tst2012 (6,750 pairs). RAW is a folder with
# de-en.tgz. `deepnet preprocess --help` lists the other variables and options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"
[[ ${VARIANT:-tokenized} == tokenized ]] || die "VARIANT is '$VARIANT', but this recipe has only Moses tokens"
hand_over preprocess --variables iwslt14 "$@"
