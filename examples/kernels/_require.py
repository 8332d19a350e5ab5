"""Ends an example that cannot run here with a message and exit code 2."""

import importlib.util
import shutil
import sys


def require(module: str = "", install: str = "", *, gpu: bool = False, program: str = "") -> None:
    """A module, with what pip calls it; an NVIDIA GPU that JAX runs on; a program on PATH."""
    if module and importlib.util.find_spec(module) is None:
        _stop(f"{module} is not installed: pip install {install or module}")
    if program and shutil.which(program) is None:
        _stop(f"{program} is not on PATH")
    if gpu:
        import jax

        if jax.default_backend() != "gpu":
            _stop(f"it needs an NVIDIA GPU, and JAX {jax.__version__} runs on the CPU here")


def _stop(reason: str) -> None:
    print(f"{sys.argv[0]}: {reason}", file=sys.stderr)
    sys.exit(2)
