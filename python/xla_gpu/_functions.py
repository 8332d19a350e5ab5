"""`xla_gpu.host_kernel` and `external_kernel`: kernels for the CPU, and functions of others."""

from __future__ import annotations

import importlib
import importlib.util
import os
from _ctypes import CFuncPtr
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_gpu import _gate, _given, _handlers
from xla_gpu._errors import InvalidArgumentError
from xla_gpu._kernel import Kernel
from xla_gpu._kernels import (
    Entry,
    Source,
    arguments_of,
    host_of,
    host_source,
    make,
    name_of,
    platforms_of,
)


def _is_function(value: Any) -> bool:
    """Whether it can be a C function in one of the forms that `_function` takes."""
    if isinstance(value, tuple):
        return len(value) == 2 and all(isinstance(one, str | os.PathLike) for one in value)
    if isinstance(value, str):
        return all(value.rpartition(":")[::2])
    return (
        (_given.is_int(value) and 0 < value < 1 << 64)
        or isinstance(value, CFuncPtr)
        or isinstance(getattr(value, "address", None), int)
        or hasattr(value, "__chandle__")
        or hasattr(value, "__tvm_ffi_object__")
        or type(value).__name__ == "PyCapsule"
    )


_FORMS = "'path/to/lib.so:symbol', (path, symbol), an address, a ctypes function or a PyCapsule"


@_given.checked(source=(_given.anything, ""), entry=_given.ENTRY)
def host_kernel(
    source: Source | Any,
    entry: str | Callable[..., str] | None = None,
    *,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    arguments: Sequence[Any] | None = None,
    parameters: Sequence[Any] | None = None,
    workspace: Any = None,
    options: Sequence[str] = (),
    name: str | None = None,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> Kernel:
    """A kernel for the CPU: C++ source, or a C function.

    Args:
      source: C++ text or the path of a file, compiled by the system's compiler ($CXX, else c++);
        or a C function: "path/to/lib.so:symbol", (path, symbol), an address, a ctypes function, a
        numba cfunc.
      entry: of a source, the function's name, or a template's instance ("scale<float>"), which may
        be a function of arguments; `name` is then the template's.
      arguments: of a C function, which tells nothing of itself: names, or {"name", "dtypes"}.
      outputs, in_place, scalars, parameters, workspace, name, vmap, gradient, sharding, doc: as of
        `cuda_kernel`. A C function takes arguments, outputs and scalars in this order unless
        `parameters` says otherwise; its scalars need a dtype.
      options: the compiler's ("-O3", "-march=native").

    Returns:
      The kernel: `kernel(x, y, alpha=2.0)`; also what `cuda_kernel` takes as `host`.

    Raises:
      InvalidArgumentError (a ValueError): for a description that does not fit the source.
      NotFoundError: no such file, library or symbol.
    """
    host: dict[str, Any]
    if entry is not None:
        if not _given.is_path(source):
            raise InvalidArgumentError(
                f"{name or entry}: source is {_given.came(source)}; with an entry it must be "
                f"{_given.SOURCE}"
            )
        if not isinstance(entry, str):
            entry = Entry("host_kernel", name, entry)
        name = name or name_of(entry)
        host = host_source(name, source, entry, options)
    else:
        if not _is_function(source):
            raise InvalidArgumentError(
                f"{name or 'host_kernel'}: source is {_given.came(source)}; without an entry it "
                f"must be {_FORMS}"
            )
        name, host = _function(name, source)
    return make(
        name,
        {"Host": host},
        outputs=outputs,
        in_place=in_place,
        scalars=scalars,
        parameters=parameters,
        workspace=workspace,
        rules={"vmap": vmap, "gradient": gradient, "sharding": sharding},
        doc=doc,
        arguments=arguments_of(arguments),
    )


def _function(name: str | None, function: Any) -> tuple[str, dict[str, Any]]:
    """The name and the members of a C function in any of the forms that `register` takes."""
    address = getattr(function, "address", None)  # numba's cfunc
    if isinstance(address, int):
        name = name or str(getattr(function, "native_name", function))
        _handlers.keep(function)
        return name, {"kind": "function", "address": address}
    if isinstance(function, str | tuple):
        path, symbol = function if isinstance(function, tuple) else function.rpartition(":")[::2]
        return name or str(symbol), {
            "kind": "function",
            "library": os.fspath(path),
            "symbol": str(symbol),
        }
    pointer = _handlers.address_of(function, f"{name or 'kernel'}: function")
    code = {"kind": "function", "address": pointer}
    if isinstance(function, CFuncPtr):
        code["gate"] = _gate.GATE
    return name or str(getattr(function, "__name__", f"function_{pointer:x}")), code


@_given.checked(
    function=(
        lambda v: _is_function(v) or isinstance(v, Mapping),
        f"{_FORMS}, a tvm_ffi.Function, or a dict of an FFI handler's stages",
    )
)
def external_kernel(
    function: Any,
    *,
    arguments: Sequence[Any],
    convention: str | None = None,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    parameters: Sequence[Any] | None = None,
    workspace: Any = None,
    platform: str | Sequence[str] = "CUDA",
    api_version: int | None = None,
    opaque: str = "",
    owned: bool | None = None,
    returns_error: bool = False,
    name: str | None = None,
    host: Any = None,
    capture: bool = False,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> Kernel:
    """A compiled function of somebody else's that launches a kernel, or computes on the CPU.

    Args:
      function: "path/to/lib.so:symbol", (path, symbol), an address, a ctypes function, a PyCapsule,
        or a tvm_ffi.Function (of FlashInfer, CuTe DSL, TileLang, ...).
      arguments: names of the arrays that it takes, or {"name", "dtypes", "optional"}.
      convention: how it is called:
        "tvm_ffi": a TVM-FFI function (symbol without "__tvm_ffi_"): arguments, outputs and scalars
          in this order, or as `parameters` says, None for an absent one. Outputs that `parameters`
          leaves out are what it returns; it may allocate them.
        "c": a C function. On CUDA a launcher: (stream, arguments, outputs, scalars), or as
          `parameters` says.
        "legacy": an XLA custom call of api_version 1, 2 or 3, with `opaque`.
        "ffi": a typed XLA FFI handler, or a dict of them by stage ("instantiate", "prepare",
          "initialize", "execute"): arguments (without absent ones), outputs and the workspace are
          its buffers, scalars its attributes, by their names. With `capture` it must be declared
          safe for command buffers. The state that "instantiate" makes is kept for the calls of one
          problem (shapes, dtypes and scalars); its type is told by "type_id" and "type_info" of the
          dict: where its XLA_FFI_TypeId and XLA_FFI_TypeInfo lie, as for
          `jax.ffi.register_ffi_type`.
        By default "tvm_ffi" for a tvm_ffi.Function, "legacy" where api_version is given, else "c".
      platform: "CUDA", "Host" or both.
      owned: of "tvm_ffi": tensors that own their memory, which Python callbacks and parameters of
        type ffi::Tensor need; by default for tvm_ffi.Function, not for libraries.
      returns_error: of "c": its int result, where it is not 0, is an error.
      capture: whether XLA may replay the call in command buffers: only for what merely enqueues
        work, without allocating or synchronising.
      workspace: bytes of scratch memory; of "tvm_ffi" for what it allocates besides its results.
      outputs, in_place, scalars, parameters, name, host, vmap, gradient, sharding, doc: as of
        `cuda_kernel`; scalars need a dtype.

    Raises:
      InvalidArgumentError (a ValueError): for a description that cannot be.
      NotFoundError: no such library or symbol (when a call is compiled).
    """
    is_tvm = hasattr(function, "__chandle__") or hasattr(function, "__tvm_ffi_object__")
    if convention is None:
        convention = "tvm_ffi" if is_tvm else "c" if api_version is None else "legacy"
    if convention not in ("tvm_ffi", "c", "legacy", "ffi"):
        raise InvalidArgumentError(
            f"external_kernel: convention is {convention!r}; allowed are tvm_ffi, c, legacy, "
            "ffi and None"
        )
    if convention == "ffi" and parameters is not None:
        raise InvalidArgumentError(
            "external_kernel: parameters are not for convention='ffi': a handler takes arguments, "
            "outputs and scalars"
        )
    stages: dict[str, int] = {}
    if isinstance(function, Mapping):
        if convention != "ffi":
            raise InvalidArgumentError(
                "external_kernel: function is a dict; stages are those of convention='ffi'"
            )
        allowed = (*_handlers.STAGES, *_handlers.STATE_TYPE)
        stages = _handlers.addresses_of(function, "external_kernel: function", allowed)
        function = stages.pop("execute")
    if is_tvm:
        name, code = _tvm_function(name, function)
    else:
        name, code = _function(name, function)
    code["kind"] = {"c": "function"}.get(convention, convention)
    if convention == "tvm_ffi":
        code |= {"owned": is_tvm if owned is None else owned, "libtvm_ffi": _libtvm_ffi()}
    elif convention == "legacy":
        code |= {"api_version": None if api_version is None else int(api_version), "opaque": opaque}
    elif convention == "ffi":
        code |= stages
    else:
        code["returns_error"] = returns_error
    if parameters is not None:  # the function's: a host twin of another kind has its own
        code["parameters"] = list(parameters)
    implementations: dict[str, Any] = dict.fromkeys(platforms_of(name, platform), code)
    if host is not None:
        implementations["Host"] = host_of(name, host)
    return make(
        name,
        implementations,
        outputs=outputs,
        in_place=in_place,
        scalars=scalars,
        parameters=None,
        workspace=workspace,
        rules={"vmap": vmap, "gradient": gradient, "sharding": sharding},
        doc=doc,
        capture=capture,
        arguments=arguments_of(arguments),
    )


def _tvm_function(name: str | None, function: Any) -> tuple[str, dict[str, Any]]:
    kind = type(function).__name__
    if hasattr(function, "__tvm_ffi_object__"):  # what holds one, as CuTe DSL's do
        function = function.__tvm_ffi_object__()
    address = 0 if function is None else int(function.__chandle__())
    if address == 0:
        raise InvalidArgumentError(
            f"external_kernel: the {kind} holds no function that runs here; was it compiled for "
            "another GPU?"
        )
    _handlers.keep(function)
    return name or "tvm_ffi_function", {"address": address, "gate": _gate.GATE}


def _libtvm_ffi() -> str:
    """The path of pip's libtvm_ffi, or nothing: the library is then looked for in the process."""
    if importlib.util.find_spec("tvm_ffi") is None:
        return ""
    libinfo = importlib.import_module("tvm_ffi.libinfo")
    return str(libinfo.find_libtvm_ffi())
