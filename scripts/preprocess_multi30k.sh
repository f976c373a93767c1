#!/usr/bin/env bash
# Multi30k (29,000 image captions in German, English, French and Czech), ready for fairseq-train.
#
#   bash scripts/preprocess_multi30k.sh                                  # download, German to English
#   RAW=../shared/data/multi30k SRC=fr TGT=cs bash scripts/preprocess_multi30k.sh
#
# Input: a folder RAW with {train,valid,test}.{SRC,TGT}[.gz], or with the names of the public
# repository multi30k/dataset ({train,val,test_2016_flickr}.{SRC,TGT}[.gz], also below
# data/task1/raw). Without RAW, the files are downloaded from that repository.
# Output: OUT, a data folder as scripts/preprocess.sh makes it; test is the 2016 Flickr set.
#
# Variables (with defaults):
#   RAW                  folder with the raw text (none: download)
#   SRC, TGT             two of de, en, fr, cs (de, en)
#   OUT                  folder to make (data/multi30k.SRC-TGT)
#   DOWNLOADS            folder for what is downloaded (data/multi30k.raw)
#   MULTI30K_URL         where from (https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw)
#   VOCAB_SIZE           number of subwords (4000)
#   SUBWORDS, ...        every other variable of scripts/preprocess.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
help_if_asked "$@"

SRC=${SRC:-de}
TGT=${TGT:-en}
for name in SRC TGT; do
    case ${!name} in
        de | en | fr | cs) ;;
        *) die "$name is '${!name}'; Multi30k has de, en, fr and cs" ;;
    esac
done
OUT=${OUT:-$ROOT/data/multi30k.$SRC-$TGT}
export VOCAB_SIZE=${VOCAB_SIZE:-4000}
DOWNLOADS=${DOWNLOADS:-$ROOT/data/multi30k.raw}
MULTI30K_URL=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}

declare -A LINES=([train]=29000 [valid]=1014 [test]=1000)
declare -A PUBLIC=([train]=train [valid]=val [test]=test_2016_flickr)

# The prefix of a split in the folder $1: under our name or the public one.
find_prefix() {
    local folder name
    for folder in "$1" "$1/data/task1/raw"; do
        for name in "$2" "${PUBLIC[$2]}"; do
            if [[ -f $folder/$name.$SRC || -f $folder/$name.$SRC.gz ]]; then
                echo "$folder/$name"
                return
            fi
        done
    done
    return 1
}

count_lines() {
    if [[ -f $1 ]]; then
        wc -l <"$1"
    elif [[ -f $1.gz ]]; then
        gzip -dc "$1.gz" 2>/dev/null | wc -l || die "$1.gz is not a whole gzip file; fetch it again"
    else
        die "there is no $1, plain or .gz; $advice"
    fi
}

advice="fetch the repository multi30k/dataset from GitHub and set RAW=its folder"

fetch() {
    curl --fail --silent --show-error --location --retry 3 --connect-timeout 20 "$@" 2>&1
}

# Download the file $1 by way of $1.part, which a later run takes up where this one stopped.
download() {
    local path=$DOWNLOADS/$1 url=$MULTI30K_URL/$1 said
    if [[ -f $path ]]; then
        return
    fi
    log "downloading $1"
    mkdir -p "$DOWNLOADS"
    if [[ -s $path.part ]] && ! gzip -t "$path.part" 2>/dev/null; then
        # A server that cannot resume, or a part of something else: start afresh below.
        fetch --continue-at - --output "$path.part" "$url" >/dev/null || true
        gzip -t "$path.part" 2>/dev/null || rm -f "$path.part"
    fi
    if [[ ! -s $path.part ]]; then
        said=$(fetch --output "$path.part" "$url") || die "cannot download $url (${said##*$'\n'}); run again, or $advice"
    fi
    if ! gzip -t "$path.part" 2>/dev/null; then
        rm -f "$path.part"
        die "$url is not a whole gzip file; run again, or $advice"
    fi
    mv "$path.part" "$path"
}

if [[ -z ${RAW:-} ]]; then
    trap 'rmdir "$DOWNLOADS" 2>/dev/null || true' EXIT
    command -v curl >/dev/null || die "curl is needed to download; install it, or set RAW=FOLDER"
    for split in train valid test; do
        for language in "$SRC" "$TGT"; do
            download "${PUBLIC[$split]}.$language.gz"
        done
    done
    RAW=$DOWNLOADS
fi
[[ -d $RAW ]] || die "RAW=$RAW is not a folder"

declare -A PREFIX
for split in train valid test; do
    PREFIX[$split]=$(find_prefix "$RAW" "$split") ||
        die "$RAW has no $split.$SRC, nor ${PUBLIC[$split]}.$SRC, plain or .gz; $advice"
    for language in "$SRC" "$TGT"; do
        count=$(count_lines "${PREFIX[$split]}.$language") || exit 2
        [[ $count == "${LINES[$split]}" ]] ||
            die "${PREFIX[$split]}.$language has $count lines instead of ${LINES[$split]}; fetch it again"
    done
done

export SRC TGT OUT TRAIN=${PREFIX[train]} VALID=${PREFIX[valid]} TEST=${PREFIX[test]}
exec bash "$ROOT/scripts/preprocess.sh" "$@"
