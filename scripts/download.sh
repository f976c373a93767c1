#!/usr/bin/env bash
# Download a corpus: resumable, in parallel, from several mirrors, verified.
#
#   bash scripts/download.sh wmt17
#   bash scripts/download.sh opus100 --languages de fr
#   bash scripts/download.sh --list            # what there is, and from where
#
# Input: the name of a corpus, and further options of `deepnet download`, whose --help names all.
# Output: data/downloads/CORPUS/FILE, printed one path a line, and checksums.json beside them. What is
# unfinished is FILE.part, which the next run takes up; what is there is checked and left alone.
#
# Variables (with defaults):
#   OUT                  folder for the files (data/downloads/CORPUS)
#   JOBS                 files at a time (4)
#   DEEPNET_MIRROR       URL prefixes to try first, as PREFIX/CORPUS/FILE (none)
#   DEEPNET_MIRROR_ONLY  1: ask nothing else, and trust what it serves on first use (0)
#   http_proxy, https_proxy, no_proxy, SSL_CERT_FILE   as everywhere
#   DEEPNET_SKIP_SETUP   1: use the Python environment that is active, without checking it (0)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

[[ $# -gt 0 ]] || die "which corpus? --list names them, --help says more"
hand_over download --variables "$@"
