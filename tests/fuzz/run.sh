#!/usr/bin/env bash
# run.sh PROGRAM CORPUS FOLDER OPTION...: a fuzz target over its corpus and changes of it. What it finds lies in FOLDER: new
# inputs in FOLDER/corpus, inputs that end it beside it. An input that takes 10 s or 2 GiB is too much.
set -euo pipefail
program=$1 corpus=$2 folder=$3
shift 3
rm -rf "$folder"
mkdir -p "$folder/corpus"
# A folder of its own: inputs become files.
export TMPDIR="$folder"
exec "$program" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -artifact_prefix="$folder/" -verbosity=1 \
  -print_final_stats=1 "$@" "$folder/corpus" "$corpus"
