#!/usr/bin/env bash
# All tests that need an NVIDIA GPU, in one command and offline. Uses the library in build/release
# wherever it was built; the stock JAX CUDA plugin of the Python that PYTHON names (default: .venv's
# if it has one, else python3). Prints a summary a step; with OUT set, each step's log goes there.
# Where time on the GPU is short, step warm goes before, on a machine without one but with the GPU's
# NVRTC: it fills the folder XLA_GPU_CACHE_DIR with what the C++ tests load, to be taken along.
# Usage: scripts/test_gpu.sh [STEP...]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
release=$PWD/build/release
export XLA_GPU_LIBRARY=${XLA_GPU_LIBRARY:-$release/libxla_gpu.so}
export XLA_GPU_PROGRAM=${XLA_GPU_PROGRAM:-$release/xla-gpu}
export XLA_GPU_COMPILER=${XLA_GPU_COMPILER:-$release/xla-gpu-compile}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
export XLA_PYTHON_CLIENT_PREALLOCATE=false
logs=${OUT:-build/test-gpu}
mkdir -p "$logs"

has_gpu() { "$1" -c 'import jax; assert jax.default_backend() == "gpu"' >/dev/null 2>&1; }
python=${PYTHON:-}
[[ -n $python ]] || { has_gpu .venv/bin/python && python=.venv/bin/python; } || python=python3
VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')  # where the program looks for packages
export VIRTUAL_ENV

[[ -f $XLA_GPU_LIBRARY ]] || { echo "test-gpu: $XLA_GPU_LIBRARY is missing: run make build"; exit 1; }
"$XLA_GPU_PROGRAM" doctor >"$logs/doctor.log" 2>&1
has_gpu "$python" || echo "test-gpu: $python has no JAX with a GPU; what needs one is skipped" >&2

step_doctor() { "$XLA_GPU_PROGRAM" doctor; }
step_probe() {
  "$XLA_GPU_PROGRAM" probe | tee "$logs/probe.txt" || return
  ! has_gpu "$python" || grep -q '^JAX, backend cuda' "$logs/probe.txt" ||
    { echo "probe did not try JAX's own registry on the GPU"; return 1; }
}
step_cpp() {
  local test failed=0
  for test in "$release"/tests/*gpu_test; do
    echo "== $(basename "$test")"
    "$test" --gtest_brief=1 || failed=1
  done
  return $failed
}
# With a driver that does nothing, which the compiler must not find; the Host computes what is checked.
step_warm() {
  mkdir -p "$logs/driver"
  ln -sf "$release"/tests/libfake_libcuda.so "$logs/driver/libcuda.so.1"
  printf '#!/bin/sh\nunset LD_LIBRARY_PATH\nexec "%s" "$@"\n' "$XLA_GPU_COMPILER" >"$logs/compile"
  chmod +x "$logs/compile"
  local test
  for test in "$release"/tests/*gpu_test; do
    echo "== $(basename "$test")"
    XLA_GPU_COMPILER=$logs/compile LD_LIBRARY_PATH=$logs/driver FAKE_CUDA_VERSION=13050 \
      XLA_GPU_TEST_WARM=1 XLA_GPU_LOG=info "$test" --gtest_brief=1 \
      --gtest_filter='-KernelGpuTest*:*SimpleAddGpuTest*:*Graph*:*SumsDoNotDrift*' 2>&1 | grep -vF ': loaded on' || return
  done
}
step_host() { "$XLA_GPU_PROGRAM" demo --plugin cuda; }
step_jax() {
  "$python" -m pytest -q -p no:cacheprovider tests/gpu tests/jax/test_llama_engine.py \
    tests/jax/test_serve_llama.py --ignore tests/gpu/test_torch_cuda.py
}
step_torch() {  # in a process without JAX; then the host time of a call beside other libraries
  "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_torch_cuda.py tests/xla_gpu/test_simple_custom_op.py &&
    "$python" benchmarks/torch_overhead.py --device cuda
}
step_torchax() {
  "$python" -c 'import jax, torchax; print("torchax on", jax.default_backend())' ||
    { echo "skipped: $python has no torchax (pip install torchax flax)"; return 0; }
  "$python" -m pytest -q -p no:cacheprovider tests/torchax
}
# PyTorch/XLA needs a torch of its own: TORCH_XLA_PYTHON is the Python that has both (default:
# .venv-torch's), TORCH_XLA_PLUGIN the stock CUDA plugin for it, where it finds none by itself.
step_torch_xla() {
  local torch_python=${TORCH_XLA_PYTHON:-.venv-torch/bin/python}
  export XLA_GPU_PJRT_PLUGIN=${TORCH_XLA_PLUGIN:-cuda}
  "$torch_python" -c 'import pytest, torch_xla; print("torch_xla", torch_xla.__version__)' ||
    { echo "skipped: $torch_python has no torch_xla or no pytest (make test-torch)"; return 0; }
  "$torch_python" -m pytest -q -p no:cacheprovider tests/torch_xla tests/xla_gpu
}
# vLLM on XLA needs a Python 3.12 of its own: VLLM_PYTHON (default: .venv-vllm's), with JAX's CUDA
# plugin.
step_vllm() {
  local vllm_python=${VLLM_PYTHON:-.venv-vllm/bin/python}
  "$vllm_python" -c 'import importlib.util as u, pytest; assert u.find_spec("tpu_inference")' ||
    { echo "skipped: $vllm_python has no tpu_inference or no pytest (make test-vllm)"; return 0; }
  "$vllm_python" tests/gpu/vllm_suite.py serving engine
}
step_demo() { "$python" -m xla_gpu.demo; }
step_sanitize() { "$python" scripts/sanitize_gpu.py --release "$release" --out "$logs/sanitize"; }

failed=()
steps=("$@")
((${#steps[@]})) || steps=(doctor probe cpp host jax torch torchax torch_xla vllm demo sanitize)
for step in "${steps[@]}"; do
  start=$SECONDS verdict=ok
  echo "==== $step"
  "step_$step" >"$logs/$step.log" 2>&1 || { verdict=FAILED; failed+=("$step"); }
  if [[ $verdict == FAILED ]]; then tail -n 60 "$logs/$step.log"; else tail -n 25 "$logs/$step.log"; fi
  echo "==== $step: $verdict in $((SECONDS - start)) s"
done
((${#failed[@]} == 0)) || { echo "test-gpu: failed: ${failed[*]}"; exit 1; }
echo "test-gpu: ${#steps[@]} passed, 0 failed"
