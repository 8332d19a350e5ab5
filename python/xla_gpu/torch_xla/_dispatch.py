"""torch.ops.xla_gpu.* on XLA tensors: each call is one typed custom call in the HLO."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_gpu import _lib, _ops
from xla_gpu import _schema as _schemas
from xla_gpu._errors import at_callers_line
from xla_gpu.torch import _kernels, _registration, _schema
from xla_gpu.torch._schema import OpCall
from xla_gpu.torch_xla import _custom_call, _hlo, _runtime

Attrs = tuple[tuple[str, _ops.AttrValue], ...]


@functools.lru_cache(maxsize=4096)
def _hlo_call(
    op: str, platform: str, specs: tuple[_ops.TensorSpec, ...], attrs: Attrs
) -> _hlo.CustomCall:
    """The checked call; ValueError with the library's message."""
    schema = _schemas.schema(op)
    results = _ops.infer(op, platform, specs, dict(attrs))
    return _hlo.CustomCall(
        _target(schema, platform),
        specs,
        tuple(r.spec for r in results),
        api_version=4,
        # A scalar of the user's may be an f64.
        backend_config=_hlo.attributes_text(dict(attrs), "f64" if schema.key else "f32"),
        aliases=tuple((i, r.alias_of) for i, r in enumerate(results) if r.alias_of is not None),
    )


def _target(op: _schemas.Op, platform: str) -> str:
    """XLA's name for the op: the plugin registers the library's when it is loaded."""
    if not op.key:
        return op.target
    with _lib.registration_lock:
        handler = _lib.handler_address(op.key, platform, 4)
        return _runtime.register_handler(op.target, handler, platform, 4)


def run(call: OpCall) -> list[torch.Tensor]:
    """A call on XLA tensors: its results, the work space last on CUDA."""
    _schema.check_devices(call)
    platform = _runtime.ops_platform()
    specs = tuple(_schema.specs_of(call))
    hlo_call = _hlo_call(call.op.id, platform, specs, tuple(sorted(call.attrs.items())))
    return _custom_call.emit(hlo_call, call.args)


def _new_results(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    """The implementation of a functional op for the dispatch key XLA."""

    @at_callers_line
    def kernel(*args: Any, **kwargs: Any) -> Any:
        op, tensors, options = inputs(*args, **kwargs)
        return op.pick(run(op.call(tensors, options)))

    return kernel


def _in_place(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    """In place: XLA tensors are values, so what is written gets the functional op's result.

    The call shares its result's buffer with the argument's, and PyTorch/XLA donates the buffer of
    a tensor that is overwritten: nothing is copied.
    """

    @at_callers_line
    def kernel(*args: Any, **kwargs: Any) -> Any:
        op, tensors, options = inputs(*args, **kwargs)
        op.check_written(tensors)
        given = dict(zip(op.names, tensors))
        results = op.functional(tensors, options)
        for result, new in zip(op.results, results, strict=True):
            if result.alias_of:
                given[result.alias_of].copy_(new)
        return op.pick(results)

    return kernel


_library = torch.library.Library(_schema.NAMESPACE, "IMPL")


@functools.cache
def register() -> None:
    """Gives the ops their XLA implementations, once."""
    for name, op in _registration.OPS.items():
        # XLA tensors are functional: torch turns in-place ops on them into functional ones, but
        # only its own. This key comes before XLA's, and only for such tensors.
        if op.in_place:
            _library.impl(name, _in_place(op.inputs), "Functionalize")
        else:
            _library.impl(name, _new_results(op.inputs), "XLA")
