"""Legacy and typed custom calls through JAX's own XLA on the CPU, with handlers of our choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxlib import xla_client
from xla_gpu import _lib, _ops

try:
    from jax import ffi as _ffi
except ImportError:  # before jax 0.5
    from jax.extend import ffi as _ffi

_COUNTER = itertools.count()


def register(address: int, api_version: int) -> str:
    """Puts a handler into JAX's registry for the CPU; the fresh name of its target."""
    target = f"legacy_test_{next(_COUNTER)}"
    capsule = _lib.capsule_of(address)
    typed = api_version == 4
    handlers = {"instantiate": capsule, "execute": capsule} if typed else capsule
    xla_client.register_custom_call_target(
        target, handlers, platform="cpu", api_version=1 if typed else 0
    )
    return target


def custom_call(
    target: str, api_version: int, backend_config: str, results: Sequence[Any], **attrs: Any
) -> Callable[..., list[jax.Array]]:
    """A jitted function that is this custom call alone.

    `results`: arrays of the types that it returns; `attrs`: typed attributes (version 4 only).
    """
    typed = api_version == 4
    call = _ffi.ffi_call(
        target,
        [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results],
        custom_call_api_version=api_version,
        legacy_backend_config=None if typed else backend_config,
    )
    return jax.jit(lambda *args: call(*args, **attrs))


def opaque(op: str, args: Sequence[Any], attrs: Mapping[str, Any] | None = None) -> str:
    """The library's opaque text for a call with arguments of these arrays' types."""
    return _ops.opaque(op, "Host", [_ops.spec_of(a) for a in args], attrs or {})


def call_by_version(
    version: int,
    op: str,
    args: Sequence[Any],
    results: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
) -> Callable[..., list[jax.Array]]:
    """The op as a jitted function, for arguments and results of these arrays' types."""
    attrs = dict(attrs or {})
    text = opaque(op, args, attrs)
    if version < 3:  # on the CPU such calls carry no text: it lies in an alias of the target
        target = register(_lib.handler_address(op, "Host", version, text), version)
        return custom_call(target, version, "", results)
    target = register(_lib.handler_address(op, "Host", version), version)
    return custom_call(target, version, text, results, **(attrs if version == 4 else {}))
