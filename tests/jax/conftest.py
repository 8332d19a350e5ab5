"""Puts the oracle beside the tests, and sums up the errors that the property tests saw."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

from compare import Histogram


@pytest.fixture(scope="module")
def histogram(request):
    """The errors of a module's cases, printed when they are through."""
    seen = Histogram()
    yield seen
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{request.module.__name__}: error against fp64\n{seen}")
