"""What is kept on disk between processes, beside the compiled kernels: JSON."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from typing import Any

from xla_gpu import _lib
from xla_gpu._errors import XlaGpuError


def _key(facts: Iterable[object]) -> bytes:
    return "\0".join(map(str, facts)).encode()


def read(facts: Iterable[object]) -> Any:
    """What was kept for these facts; None where nothing was, or it is damaged.

    Args:
      facts: all that it depends on; their texts must be equal in every process.
    """
    key = _key(facts)
    try:
        return json.loads(_lib.text_of(_lib.load().xla_gpu_cache_get, key, len(key)))
    except (XlaGpuError, ValueError, RecursionError):
        return None


def write(facts: Iterable[object], what: str, value: Any) -> None:
    """Keeps a value as JSON takes it, if it can; `what`: for the cache's list and the warning."""
    key = _key(facts)
    try:
        text = json.dumps(value).encode()
        _lib.check(_lib.load().xla_gpu_cache_put(key, len(key), what.encode(), text))
    except XlaGpuError as e:
        warnings.warn(f"{what} could not be kept: {e}", RuntimeWarning, stacklevel=2)
