#!/usr/bin/env bash
# Does `orrery bench compare` keep quiet where nothing changed, and see what did? Runs the same benchmarks N + 1 times,
# compares each run with the first, then
#  - plants a slow-down: one benchmark's times of each run multiplied (jq), the others as they were;
#  - takes a real one: gradient_norm over a tenth more elements under the name of the smaller one.
#   realrun/bench/prove_compare.sh [-n RUNS] [-f FILTER] [-p PERCENT] [-r REPETITIONS] [ORRERY] [FOLDER]
# Prints a line a comparison and a summary; exit 1 on a false alarm or a miss. The runs stay in FOLDER.
set -euo pipefail
runs=10 filter='' percent=10 repetitions=25
while getopts n:f:p:r: option; do
  case $option in
    n) runs=$OPTARG ;;
    f) filter=$OPTARG ;;
    p) percent=$OPTARG ;;
    r) repetitions=$OPTARG ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
orrery=${1:-orrery} folder=${2:-$(mktemp -d)}
mkdir -p "$folder"

verdicts() { # BASELINE NEW: regressions, improvements, too few repetitions, repetitions set aside
  "$orrery" bench compare "$1" "$2" --json - |
    jq -r '[(.verdicts | .regression + .failed, .improvement, .["too few repetitions"]), .set_aside] | join(" ")' || true
}
verdict_of() { # BASELINE NEW NAME
  "$orrery" bench compare "$1" "$2" --json - |
    jq -r --arg name "$3" '.benchmarks[] | select(.name == $name) | .verdict' || true
}

for ((i = 0; i <= runs; ++i)); do
  "$orrery" bench --filter "$filter" --repetitions "$repetitions" --output "$folder/$i.json" >"$folder/$i.txt"
done

false_alarms=0
for ((i = 1; i <= runs; ++i)); do
  read -r slower faster few aside <<<"$(verdicts "$folder/0.json" "$folder/$i.json")"
  echo "identical $i: $slower regressions, $faster improvements, $few too few repetitions, $aside repetitions set aside"
  false_alarms=$((false_alarms + slower + faster))
done

mapfile -t names < <(jq -r '[.benchmarks[] | select(.run_type == "iteration") | .run_name] | unique[]' "$folder/0.json")
planted=0 caught=0 others=0
judge() { # WHAT NAME FILE: counts the verdict on a file with one slow-down in NAME
  local verdict slower
  verdict=$(verdict_of "$folder/0.json" "$3" "$2")
  read -r slower _ <<<"$(verdicts "$folder/0.json" "$3")"
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

echo "$false_alarms false alarms in $runs identical runs of ${#names[@]} benchmarks; $caught of $planted slow-downs of" \
  "$percent % (planted) and 10 % (real) caught, with $others false alarms beside them; files in $folder"
[ "$false_alarms" -eq 0 ] && [ "$others" -eq 0 ] && [ "$caught" -eq "$planted" ]
