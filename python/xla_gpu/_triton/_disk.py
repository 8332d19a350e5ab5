"""What is kept on disk between processes, in the folder of compiled kernels: small JSON files."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterable
from typing import Any


def path_of(kind: str, facts: Iterable[object]) -> pathlib.Path | None:
    """The file of a kind ("autotune") for these facts; None without a cache on disk.

    Args:
      kind: a folder of the cache.
      facts: all that what is kept depends on; their texts must be equal in every process.
    """
    folder = os.environ.get("XLA_GPU_CACHE_DIR")
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME", "")
        home = pathlib.Path(base) if base.startswith("/") else pathlib.Path.home() / ".cache"
        folder = str(home / "xla_gpu")
    if not folder:
        return None
    digest = hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()
    return pathlib.Path(folder) / kind / f"{digest}.json"


def read(path: pathlib.Path | None) -> Any:
    """What a file tells; None where there is none, or it is damaged."""
    if path is None:
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def write(path: pathlib.Path | None, value: Any, what: str) -> None:
    """Keeps a value, if it can: no reader sees half a file.

    Args:
      path: of path_of.
      value: as JSON takes it.
      what: it is, for the warning where it cannot be kept.
    """
    if path is None:
        return
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(value, file)
        os.replace(file.name, path)  # noqa: PTH105
    except OSError as e:
        warnings.warn(f"{path}: {what} could not be kept: {e}", RuntimeWarning, stacklevel=2)
