"""Fixtures that the folders of tests share: import them in a conftest.py."""

import pytest
from compare import Histogram


@pytest.fixture(scope="module")
def histogram(request):
    """The errors of a module's cases, printed when they are through."""
    seen = Histogram()
    yield seen
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{request.module.__name__}: error against fp64\n{seen}")
