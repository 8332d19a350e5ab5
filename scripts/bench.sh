#!/usr/bin/env bash
# `make bench`: every benchmark on this machine; tables and plots go to docs/benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."
# Arrays of XLA's CPU client in 2 MB pages where the kernel lets programs choose them, as NumPy's
# already are: in 4 KB pages no program here reads memory at its full speed.
export GLIBC_TUNABLES="${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}"
.venv/bin/python benchmarks/run.py "$@"
