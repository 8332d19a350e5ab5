"""torch.ops.xla_gpu.* on XLA tensors: each call is one typed custom call in the HLO."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from xla_gpu import _ops
from xla_gpu import _schema as _schemas
from xla_gpu._errors import at_callers_line
from xla_gpu.torch import _kernels, _schema
from xla_gpu.torch._schema import OpCall
from xla_gpu.torch_xla import _custom_call, _hlo, _runtime

Attrs = tuple[tuple[str, _ops.AttrValue], ...]


@functools.lru_cache(maxsize=4096)
def _hlo_call(
    op: str, platform: str, specs: tuple[_ops.TensorSpec, ...], attrs: Attrs
) -> _hlo.CustomCall:
    """The checked call; ValueError with the library's message."""
    results = _ops.infer(op, platform, specs, dict(attrs))
    return _hlo.CustomCall(
        _schemas.schema(op).target,
        specs,
        tuple(r.spec for r in results),
        api_version=4,
        backend_config=_hlo.attributes_text(dict(attrs)),
        aliases=tuple((i, r.alias_of) for i, r in enumerate(results) if r.alias_of is not None),
    )


def run(call: OpCall) -> list[torch.Tensor]:
    """A call on XLA tensors: its results, the work space last on CUDA."""
    _schema.check_devices(call)
    platform = _runtime.ops_platform()
    specs = tuple(_schema.specs_of(call))
    hlo_call = _hlo_call(call.op, platform, specs, tuple(sorted(call.attrs.items())))
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

    def kernel(*args: Any, **kwargs: Any) -> Any:
        op, tensors, options = inputs(*args, **kwargs)
        given = dict(zip(op.names, tensors))
        named = {attr.name: value for attr, value in zip(op.form.attrs, options)}
        results = _schema.torch_op(op.functional)(**given, **named)
        results = results if isinstance(results, tuple) else (results,)
        for result, new in zip(op.results, results, strict=True):
            if result.alias_of:
                given[result.alias_of].copy_(new)
        return op.pick(results)

    return kernel


_library = torch.library.Library(_schema.NAMESPACE, "IMPL")


@functools.cache
def register() -> None:
    """Gives the ops their XLA implementations, once."""
    for name, inputs in _kernels.INPUTS.items():
        # XLA tensors are functional: torch turns in-place ops on them into functional ones, but
        # only its own. This key comes before XLA's, and only for such tensors.
        if _schema.FORMS[name].in_place:
            _library.impl(name, _in_place(inputs), "Functionalize")
        else:
            _library.impl(name, _new_results(inputs), "XLA")
