#!/usr/bin/env bash
# run.sh PROGRAM TARGET FOLDER OPTION...: libFuzzer runs a target over its corpus and over changes of it. New inputs lie in
# FOLDER/corpus afterwards, inputs that end the target beside it. An input that takes 10 s or 2 GiB is too much. The commit
# is the seed, unless an option says -seed=N.
set -euo pipefail
program=$1 target=$2 folder=$3
shift 3
corpus=$(dirname "$0")/corpus/$target
commit=$(git -C "$(dirname "$0")" rev-parse --short=7 HEAD 2>/dev/null || echo 1)
rm -rf "$folder"
mkdir -p "$folder/corpus"
# A folder of its own: inputs become files.
export TMPDIR="$folder" ORRERY_FUZZ_TARGET="$target"
exec "$program" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -artifact_prefix="$folder/" -verbosity=1 \
  -entropic=0 -print_final_stats=1 -seed=$((16#$commit)) "$@" "$folder/corpus" "$corpus"
