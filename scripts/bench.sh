#!/usr/bin/env bash
# `make bench`: speed on this machine. A line a measurement with its units; results, tables and charts
# go to build/bench. With --update they go over the repository's, in docs/benchmarks. A quarter of an
# hour on the CPU (torch's SDPA beside ours where make test-torch has been), RUNS times that where it is
# set, and four minutes on a GPU.
# Usage: scripts/bench.sh [--update | --out FOLDER] [--quick]
set -euo pipefail
cd "$(dirname "$0")/.."
# Arrays of XLA's CPU client in 2 MB pages where the kernel lets programs choose them, as NumPy's
# already are: in 4 KB pages no program here reads memory at its full speed.
export GLIBC_TUNABLES="${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}"
with_torch=.venv/bin/python
[[ ! -e .venv-torch/.complete ]] || with_torch=.venv-torch/bin/python
echo "bench: the CPU"
"$with_torch" benchmarks/cpu.py --runs "${RUNS:-1}" "$@"
if .venv/bin/python -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")'; then
  echo "bench: the GPU"
  .venv/bin/python benchmarks/gpu.py "$@"
else
  echo "bench: no GPU that JAX can use: benchmarks/gpu.py is not run"
fi
