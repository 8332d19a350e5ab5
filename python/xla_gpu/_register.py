"""`xla_gpu.register`: a handler into the XLA runtimes of this process."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from xla_gpu import _given, _handlers, _lib
from xla_gpu._errors import (
    InvalidArgumentError,
    StatusCode,
    UnimplementedError,
    XlaGpuError,
    make_error,
)

_PLATFORMS = {
    "Host": "Host",
    "cpu": "Host",
    "CUDA": "CUDA",
    "cuda": "CUDA",
    "GPU": "CUDA",
    "gpu": "CUDA",
}
# Beside plugin paths in _registered's keys.
_JAX = "jax"
_LOADED_PLUGIN = ""

# (runtime, name, platform) -> (api_version, stages)
_registered: dict[tuple[str, str, str], tuple[int, dict[str, int]]] = {}


def register(
    name: str,
    handler: Any,
    *,
    platform: str,
    api_version: int = 4,
    pjrt_plugin: str | os.PathLike[str] | None = None,
) -> None:
    """Makes `handler` what XLA calls for the custom-call target `name`.

    It goes into JAX, for every later compilation, before or after the first use of a device; or
    into one PJRT plugin (each has a registry of its own): the one that is named or, without JAX,
    the one that this process has loaded for the platform. What the runtime would refuse, often
    without a word, is refused here first.

    Args:
      name: the custom call's target, e.g. "my_kernel".
      handler: "path/to/lib.so:symbol", (path, symbol), an address, a ctypes function or a
        PyCapsule; or a dict of these by stage ("instantiate", "prepare", "initialize", "execute").
        It must live as long as the process; libraries loaded here do.
      platform: "CUDA" ("cuda", "GPU", "gpu") or "Host" ("cpu").
      api_version: the call's: 4 for a typed-FFI handler, 1, 2 or 3 for the untyped signatures.
      pjrt_plugin: path of a PJRT plugin (.so), loaded if it is not yet; None for JAX or, if that
        is not installed, the plugin that is loaded.

    Raises:
      InvalidArgumentError (a ValueError): a wrong name, platform, version, or what is no handler.
      NotFoundError (a LookupError): no such library or symbol.
      XlaGpuError: FAILED_PRECONDITION where the runtime's FFI is older than the handler's;
        ALREADY_EXISTS where another handler has the name.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"register: name is {name!r}; it must be the custom call's target"
        )
    if not isinstance(platform, str) or platform not in _PLATFORMS:
        raise InvalidArgumentError(
            f"register: platform is {platform!r}; allowed are {', '.join(_PLATFORMS)}"
        )
    if not _given.is_int(api_version) or api_version not in (1, 2, 3, 4):
        raise InvalidArgumentError(
            f"register: api_version is {api_version!r}; allowed are 1, 2, 3 (untyped) and 4 "
            "(typed FFI)"
        )
    _lib.c_text(name, "register: name")  # before anything is registered anywhere
    stages = _handlers.stages_of(handler)
    if api_version != 4 and list(stages) != ["execute"]:
        raise InvalidArgumentError(
            f"register: {name} has the stages {', '.join(stages)}, but an untyped handler "
            f"(api_version={api_version}) has execute only"
        )
    if pjrt_plugin is not None:
        runtime = os.path.realpath(pjrt_plugin)
    else:
        runtime = _LOADED_PLUGIN if importlib.util.find_spec("jax") is None else _JAX
    key = (runtime, name, _PLATFORMS[platform])
    with _lib.registration_lock:
        if _is_known(key, api_version, stages):
            return
        if runtime == _JAX:
            _register_in_jax(name, key[2], api_version, stages)
        else:
            _register_in_plugin(runtime, name, key[2], api_version, stages)
        _registered[key] = (api_version, stages)


def _is_known(key: tuple[str, str, str], api_version: int, stages: dict[str, int]) -> bool:
    known = _registered.get(key)
    if known is None or known == (api_version, stages):
        return known is not None
    raise XlaGpuError(
        f"register: {key[1]} on {key[2]} is taken by another handler (api_version {known[0]}); "
        "XLA cannot replace it, so choose another name",
        StatusCode.ALREADY_EXISTS,
    )


def _register_in_jax(name: str, platform: str, api_version: int, stages: dict[str, int]) -> None:
    from xla_gpu.jax import _registration

    runtime, ffi = _registration.runtime_ffi_version()
    check_handler = _lib.load().xla_gpu_check_handler
    for address in stages.values():
        try:
            _lib.check(
                check_handler(name.encode(), address, platform.encode(), api_version, *ffi, None)
            )
        except XlaGpuError as e:
            raise make_error(e.code, f"register: {e} (the runtime here is {runtime})") from None
    _registration.register_target(name, platform, api_version, stages)


def _register_in_plugin(
    path: str, name: str, platform: str, api_version: int, stages: dict[str, int]
) -> None:
    if set(stages) - {"instantiate", "execute"} or len(set(stages.values())) > 1:
        raise UnimplementedError(
            f"register: {name} has a handler for each of {', '.join(stages)}; into a PJRT plugin "
            "goes one handler, as execute"
        )
    _lib.check(
        _lib.load().xla_gpu_register_pjrt(
            None,
            path.encode() or None,
            name.encode(),
            stages["execute"],
            platform.encode(),
            api_version,
        )
    )


def handler(op: str, *, platform: str, api_version: int = 4) -> object:
    """The function that XLA calls for an op of this library, as a PyCapsule.

    What jax.ffi.register_ffi_target, `register` and xla_gpu.torch_xla take.

    Args:
      op: "simple_add", "paged_attention", ...; see `xla_gpu.ops`.
      platform: "CUDA" or "Host".
      api_version: 1, 2, 3 or 4.

    Raises:
      NotFoundError, InvalidArgumentError, UnimplementedError: with the library's message.
    """
    return _lib.capsule_of(_lib.handler_address(op, platform, api_version))
