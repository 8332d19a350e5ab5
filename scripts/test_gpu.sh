#!/usr/bin/env bash
# `make test-gpu`: everything that needs an NVIDIA GPU, in one command and offline. Uses the build in
# build/release as it is (it may come from a machine without a GPU); builds first only where there is
# none. The Python is $PYTHON, else that of .venv, else python3; it must have JAX with its CUDA plugin.
# The transcript stays in build/test-gpu.log.
set -uo pipefail
cd "$(dirname "$0")/.."
release=$PWD/build/release
log=build/test-gpu.log

[[ -e /dev/nvidiactl ]] || { echo "test-gpu: this machine shows no NVIDIA GPU (/dev/nvidiactl)" >&2; exit 1; }
[[ -x $release/xla-gpu ]] || make --no-print-directory build || exit 1
python=${PYTHON:-.venv/bin/python}
"$python" -c '' 2>/dev/null || python=python3
export XLA_GPU_LIBRARY=$release/libxla_gpu.so XLA_GPU_PROGRAM=$release/xla-gpu
export XLA_GPU_COMPILER=$release/xla-gpu-compile PYTHONPATH=$PWD/python
# Where the plugin and the pip packages of CUDA are.
VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')
export VIRTUAL_ENV

failed=()
part() {
  local name=$1 start=$SECONDS
  shift
  echo "==== $name"
  "$@" && echo "==== $name: ok in $((SECONDS - start)) s" ||
    { echo "==== $name: FAILED in $((SECONDS - start)) s"; failed+=("$name"); }
}
cpp_tests() {
  local test status=0
  for test in "$release"/tests/*gpu_test; do "$test" --gtest_brief=1 || status=1; done
  return $status
}
# Every kernel test under a checker; only where the CUDA toolkit's compute-sanitizer is installed.
sanitizer() {
  local test status=0
  for test in "$release"/tests/*gpu_test; do
    compute-sanitizer --tool "$1" --error-exitcode 1 "$test" --gtest_brief=1 || status=1
  done
  return $status
}

{
  part doctor "$release/xla-gpu" doctor
  part cpp cpp_tests
  part python "$python" -m pytest -m gpu tests
  part probe "$release/xla-gpu" probe
  if command -v compute-sanitizer >/dev/null; then
    part memcheck sanitizer memcheck
    part racecheck sanitizer racecheck
  else
    echo "==== memcheck, racecheck: skipped, compute-sanitizer is not on PATH"
  fi
  echo "==== $((${#failed[@]})) parts failed: ${failed[*]:-none}"
  ((${#failed[@]} == 0))
} 2>&1 | tee "$log"
exit "${PIPESTATUS[0]}"
