#!/usr/bin/env bash
# `make demo`: paged attention as a custom call inside real XLA, from C++ and then from JAX.
set -euo pipefail
cd "$(dirname "$0")/.."
build/release/xla-gpu demo
.venv/bin/python examples/jax/demo.py
cat <<END

The program is build/release/xla-gpu, with its library beside it:
  export PATH=$PWD/build/release:\$PATH    # then: xla-gpu doctor, xla-gpu help
\`pip install .\` in an environment of yours puts it on PATH there, with the Python package.
END
