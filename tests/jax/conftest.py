"""What the JAX tests share."""

from fixtures import histogram  # noqa: F401


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): runs in one pytest-xdist worker")
