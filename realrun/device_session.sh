#!/usr/bin/env bash
# Everything that a machine with a GPU is needed for, in one run of at most ten minutes (--short: three): correctness of
# kernels and strategies, benchmarks, PyTorch beside them, a calibration, and predictions of whole steps against
# measurement. Needs the CUDA 13 libraries, and of this project two programs: orrery-gpu and orrery-cuda-tests.
#
#   realrun/device_session.sh [--short] [--bin FOLDER] [--out FOLDER]
#   realrun/device_session.sh --stand-in [--short] ...    the same flow on the CPU, with tiny scenarios
#
# FOLDER of --bin holds the two programs (and the libraries that travel with them); without it ./build does, or they are
# built there. Each part has a time limit and its own log under --out (default ${OUT:-./device_session}); one that fails
# does not stop the others. Exit code: how many parts failed.
set -u -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
short=no
stand_in=no
bin=
out=${OUT:-./device_session}
while [ $# -gt 0 ]; do
  case $1 in
    --short) short=yes ;;
    --stand-in) stand_in=yes ;;
    --bin) bin=${2:?--bin needs a folder}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    -h | --help) sed -n '2,14p' "$0" | cut -c3-; exit 0 ;;
    *) echo "device_session.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
began=$(date +%s)
if [ $short = yes ]; then total=180; else total=600; fi
patience=1
if [ $stand_in = yes ]; then patience=4; fi  # a busy machine, or a build with sanitizers
total=$((total * patience))

# --- Parts

summary=$out/summary.txt
: >"$summary"
failed=0

left() { echo $((total - ($(date +%s) - began))); }

# part NAME SECONDS COMMAND...: runs it within SECONDS and what is left of the session.
part() {
  local name=$1 limit=$(($2 * patience)) start code word
  shift 2
  if [ "$(left)" -lt "$limit" ]; then limit=$(left); fi
  if [ "$limit" -lt 3 ]; then
    printf '%-44s %8s  no time left\n' "$name" - | tee -a "$summary"
    failed=$((failed + 1))
    return 1
  fi
  start=$(date +%s)
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  case $code in
    0) word=passed ;;
    124 | 137) word="over its $limit s" ;;
    *) word="failed ($code): $(tail -n 1 "$out/$name.log" | cut -c1-100)" ;;
  esac
  printf '%-44s %6d s  %s\n' "$name" $(($(date +%s) - start)) "$word" | tee -a "$summary"
  if [ $code -ne 0 ]; then failed=$((failed + 1)); fi
  return $code
}

skipped() { printf '%-44s %8s  skipped: %s\n' "$1" - "$2" | tee -a "$summary"; }

# --- Programs

if [ -z "$bin" ]; then
  bin=$root/build
  if [ $stand_in = no ] && [ ! -x "$bin/orrery-gpu" ]; then
    part build 300 bash -c "cmake -S '$root' -B '$bin' -DORRERY_CUDA=ON && cmake --build '$bin' --parallel --target orrery-gpu orrery-cuda-tests"
  fi
fi
if [ $stand_in = yes ]; then
  device=cpu
  program=$bin/orrery
  if [ ! -x "$program" ]; then program=$bin/orrery-gpu; fi
else
  device=cuda
  program=$bin/orrery-gpu
  # Where the libraries may be, beside the usual places: PyTorch brings its own.
  for folder in "$bin" /usr/local/cuda/lib64 $(python3 -c 'import glob, site
for base in site.getsitepackages(): print(*glob.glob(base + "/nvidia/*/lib"))' 2>/dev/null); do
    if [ -d "$folder" ]; then LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
  done
  export LD_LIBRARY_PATH
fi
if ! "$program" --version >"$out/version.txt" 2>&1; then
  echo "device_session.sh: $program does not run here: $(tail -n 1 "$out/version.txt")" >&2
  exit 2
fi

run() { "$program" run "$@" --device "$device"; }
export -f run
export program device

# --- Machine

if [ $stand_in = no ]; then
  part machine 20 bash -c "nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu,ecc.mode.current --format=csv | tee '$out/machine.csv'"
fi

# --- Correctness: kernels, then strategies (ranks as threads on the one device) against one rank

if [ $stand_in = yes ]; then
  skipped kernels "a GPU's kernels"
else
  part kernels 90 "$bin/orrery-cuda-tests" "--gtest_filter=-Nccl*" "--gtest_output=json:$out/kernels.json"
  part processes_over_nccl 60 "$bin/orrery-cuda-tests" "--gtest_filter=Nccl.*" "--gtest_output=json:$out/nccl.json"
fi

# NAME SETTING...: of small-gpt, smaller still.
check() {
  local name=$1 sets=()
  shift
  for setting in "$@"; do sets+=(--set "$setting"); done
  part "check_$name" 30 bash -c 'run small-gpt --check --steps 0 --set model.layers=2 --set model.hidden=64 \
    --set model.vocab=512 --set model.max_positions=64 --set workload.sequence_length=64 --set workload.global_batch_size=4 \
    --json "$1" "${@:2}"' - "$out/check_$name.json" "${sets[@]}"
}
check one_rank
check tensor_parallel plan.tensor_parallel=2 plan.sequence_parallel=true
check zero_3 plan.data_parallel=2 plan.zero_stage=3 plan.micro_batch_size=1
if [ $short = no ]; then
  check data_parallel plan.data_parallel=2
  check zero_1 plan.data_parallel=2 plan.zero_stage=1
  check pipeline plan.pipeline_parallel=2 plan.micro_batch_size=1
  check context_parallel plan.context_parallel=2
  check recompute plan.recompute=full
  check memo model.layers=4 plan.memo=true plan.memo_alpha=0.5
  check experts model.experts=4 model.experts_per_token=2 plan.data_parallel=2 plan.expert_parallel=2 plan.micro_batch_size=1
  if [ $stand_in = no ]; then
    check bf16 plan.precision=bf16
    check fp8 plan.precision=fp8
  fi
fi

# Ranks as processes over NCCL: started by mpirun, or as torchrun would start them. On one GPU they share it.
over_nccl() {
  local settings=(--set model.layers=2 --set model.hidden=64 --set model.vocab=512 --set model.max_positions=64
    --set workload.sequence_length=64 --set workload.global_batch_size=4 --set plan.tensor_parallel=2)
  if command -v mpirun >/dev/null; then
    run small-gpt --ranks mpi --check --steps 4 "${settings[@]}" --json "$out/nccl_ranks.json"
    return
  fi
  local ids other code
  ids=$(mktemp -d) || return 2
  RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "$program" rank small-gpt --check "${settings[@]}" --id-directory "$ids" &
  other=$!
  RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 "$program" rank small-gpt --check "${settings[@]}" --id-directory "$ids" |
    tee "$out/nccl_ranks.json"
  code=$?
  wait "$other" || code=$?
  rm -rf "$ids"
  return "$code"
}
export -f over_nccl
export out
if [ $stand_in = yes ]; then
  skipped ranks_over_nccl "a GPU's"
elif "$program" rank small-gpt 2>&1 | grep -q 'without NCCL'; then
  skipped ranks_over_nccl "built without NCCL"
else
  part ranks_over_nccl 60 bash -o pipefail -c over_nccl
fi

# --- Benchmarks, PyTorch beside them

if [ $stand_in = yes ]; then
  part bench 20 "$program" bench --device "$device" --filter 'add|norm' --repetitions 2 --min-time 0.001 --output "$out/bench.json"
elif [ $short = yes ]; then
  part bench 40 "$program" bench --device "$device" --repetitions 3 --output "$out/bench.json"
else
  part bench 90 "$program" bench --device "$device" --output "$out/bench.json"
fi
if [ $stand_in = yes ]; then
  skipped torch "a GPU's"
elif ! python3 -c 'import torch' 2>/dev/null; then
  skipped torch "python3 has no torch"
elif [ $short = yes ]; then
  part torch 40 python3 "$root/realrun/torch_reference.py" --short --output "$out/torch.json"
else
  part torch 150 python3 "$root/realrun/torch_reference.py" --output "$out/torch.json"
fi

# --- Calibration, then whole steps predicted and measured

calibration=$out/calibration.json
if [ $stand_in = yes ]; then
  # As little as can be fitted: what a slow or busy machine has not measured in one turn it measures in the next ones.
  rm -f "$out/calibration.points.jsonl"
  part calibrate 75 bash -c 'for turn in {1..7}; do "$program" calibrate --device "$device" --quick --budget 10s \
    --output "$1" --journal "$2" && exit; done; exit 1' - "$calibration" "$out/calibration.points.jsonl"
elif [ $short = yes ]; then
  part calibrate 45 "$program" calibrate --device "$device" --quick --budget 30s --restart --output "$calibration" --journal "$out/calibration.points.jsonl"
else
  part calibrate 120 "$program" calibrate --device "$device" --budget 100s --restart --output "$calibration" --journal "$out/calibration.points.jsonl"
fi
with_calibration=()
if [ -s "$calibration" ]; then with_calibration=(--calibration "$calibration"); fi

# step NAME SCENARIO SETTING...
step() {
  local name=$1 scenario=$2 sets=()
  shift 2
  for setting in "$@"; do sets+=(--set "$setting"); done
  part "step_$name" 40 bash -c 'run "$1" --predict --steps 6 --warmup 2 --json "$2" "${@:3}"' - "$scenario" \
    "$out/step_$name.json" "${with_calibration[@]}" "${sets[@]}"
}
if [ $stand_in = yes ]; then
  step small small-gpt model.layers=2 model.hidden=64 model.vocab=512 workload.sequence_length=64 workload.global_batch_size=2
  step small_offload small-gpt model.layers=2 model.hidden=64 model.vocab=512 workload.sequence_length=64 \
    workload.global_batch_size=2 plan.optimizer_offload=true
else
  cat >"$out/scenario.json" <<'JSON'
{
  "model": "gpt2-124m",
  "cluster": {"device": "H200-SXM5-141GB", "nodes": 1, "devices_per_node": 1},
  "workload": {"sequence_length": 1024, "global_batch_size": 8},
  "plan": {"data_parallel": 1, "micro_batch_size": 8, "precision": "bf16", "framework": "orrery"}
}
JSON
  llama=(model=llama-3-8b model.layers=4 workload.global_batch_size=1 plan.micro_batch_size=1)
  step gpt2_124m "$out/scenario.json"
  step gpt2_1.5b "$out/scenario.json" model=gpt2-1.5b
  step llama_4_layers_8192 "$out/scenario.json" "${llama[@]}" workload.sequence_length=8192
  if [ $short = no ]; then
    step gpt2_124m_recompute "$out/scenario.json" plan.recompute=full
    step gpt2_124m_two_micro_batches "$out/scenario.json" plan.micro_batch_size=4
    step gpt2_1.5b_recompute "$out/scenario.json" model=gpt2-1.5b plan.recompute=full
    step gpt2_1.5b_offload "$out/scenario.json" model=gpt2-1.5b plan.optimizer_offload=true
    step gpt2_1.5b_fp8 "$out/scenario.json" model=gpt2-1.5b plan.precision=fp8
    step llama_4_layers_2048 "$out/scenario.json" "${llama[@]}" workload.sequence_length=2048
    step llama_4_layers_4096 "$out/scenario.json" "${llama[@]}" workload.sequence_length=4096
    step llama_4_layers_8192_recompute "$out/scenario.json" "${llama[@]}" workload.sequence_length=8192 plan.recompute=full
    step llama_4_layers_8192_selective "$out/scenario.json" "${llama[@]}" workload.sequence_length=8192 \
      plan.recompute=selective
    # MEMO's copies behind attention: two of four layers are swapped, half of their tokens.
    step llama_4_layers_32768_memo "$out/scenario.json" "${llama[@]}" model.max_positions=32768 \
      workload.sequence_length=32768 plan.memo=true plan.memo_alpha=0.5
  fi
fi

# --- Predictions against measurement, in a table

if command -v python3 >/dev/null; then
  python3 - "$out" <<'PY' | tee -a "$summary"
import glob, json, os, sys

rows = []
for path in sorted(glob.glob(os.path.join(sys.argv[1], "step_*.json"))):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    rows.append((os.path.basename(path)[5:-5], document["measured"], document["predicted"], document["step_error"]))
if rows:
    print(f"\n{'step':<34} {'measured':>12} {'predicted':>12} {'error':>8}")
for name, measured, predicted, error in rows:
    print(f"{name:<34} {measured['step_seconds']:>10.4g} s {predicted['step_seconds']:>10.4g} s {error:>+8.1%}")
PY
fi
grep -h ' beside copy_' "$out"/calibrate.log 2>/dev/null | grep attention | tee -a "$summary"
echo "$failed parts failed, $(($(date +%s) - began)) s; everything is in $out" | tee -a "$summary"
exit "$failed"
