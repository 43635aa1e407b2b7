#!/usr/bin/env bash
# long.sh SECONDS [TARGET...]: builds the fuzz targets in build/fuzz and runs each (or those named) for SECONDS, one after
# another, over its corpus and changes of it, with a seed of the day. An input that takes 10 s or 2 GiB is too much. New
# inputs lie in build/fuzz/found/TARGET/corpus afterwards, a failing input beside it; the script then goes on with the next
# target and exits with 1 at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
seconds=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=($(ls tests/fuzz/corpus))
for target in "${targets[@]}"; do
  [ -d "tests/fuzz/corpus/$target" ] || { echo "long.sh: found target $target, expected one of" $(ls tests/fuzz/corpus) >&2; exit 2; }
done
cmake -S tests/fuzz -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER="${CXX:-clang++-14}"
cmake --build build/fuzz
failed=()
for target in "${targets[@]}"; do
  found=build/fuzz/found/$target
  rm -rf "$found"
  mkdir -p "$found/corpus"
  # A folder of its own for temporary files: inputs become files.
  TMPDIR="$found" ORRERY_FUZZ_TARGET="$target" build/fuzz/orrery-fuzz -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
    -artifact_prefix="$found/" -verbosity=1 -entropic=0 -print_final_stats=1 -seed="$(date +%Y%m%d)" \
    -max_total_time="$seconds" "$found/corpus" "tests/fuzz/corpus/$target" || failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "long.sh: failed: ${failed[*]}" >&2; exit 1; }
