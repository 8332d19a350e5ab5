"""The torch ops on the CPU: needs torch, any release from 2.4 on."""

import importlib.util

from fixtures import histogram  # noqa: F401

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
