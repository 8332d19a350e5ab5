"""Ends an example that cannot run here with a message and exit code 2."""

import importlib.util
import sys
from typing import NoReturn


def require(module: str = "", install: str = "", *, gpu: bool = False) -> None:
    """A module, with what pip calls it; an NVIDIA GPU that JAX runs on."""
    if module and importlib.util.find_spec(module) is None:
        stop(f"{module} is not installed: pip install {install or module}")
    if gpu:
        import jax

        if jax.default_backend() != "gpu":
            stop(f"it needs an NVIDIA GPU, and JAX {jax.__version__} runs on the CPU here")


def stop(reason: str) -> NoReturn:
    print(f"{sys.argv[0]}: {reason}", file=sys.stderr)
    sys.exit(2)
