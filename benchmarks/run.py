"""`make bench`: the CPU's benchmarks, and the GPU's where JAX finds one."""

from __future__ import annotations

import sys

import cpu
import gpu
import jax


def main() -> None:
    cpu.main(sys.argv[1:])
    if jax.default_backend() == "gpu":
        gpu.main(sys.argv[1:])
    else:
        print("no GPU that JAX can use: benchmarks/gpu.py is not run")


if __name__ == "__main__":
    main()
