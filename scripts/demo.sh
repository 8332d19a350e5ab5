#!/usr/bin/env bash
# `make demo`: paged attention as a custom call inside real XLA, from C++ and then from JAX.
set -euo pipefail
cd "$(dirname "$0")/.."
build/release/xla-gpu demo
.venv/bin/python examples/jax/demo.py
