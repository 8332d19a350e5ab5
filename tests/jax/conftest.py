"""Makes the oracle and the helpers importable, and sums up the errors of property tests."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from compare import Histogram


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): runs in one pytest-xdist worker")


@pytest.fixture(scope="module")
def histogram(request):
    """The errors of a module's cases, printed when they are through."""
    seen = Histogram()
    yield seen
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{request.module.__name__}: error against fp64\n{seen}")
