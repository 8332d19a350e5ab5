"""Tests that need an NVIDIA GPU: they skip with a reason where JAX finds none."""

import functools
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

from compare import Histogram


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


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU (make test-gpu)")


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).resolve().parent
    ours = [item for item in items if here in pathlib.Path(item.fspath).parents]
    if not ours:
        return
    reason = why_no_gpu()
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def histogram(request):
    """The errors of a module's cases, printed when they are through."""
    seen = Histogram()
    yield seen
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{request.module.__name__}: error against fp64\n{seen}")
