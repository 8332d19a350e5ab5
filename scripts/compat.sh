#!/usr/bin/env bash
# `make compat`: the tests with every supported jax and torch release.
# Usage: scripts/compat.sh [jax|torch|VERSION...]
set -euo pipefail
cd "$(dirname "$0")/.."
exec ${PYTHON:-.venv/bin/python} scripts/compat.py "$@"
