# shellcheck shell=bash
# Where the raw text of Multi30k is: in the folder RAW, or downloaded. Sourced after lib/common.sh by the
# scripts that prepare Multi30k.

DOWNLOADS=${DOWNLOADS:-$ROOT/data/downloads/multi30k}

declare -A LINES=([train]=29000 [valid]=1014 [test]=1000)
declare -A PREFIX=()
declare -A PUBLIC=([train]=train [valid]=val [test]=test_2016_flickr)

# The prefix of the split $2 in the folder $1, under our name or the public one, by its language $3.
find_prefix() {
    local folder name
    for folder in "$1" "$1/data/task1/raw"; do
        for name in "$2" "${PUBLIC[$2]}"; do
            if [[ -f $folder/$name.$3 || -f $folder/$name.$3.gz ]]; then
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

# Set PREFIX[train], PREFIX[valid] and PREFIX[test] for the languages named, all of them checked.
find_multi30k() {
    local language split count
    for language in "$@"; do
        case $language in
            de | en | fr | cs) ;;
            *) die "there is no language '$language' in Multi30k; it has de, en, fr and cs" ;;
        esac
    done
    if [[ -z ${RAW:-} ]]; then
        OUT=$DOWNLOADS bash "$ROOT/scripts/download.sh" multi30k --languages "$@" >/dev/null || exit 2
        RAW=$DOWNLOADS
    fi
    [[ -d $RAW ]] || die "RAW=$RAW is not a folder; without RAW it is downloaded"
    for split in train valid test; do
        PREFIX[$split]=$(find_prefix "$RAW" "$split" "$1") ||
            die "$RAW has no text of $split: neither $split.$1 nor ${PUBLIC[$split]}.$1.gz; without RAW it is downloaded"
        for language in "$@"; do
            count=$(count_lines "${PREFIX[$split]}.$language") || exit 2
            [[ $count == "${LINES[$split]}" ]] ||
                die "${PREFIX[$split]}.$language has $count lines instead of ${LINES[$split]}; fetch it again"
        done
    done
}
