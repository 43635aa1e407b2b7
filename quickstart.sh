#!/usr/bin/env bash
# From a bare Debian 12 to a result: installs what is missing, builds, and
#   ./quickstart.sh run    predicts a training step of Llama-3-70B on 512 H100s
#   ./quickstart.sh test   runs all tests
# Needs root or sudo for the packages only. Safe to repeat: what is done is not done again.
set -euo pipefail
cd "$(dirname "$0")"

build_packages=(g++ cmake ninja-build nlohmann-json3-dev libfmt-dev libcli11-dev libsimgrid-dev libeigen3-dev
                libbenchmark-dev libsqlite3-dev coinor-libcbc-dev)
test_packages=(libgtest-dev libgmock-dev python3 python3-dev pybind11-dev python3-jsonschema jupyter-nbconvert
               python3-ipykernel python3-matplotlib libopenmpi-dev openmpi-bin iproute2)

usage() {
  sed -n '2,5s/^# \{0,1\}//p' "$0"
  exit 2
}

install() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "quickstart: run as root, or install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  echo "quickstart: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# build TARGET OPTION...
build() {
  cmake --preset default "${@:2}"
  cmake --build --preset default --parallel "$(nproc)" --target "$1"
}

case "${1:-}" in
  run)
    install "${build_packages[@]}"
    build orrery -DORRERY_TESTS=OFF -DORRERY_BENCHMARKS=OFF
    build/default/orrery simulate llama-3-70b-512-h100
    ;;
  test)
    install "${build_packages[@]}" "${test_packages[@]}"
    build all -DORRERY_TESTS=ON -DORRERY_BENCHMARKS=ON
    ctest --preset default --parallel "$(($(nproc) + 1))"  # some tests wait: for signals, ranks, an empty port
    ;;
  *) usage ;;
esac
