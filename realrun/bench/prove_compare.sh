#!/usr/bin/env bash
# Does `orrery bench compare` keep quiet where nothing changed, and see what did? Runs the same benchmarks N + 1 times,
# compares each run with the baseline, then
#  - plants a slow-down: one benchmark's times of each run multiplied (jq), the others as they were;
#  - takes a real one: gradient_norm over a tenth more elements under the name of the smaller one.
# The baseline is the quietest of three runs, and a run of which the comparison cannot tell is measured again, ATTEMPTS
# times at the most, as a team would do both; how many were is said.
#   realrun/bench/prove_compare.sh [-n RUNS] [-f FILTER] [-p PERCENT] [-r REPETITIONS] [-a ATTEMPTS] [ORRERY] [FOLDER]
# Prints a line a comparison and a summary; exit 1 on a false alarm or a miss. The runs stay in FOLDER.
set -euo pipefail
runs=10 filter='' percent=10 repetitions=25 attempts=5
while getopts n:f:p:r:a: option; do
  case $option in
    n) runs=$OPTARG ;;
    f) filter=$OPTARG ;;
    p) percent=$OPTARG ;;
    r) repetitions=$OPTARG ;;
    a) attempts=$OPTARG ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
orrery=${1:-orrery} folder=${2:-$(mktemp -d)}
mkdir -p "$folder"

measure() { # FILE
  "$orrery" bench --filter "$filter" --repetitions "$repetitions" --output "$1" >"${1%.json}.txt"
}
memory() { # FILE: what the memory yardstick usually took
  jq '[.benchmarks[] | .yardstick_memory_seconds // empty] | sort | .[length / 20 | floor]' "$1"
}
verdicts() { # BASELINE NEW: regressions, improvements, what cannot be told, repetitions set aside
  "$orrery" bench compare "$1" "$2" --json - |
    jq -r '[(.verdicts | .regression + .failed, .improvement, .["cannot tell"] + .["too few repetitions"]), .set_aside]
           | join(" ")' || true
}
verdict_of() { # BASELINE NEW NAME
  "$orrery" bench compare "$1" "$2" --json - |
    jq -r --arg name "$3" '.benchmarks[] | select(.name == $name) | .verdict' || true
}

for ((i = 0; i < 3; ++i)); do
  measure "$folder/baseline-$i.json"
  echo "$(memory "$folder/baseline-$i.json") $folder/baseline-$i.json"
done >"$folder/baselines"
baseline=$(sort -g "$folder/baselines" | head -1 | cut -d' ' -f2)

false_alarms=0 unknown=0 again=0
for ((i = 1; i <= runs; ++i)); do
  for ((attempt = 1; ; ++attempt)); do
    measure "$folder/$i.json"
    read -r slower faster open aside <<<"$(verdicts "$baseline" "$folder/$i.json")"
    echo "identical $i: $slower regressions, $faster improvements, $open cannot be told, $aside repetitions set aside"
    false_alarms=$((false_alarms + slower + faster))
    [ "$open" -gt 0 ] && [ "$attempt" -lt "$attempts" ] || break
    again=$((again + 1))
  done
  [ "$open" -eq 0 ] || unknown=$((unknown + 1))
done

mapfile -t names < <(jq -r '[.benchmarks[] | select(.run_type == "iteration") | .run_name] | unique[]' "$baseline")
planted=0 caught=0 others=0
judge() { # WHAT NAME FILE: counts the verdict on a file with one slow-down in NAME
  local verdict slower
  verdict=$(verdict_of "$baseline" "$3" "$2")
  read -r slower _ <<<"$(verdicts "$baseline" "$3")"
  echo "$1 in $2: $verdict"
  planted=$((planted + 1))
  if [ "$verdict" = regression ]; then
    caught=$((caught + 1))
    slower=$((slower - 1))
  fi
  others=$((others + slower))
}
small=$(printf '%s\n' "${names[@]}" | grep '^gradient_norm/' | sort -t/ -k3n | head -1 || true)
large=$(printf '%s\n' "${names[@]}" | grep '^gradient_norm/' | sort -t/ -k3n | tail -1 || true)
factor=$(jq -n "1 + $percent / 100")
for ((i = 1; i <= runs; ++i)); do
  name=${names[$((i % ${#names[@]}))]}
  jq --arg name "$name" --argjson factor "$factor" \
    '(.benchmarks[] | select(.run_name == $name and .run_type == "iteration"))
     |= (.real_time *= $factor | .cpu_time *= $factor)' "$folder/$i.json" >"$folder/planted-$i.json"
  judge "run $i, planted $percent %" "$name" "$folder/planted-$i.json"
  [ "$small" != "$large" ] || continue
  jq --arg small "$small" --arg large "$large" \
    '.benchmarks |= (map(select(.run_name != $small)) | map(if .run_name == $large then .run_name = $small else . end))' \
    "$folder/$i.json" >"$folder/larger-$i.json"
  judge "run $i, a tenth more work" "$small" "$folder/larger-$i.json"
done

echo "$false_alarms false alarms in $((runs + again)) identical runs of ${#names[@]} benchmarks ($again measured again," \
  "$unknown given up); $caught of $planted slow-downs of $percent % (planted) and 10 % (real) caught, with $others false" \
  "alarms beside them; files in $folder"
[ "$false_alarms" -eq 0 ] && [ "$others" -eq 0 ] && [ "$caught" -eq "$planted" ]
