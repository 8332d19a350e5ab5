"""Tests that need an NVIDIA GPU: they skip with a reason where their framework finds none."""

import functools
import pathlib

import pytest
from fixtures import histogram  # noqa: F401


@functools.cache
def why_no_gpu():
    """The reason to skip, or ""."""
    try:
        import jax

        backend = jax.default_backend()
    except Exception as e:
        return f"JAX does not start: {e}"
    if backend != "gpu":
        return f"JAX runs on {backend} here, and these tests need an NVIDIA GPU"
    from xla_gpu import ops

    missing = [op["name"] for op in ops() if "CUDA" not in op["platforms"]]
    return f"this library has no CUDA kernel of {', '.join(missing)}" if missing else ""


@functools.cache
def why_no_torch_gpu():
    """The reason to skip a test of the torch ops, or ""."""
    try:
        import torch
    except Exception as e:
        return f"torch does not start: {e}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU here"
    return ""


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU (make test-gpu)")


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).resolve().parent
    ours = [item for item in items if here in pathlib.Path(item.fspath).parents]
    if not ours:
        return
    for item in ours:
        torch_test = pathlib.Path(item.fspath).name.startswith("test_torch")
        reason = why_no_torch_gpu() if torch_test else why_no_gpu()
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
