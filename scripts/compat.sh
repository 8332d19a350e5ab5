#!/usr/bin/env bash
# `make compat`: the JAX tests with every supported jax release. Usage: scripts/compat.sh [VERSION...]
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python scripts/compat.py "$@"
