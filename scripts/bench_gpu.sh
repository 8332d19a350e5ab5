#!/usr/bin/env bash
# `make bench-gpu`: paged attention on an NVIDIA GPU beside every peer that is installed, to
# build/bench/GPU; with --update over docs/benchmarks/GPU. Where a peer ends the process, what is left
# is measured without it. Options are bench_gpu.py's. PYTHON: a Python with torch for CUDA and the
# peers (default: .venv-torch's); JAX_PYTHON: one with JAX's CUDA plugin (default: PYTHON, or .venv's).
# Usage: scripts/bench_gpu.sh [OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."
jax_python=${JAX_PYTHON:-${PYTHON:-.venv/bin/python}}
python=${PYTHON:-.venv-torch/bin/python}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
options=("$@")
status=0
for _ in 1 2 3 4 5; do
  status=0
  "$python" benchmarks/bench_gpu.py --jax-python "$jax_python" ${options[@]+"${options[@]}"} ||
    status=$?
  # 3: bench_gpu.py ended by itself; 127: the loader ended it, a peer having a library that does not fit
  ((status == 3 || status >= 127)) || break
  echo "bench-gpu: ended with status $status: going on without that peer and case"
  options=("$@" --continue)
done
exit "$status"
