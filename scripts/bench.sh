#!/usr/bin/env bash
# `make bench`: every benchmark on this machine; tables and plots go to docs/benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python benchmarks/run.py "$@"
