"""Custom calls from XLA tensors, with handlers of anybody's.

What PyTorch/XLA 2.9 has for it, and what is wrong with that: `_xla_register_custom_call_target` is
an empty stub, and `_xla_custom_call` shares one executable between calls that differ only in their
configuration. `install` puts the functions of this module in place of both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch_xla
from torch_xla.core import xla_builder

from xla_gpu import _given, _handlers, _lib, _ops
from xla_gpu import _schema as _schemas
from xla_gpu._errors import InvalidArgumentError, NotFoundError
from xla_gpu.torch import _schema
from xla_gpu.torch_xla import _hlo, _runtime

_TYPED = 4
_SIGNATURES = {
    1: "void f(cudaStream_t, void** buffers, const char* opaque, size_t size)",
    2: "void f(cudaStream_t, void** buffers, const char* opaque, size_t size, "
    "XlaCustomCallStatus*)",
    3: "void f(cudaStream_t, void** buffers, const char* opaque, size_t size, "
    "XlaCustomCallStatus*)",
    4: "XLA_FFI_Error* f(XLA_FFI_CallFrame*)",
}
# Targets that XLA implements itself, or resolves before code is made: prefixes.
_XLAS_OWN = (
    *("Sharding", "SPMD", "LayoutConstraint", "MoveTo", "PadToStatic", "SliceToDynamic", "TopK"),
    *("annotate_device_placement", "ApproxTopK", "PartialReduce", "X64", "Pin", "Unpin"),
    *("__", "xla.", "mhlo.", "chlo.", "stablehlo.", "tf.", "tpu_custom_call", "CreateBuffer"),
)

Tensors = Sequence[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class _Target:
    """A registered handler: XLA's name for it and the API version it was registered for."""

    xla_name: str
    api_version: int
    platform: str


# The user's name -> typed or not -> what it stands for.
_targets: dict[str, dict[bool, _Target]] = {}
_xla_custom_call: Any = None  # PyTorch/XLA's own, once replaced


# ---- Registration ------------------------------------------------------------------------------


def register_custom_call_target(
    name: str, capsule: Any, platform: str, api_version: int = 1
) -> None:
    """Makes `capsule` what XLA calls for the custom-call target `name`.

    Before or after the first use of a device. Registering another handler under the same name
    replaces the first for the calls that are made from then on.

    Args:
      name: the target, as `_xla_custom_call` and `custom_call` name it.
      capsule: a PyCapsule with the function's address; or the address, a ctypes function,
        "path/to/lib.so:symbol" or (path, symbol). It must live as long as the process.
      platform: "CUDA" ("cuda", "GPU", "gpu") or "Host" ("cpu").
      api_version: that of the calls: 1, 2, 3 for the untyped signatures, 4 for a typed FFI handler.

    Raises:
      InvalidArgumentError (a ValueError): a wrong name, platform, version, or what is no handler.
      UnimplementedError: where the plugin takes no handlers of this version.
      XlaGpuError: FAILED_PRECONDITION where PyTorch/XLA runs on no plugin.
    """
    if isinstance(name, bytes):
        name = name.decode()
    handler = _handlers.address_of(capsule)
    with _lib.registration_lock:
        xla_name = _runtime.register_handler(name, handler, platform, api_version)
        target = _Target(xla_name, api_version, _runtime.platform())
        _targets.setdefault(name, {})[api_version == _TYPED] = target


@functools.cache
def _op_targets() -> frozenset[str]:
    """The targets of this library's ops: typed, and registered by the plugin when it is loaded."""
    return frozenset(op.target for op in _schemas.schemas().values())


def _resolve(name: str, api_version: int) -> str:
    """XLA's name for the target, for a call by `api_version`; else the error that helps."""
    if isinstance(api_version, bool) or api_version not in (1, 2, 3, 4):
        raise InvalidArgumentError(
            f"custom call '{name}': api_version is {api_version!r}; allowed are 1, 2, 3 (untyped) "
            "and 4 (typed FFI), as its handler was registered"
        )
    known = _targets.get(name)
    if known is None:
        if name in _op_targets():
            known = {True: _Target(name, _TYPED, _runtime.platform())}
        else:
            raise NotFoundError(
                f"custom call '{name}': no handler is registered under this name; before the "
                "call, xla_gpu.torch_xla.register_custom_call_target"
                f"('{name}', handler, '{_runtime.platform()}', api_version={api_version}) "
                f"(registered here: {', '.join(sorted(_targets)) or 'none'})"
            )
    target = known.get(api_version == _TYPED)
    if target is None:
        (other,) = known.values()
        raise InvalidArgumentError(_wrong_version(name, api_version, other))
    # XLA keeps the untyped versions in one registry and passes what the call's version says. A
    # handler that takes a status must be given one; one that takes none never sees it.
    if target.api_version in (2, 3) and api_version == 1:
        raise InvalidArgumentError(_wrong_version(name, api_version, target))
    return target.xla_name


def _wrong_version(name: str, api_version: int, target: _Target) -> str:
    registered = target.api_version
    return (
        f"custom call '{name}': called with api_version={api_version}, that is "
        f"{_SIGNATURES[api_version]}, but its handler is registered with api_version={registered}, "
        f"that is {_SIGNATURES[registered]}; call it with api_version={registered}, or register a "
        f"handler of the other signature with api_version={api_version}"
    )


# ---- Calls -------------------------------------------------------------------------------------


def custom_call(
    target: str,
    inputs: Tensors,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    *,
    attributes: Mapping[str, _ops.AttrValue] | None = None,
    backend_config: str = "",
    api_version: int = _TYPED,
    has_side_effect: bool = False,
    output_operand_aliases: Mapping[int, int] | None = None,
    frontend_attributes: Mapping[str, str] | None = None,
) -> list[torch.Tensor]:
    """Calls a registered handler on XLA tensors; one custom call in the HLO.

    Calls share an executable only if they are equal in everything that is passed here.

    Args:
      target: the name under which the handler is registered.
      inputs: XLA tensors, at least one; the handler sees them dense and row-major.
      output_shapes: a shape for each result.
      output_dtypes: a dtype for each result.
      attributes: the attributes of a typed call: bool, int (i64), float (f32), str, ints.
      backend_config: instead of `attributes`: the opaque text of an untyped call, or the
        attributes of a typed one as MLIR writes them ("{scale = 2.0 : f32}").
      api_version: 4, or that of an untyped handler (1, 2, 3).
      has_side_effect: the call is made though nothing uses its results.
      output_operand_aliases: result index -> index of the input whose buffer it shares. XLA
        writes in place where the input is not needed afterwards, else on a copy.
      frontend_attributes: kept in the HLO.

    Returns:
      The results, in order.

    Raises:
      NotFoundError: no handler is registered under this name.
      InvalidArgumentError (a ValueError): an API version that is not the handler's, arguments
        that are no XLA tensors, wrong attributes or aliases.
    """
    if attributes is not None:
        if backend_config or api_version != _TYPED:
            raise InvalidArgumentError(
                f"custom call '{target}': attributes are for typed calls (api_version=4) without "
                "backend_config; an untyped one takes its configuration as backend_config"
            )
        backend_config = _hlo.attributes_text(attributes)
    xla_name = _resolve(target, api_version)
    _check_config(target, backend_config, api_version)
    specs = _input_specs(target, inputs)
    results = _output_specs(target, output_shapes, output_dtypes)
    given = output_operand_aliases or {}
    if not isinstance(given, Mapping) or not all(map(_given.is_int, (*given, *given.values()))):
        raise InvalidArgumentError(
            f"custom call '{target}': output_operand_aliases is {_given.came(given)}; it must be a "
            "dict {result: input} of their positions"
        )
    aliases = tuple(sorted(given.items()))
    for result, arg in aliases:
        if not 0 <= result < len(results) or not 0 <= arg < len(specs):
            raise InvalidArgumentError(
                f"custom call '{target}': output_operand_aliases has {result}: {arg}, but there "
                f"are {len(results)} results and {len(specs)} inputs"
            )
        if results[result] != specs[arg]:
            raise InvalidArgumentError(
                f"custom call '{target}': result {result} is {results[result]} but input {arg}, "
                f"whose buffer it shares, is {specs[arg]}; they must be equal"
            )
    call = _hlo.CustomCall(
        xla_name,
        specs,
        results,
        api_version,
        backend_config,
        bool(has_side_effect),
        aliases,
        tuple(sorted((frontend_attributes or {}).items())),
    )
    return emit(call, inputs)


def emit(call: _hlo.CustomCall, inputs: Tensors) -> list[torch.Tensor]:
    """The call in the graph of `inputs`, which must be XLA tensors of its types."""
    results: list[torch.Tensor] = torch_xla._XLAC._xla_user_computation(
        f"xla_gpu::{call.target}", list(reversed(inputs)), _computation(call)
    )
    return results


@functools.lru_cache(maxsize=4096)
def _computation(call: _hlo.CustomCall) -> Any:
    return xla_builder.computation_from_module_proto(call.target, call.module_proto())


def _check_config(target: str, backend_config: str, api_version: int) -> None:
    """XLA would refuse the text, too, but when it compiles, and without naming the call."""
    text = backend_config.strip()
    if api_version == _TYPED and text and not (text.startswith("{") and text.endswith("}")):
        raise InvalidArgumentError(
            f"custom call '{target}': backend_config is {backend_config!r}; a typed call takes its "
            "attributes as MLIR writes them, e.g. '{scale = 2.0 : f32, causal = true}'"
        )


def _input_specs(target: str, inputs: Tensors) -> tuple[_ops.TensorSpec, ...]:
    if not isinstance(inputs, list | tuple):
        raise InvalidArgumentError(
            f"custom call '{target}': inputs is {type(inputs).__name__}; it must be a list of "
            "XLA tensors"
        )
    if not inputs:
        raise InvalidArgumentError(
            f"custom call '{target}': no inputs; at least one is needed, which tells the device"
        )
    for i, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
            came = (
                f"{_schema.describe(tensor)} on {tensor.device}"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise InvalidArgumentError(
                f"custom call '{target}': input {i} is {came}; it must be an XLA tensor "
                "(tensor.to('xla'))"
            )
    return tuple(_schema.spec_of(target, f"input {i}", t) for i, t in enumerate(inputs))


def _output_specs(
    target: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype]
) -> tuple[_ops.TensorSpec, ...]:
    for name, given in (("output_shapes", shapes), ("output_dtypes", dtypes)):
        if not isinstance(given, list | tuple):
            raise InvalidArgumentError(
                f"custom call '{target}': {name} is {_given.came(given)}; it must be a list, with "
                "one for each result"
            )
    for shape in shapes:
        sizes: Any = shape if isinstance(shape, list | tuple) else [None]
        if not all(_given.is_int(size) and 0 <= size < 2**63 for size in sizes):
            raise InvalidArgumentError(
                f"custom call '{target}': an output shape is {_given.came(shape)}; it must be a "
                "list of ints, none below 0"
            )
    if len(shapes) != len(dtypes) or not shapes:
        raise InvalidArgumentError(
            f"custom call '{target}': {len(shapes)} output shapes and {len(dtypes)} output dtypes; "
            "each result has one of both, and there is at least one result"
        )
    unknown = [dtype for dtype in dtypes if dtype not in _schema.DTYPES]
    if unknown:
        raise InvalidArgumentError(
            f"custom call '{target}': output dtype {unknown[0]} has no counterpart in XLA"
        )
    return tuple(
        _ops.TensorSpec(_schema.DTYPES[dtype], tuple(int(size) for size in shape))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )


# ---- In place of PyTorch/XLA's functions ---------------------------------------------------------


def _replacement(
    inputs: Tensors,
    target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> list[torch.Tensor]:
    """`torch_xla._XLAC._xla_custom_call` by `custom_call`; targets of XLA's own go the old way."""
    if target not in _targets and target.startswith(_XLAS_OWN):
        results: list[torch.Tensor] = _xla_custom_call(
            inputs,
            target,
            output_shapes,
            output_dtypes,
            has_side_effect,
            backend_config,
            api_version,
            frontend_attributes or {},
        )
        return results
    return custom_call(
        target,
        inputs,
        output_shapes,
        output_dtypes,
        backend_config=backend_config,
        api_version=api_version,
        has_side_effect=has_side_effect,
        frontend_attributes=frontend_attributes,
    )


def install() -> None:
    """Puts this module's functions in place of PyTorch/XLA's stub and its custom call.

    `torch_xla._XLAC._xla_register_custom_call_target` registers from then on, and
    `torch_xla._XLAC._xla_custom_call` says what is wrong with a call before XLA sees it. Importing
    `xla_gpu.torch_xla` does this; doing it again changes nothing.
    """
    global _xla_custom_call
    xlac = torch_xla._XLAC
    with _lib.registration_lock:
        if _xla_custom_call is None:
            _xla_custom_call = xlac._xla_custom_call
        xlac._xla_custom_call = _replacement
        xlac._xla_register_custom_call_target = register_custom_call_target
