"""Handlers into JAX's registry of custom-call targets."""

from __future__ import annotations

import functools
import pathlib
import re

import jaxlib.version
from jaxlib import xla_client

from xla_gpu import _lib, _schema
from xla_gpu._errors import InvalidArgumentError, StatusCode, XlaGpuError
from xla_gpu.jax import _compat

_registered: set[tuple[str, str]] = set()
_handlers: dict[tuple[str, str], int] = {}  # of kernels of the user's, by target


def register_target(name: str, platform: str, api_version: int, stages: dict[str, int]) -> None:
    """Registers handler addresses in JAX; a CUDA one waits there until the plugin is loaded.

    Args:
      name: the custom-call target.
      platform: "Host" or "CUDA".
      api_version: 1 to 3 (untyped; stages must hold "execute" alone) or 4 (typed FFI).
      stages: addresses by stage: "execute" and perhaps "instantiate", "prepare", "initialize".

    Raises:
      XlaGpuError: ALREADY_EXISTS where JAX has another handler of this name.
    """
    jax_platform = "cpu" if platform == "Host" else platform
    try:
        if api_version == 4:
            capsules = {stage: _lib.capsule_of(address) for stage, address in stages.items()}
            _compat.ffi.register_ffi_target(name, capsules, platform=jax_platform, api_version=1)
        else:
            capsule = _lib.capsule_of(stages["execute"])
            xla_client.register_custom_call_target(
                name, capsule, platform=jax_platform, api_version=0
            )
    except RuntimeError as error:  # JAX's own is one
        if "uplicate" not in str(error):
            raise
        raise XlaGpuError(
            f"{name}: another handler has this name on {platform}, which XLA cannot replace, so "
            f"choose another name ({error})",
            StatusCode.ALREADY_EXISTS,
        ) from None


@functools.cache
def runtime_ffi_version() -> tuple[str, tuple[int, int]]:
    """("jaxlib 0.7.2", (0, 1)): what the runtime of this process is, and its FFI version.

    Read from the headers that jaxlib ships; JAX's CUDA plugins are released with jaxlib.
    """
    runtime = f"jaxlib {jaxlib.version.__version__}"
    header = pathlib.Path(_compat.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text() if header.is_file() else ""
    major, minor = (re.search(rf"define XLA_FFI_API_{p} (\d+)", text) for p in ("MAJOR", "MINOR"))
    if major is None or minor is None:
        return runtime, (0, 1)  # without headers: what every supported release has
    return runtime, (int(major[1]), int(minor[1]))


def register_op(op: str, platform: str) -> None:
    """Registers an op of the library by typed FFI, once per process and platform."""
    with _lib.registration_lock:
        if (op, platform) in _registered:
            return
        address = _lib.handler_address(op, platform, 4)
        stages = {"instantiate": address, "execute": address}
        schema = _schema.schema(op)
        known = _handlers.get((schema.target, platform)) if schema.key else None
        if known is None:
            register_target(schema.target, platform, 4, stages)
        elif known != address:  # XLA cannot replace it
            raise InvalidArgumentError(
                f"{schema.target}: a kernel of this name with another `capture` is registered "
                "already; give one of them another name"
            )
        if schema.key:
            _handlers[schema.target, platform] = address
        _registered.add((op, platform))
