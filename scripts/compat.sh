#!/usr/bin/env bash
# `make compat`: the tests with every supported jax, torch and Triton release.
# Usage: scripts/compat.sh [jax|torch|triton|VERSION...]
set -euo pipefail
cd "$(dirname "$0")/.."
exec ${PYTHON:-.venv/bin/python} scripts/compat.py "$@"
