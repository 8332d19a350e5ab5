"""`python -m xla_gpu.demo`: a ragged batch through JAX, its HLO, its error, its speed."""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """Runs the demo; says what is missing where JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        print("the demo needs JAX: pip install jax numpy", file=sys.stderr)
        return 1
    from xla_gpu.jax import demo

    return demo.main()


if __name__ == "__main__":
    sys.exit(main())
