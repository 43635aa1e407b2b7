#!/usr/bin/env bash
# long.sh SECONDS [TARGET...]: builds the fuzz targets in build/fuzz and runs each (or those named) for SECONDS, one after
# another, with a seed of the day. A failing input lies in build/fuzz/found/TARGET; the script then goes on with the next
# target and exits with 1 at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
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
  tests/fuzz/run.sh build/fuzz/orrery-fuzz "$target" "build/fuzz/found/$target" -max_total_time="$seconds" -seed="$(date +%Y%m%d)" ||
    failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "long.sh: failed: ${failed[*]}" >&2; exit 1; }
