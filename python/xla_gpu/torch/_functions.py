"""The ops as Python functions of torch tensors, with conveniences where an op has a skin here."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from xla_gpu import _docs
from xla_gpu import _ops as _library
from xla_gpu import _schema as _schemas
from xla_gpu._errors import InvalidArgumentError, XlaGpuError, at_callers_line
from xla_gpu._kernel import Kernel as _Kernel
from xla_gpu._kernel import as_key as _as_key
from xla_gpu.torch import _kernels, _schema, _user_kernels
from xla_gpu.torch._registration import bump_versions, is_plain

_ops = torch.ops.xla_gpu
_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_function_modes = torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state
_profiling = torch.autograd._profiler_enabled

_TYPES = {"bool": bool, "int": int, "float": float, "string": str, "dtype": torch.dtype}

# A tensor; or a Python number.
Scalar: TypeAlias = float | torch.Tensor
KvCache: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

if TYPE_CHECKING:
    from xla_gpu._signatures import PagedAttention

    _PagedAttention: TypeAlias = PagedAttention[torch.Tensor, Scalar, torch.dtype, torch.Tensor]

_contract: Callable[[_PagedAttention], _PagedAttention] = _docs.contract(_docs.PAGED_ATTENTION)


def _is_ordinary(run: _kernels.Kernel, tensors: _kernels.Tensors) -> bool:
    """Whether torch's dispatcher would do nothing but call the kernel; that costs microseconds.

    Anything that watches or changes calls (a mode, a trace, the profiler, autograd, a subclass)
    goes through the dispatcher.
    """
    return (
        is_plain(run, tensors)
        and (tensors[0].is_cpu or tensors[0].is_cuda)
        and _function_modes() == 0
        and not _profiling()
        and _tracing() is None
    )


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:100]


def _no_tensor(op: str, name: str, value: Any) -> Exception:
    return InvalidArgumentError(f"{op}: {name} is {_show(value)}; it must be a torch.Tensor")


def _split_cache(op: str, kv_cache: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    if isinstance(kv_cache, torch.Tensor):
        return kv_cache, None
    if not isinstance(kv_cache, (tuple, list)):
        raise _no_tensor(op, "kv_cache", kv_cache)
    if len(kv_cache) != 2:
        raise InvalidArgumentError(
            f"{op}: kv_cache is a {type(kv_cache).__name__} of {len(kv_cache)}; allowed is one "
            "tensor or a pair (K, V)"
        )
    for i, part in enumerate(kv_cache):
        if not isinstance(part, torch.Tensor):
            raise _no_tensor(op, f"kv_cache[{i}]", part)
    return tuple(kv_cache)


def _tensors(form: _schema.Form, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that come, by their names in the op; a number fills a vector."""
    given["kv_cache"], given["v_cache"] = _split_cache(form.name, given["kv_cache"])
    tensors: dict[str, torch.Tensor] = {}
    for arg in form.op.args:
        value = given[arg.name]
        if value is None and arg.optional:
            continue
        if not isinstance(value, torch.Tensor):
            number = numbers.Real if "f32" in arg.dtypes else numbers.Integral
            if not arg.vector or not isinstance(value, number) or isinstance(value, bool):
                raise _no_tensor(form.name, arg.name, value)
            size: Any = abs(value)
            if not _is_compiling() and torch.finfo(torch.float32).max < size < math.inf:
                raise InvalidArgumentError(
                    f"{form.name}: {arg.name} is {_show(value)}; f32 holds no such number"
                )
            dtype, device = _schema.TORCH_DTYPES[arg.dtypes[0]], given["kv_cache"].device
            shape = tensors["query"].shape[1:2] if arg.name == "sinks" else (1,)
            value = torch.full(shape, value, dtype=dtype, device=device)
        tensors[arg.name] = value
    return tensors


def _check_attributes(op: _schemas.Op, attrs: dict[str, Any]) -> None:
    """What torch's dispatcher would take for something else, or refuse in words of its own."""
    for attr in op.attrs:
        value = attrs[attr.name]
        expected = _TYPES[attr.type]
        fits = type(value) is expected or (value is None and attr.none_is_default)
        if fits and (_is_compiling() or type(value) is not int or -(2**63) <= value < 2**63):
            continue
        if expected is torch.dtype or isinstance(value, torch.Tensor):
            allowed = "a torch.dtype" if expected is torch.dtype else "a Python number"
            raise InvalidArgumentError(
                f"{op.name}: {attr.name} is {_show(value)}; allowed is {allowed}"
            )
        _schemas.attribute(op.name, attr, value, _schema.dtype_name)


def _call(name: str, args: dict[str, Any]) -> Any:
    """The torch op of this name."""
    if not _is_compiling():
        kernel, tensors, options = _kernels.INPUTS[name](**args)
        if _is_ordinary(kernel, tensors):
            result = kernel(tensors, options)
            bump_versions(kernel, tensors)
            return result
    return getattr(_ops, name)(**args)


@_contract
def paged_attention(
    query: torch.Tensor,
    kv_cache: KvCache,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor | int | None = None,
    scale: float | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    sinks: Scalar | None = None,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
    causal: bool = True,
    return_lse: bool = False,
    max_query_len: int = 0,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
) -> Any:
    """Attention of a ragged batch over a paged KV cache: prefill, decode or both in one call.

    On CUDA: on the current stream, without synchronisation, and capturable in a CUDA graph after
    one call of the same types. backward raises NotImplementedError: the op has no gradient.
    """
    args = (query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs)
    if (  # the call of a serving loop, with nothing to convert
        sinks is None
        and k_scale is None
        and v_scale is None
        and (type(scale) is float or scale is None)
        and (sliding_window is None or type(sliding_window) is int)
        and (soft_cap is None or type(soft_cap) is float)
        and causal is True
        and type(max_query_len) is int
        and out_dtype is None
        and batch_invariant is None
        and not _is_compiling()
        and _is_ordinary(_attention, args)
    ):
        options = (scale, sliding_window, soft_cap, True, max_query_len, None, None)
        return (_attention_lse if return_lse else _attention)(args, options)
    names = (*_attention.form.required, "sinks", "k_scale", "v_scale")
    given = dict(zip(names, (*args, sinks, k_scale, v_scale)))
    attrs = (scale, sliding_window, soft_cap, causal, return_lse, max_query_len, out_dtype)
    return _checked_attention(given, dict(zip(_ATTRIBUTES, (*attrs, batch_invariant))))


def _checked_attention(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """The call of Python values, by their names."""
    form, lens, count = _attention.form, given["context_lens"], given["num_seqs"]
    try:
        if isinstance(lens, torch.Tensor) and (
            count is None or isinstance(count, numbers.Integral)
        ):
            given["num_seqs"] = _library.count_seqs(form.name, count, lens.shape)
        tensors = _tensors(form, given)
        _check_attributes(form.op, attrs)
        name = "paged_attention_with_lse" if attrs.pop("return_lse") else "paged_attention"
        return _call(name, {**tensors, **attrs})
    except XlaGpuError as error:
        raise error.with_traceback(None) from None  # to end here, not in layers below


_attention = _kernels.kernel(_schema.FORMS["paged_attention"], ())
_attention_lse = _kernels.kernel(_schema.FORMS["paged_attention_with_lse"], ())
_ATTRIBUTES = tuple(attr.name for attr in _attention.form.op.attrs)


_Cache = TypeVar("_Cache", torch.Tensor, tuple[torch.Tensor, torch.Tensor])


@_docs.contract(_docs.UPDATE_KV_CACHE)
def update_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: _Cache,
    slot_mapping: torch.Tensor,
    *,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
) -> _Cache:
    """A copy of a paged cache with the keys and values of new tokens in their slots."""
    updated: _Cache = _update(
        "update_kv_cache", key, value, kv_cache, slot_mapping, k_scale, v_scale
    )
    return updated


@_docs.contract(_docs.UPDATE_KV_CACHE)
def update_kv_cache_(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: KvCache,
    slot_mapping: torch.Tensor,
    *,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
) -> None:
    """As update_kv_cache, in place: writes into the cache and nothing else.

    key, value and slot_mapping must not share memory with the cache.
    """
    _update("update_kv_cache_", key, value, kv_cache, slot_mapping, k_scale, v_scale)


def _update(op: str, *given: Any) -> Any:
    names = ("key", "value", "kv_cache", "slot_mapping", "k_scale", "v_scale")
    try:
        tensors = _tensors(_schema.FORMS[op], dict(zip(names, given)))
        if "v_cache" in tensors and op == "update_kv_cache":
            op = "update_kv_cache_pair"
        return _call(op, tensors)
    except XlaGpuError as error:
        raise error.with_traceback(None) from None  # to end here, not in layers below


# ---- Kernels of the user's -----------------------------------------------------------------------


def call_kernel(kernel: _Kernel, arrays: tuple[Any, ...], scalars: tuple[Any, ...]) -> Any:
    """The kernel on tensors by argument, None for absent ones."""
    if _is_dynamo_compiling():
        from xla_gpu.torch import _traced

        outputs = iter(_traced.call(kernel.number, arrays, scalars))
        results = [next(outputs) if i is None else arrays[i] for i in kernel.aliases]
        return results[0] if len(results) == 1 else tuple(results)
    run, tensors = _user_kernels.bind(kernel, arrays)
    if _is_ordinary(run, tensors):
        try:
            result = run(tensors, _as_key(scalars) if scalars else scalars)
        except TypeError:  # a scalar that cannot be a key is no number
            kernel.scalars(scalars)
            raise
        if run.written:
            bump_versions(run, tensors)
        return result
    return _user_kernels.results_of(run, tensors, dispatch_kernel(run, tensors, scalars))


@at_callers_line
def dispatch_kernel(run: _user_kernels.UserKernel, tensors: Any, scalars: Any) -> Any:
    """The call by torch's dispatcher, on whatever came."""
    for name, tensor in zip(run.names, tensors):
        if not isinstance(tensor, torch.Tensor):
            raise _no_tensor(run.name, name, tensor)
    return run.dispatch(tensors, scalars)


# ---- Of ops without a function here --------------------------------------------------------------


def _generated(form: _schema.Form) -> Callable[..., Any]:
    """The torch op as a function with a signature and a docstring."""
    positional, named = form.parameters
    names = ", ".join(f"{p.name}={p.name}" for p in positional + named)
    function = _kernels.define(form, f"return op({names})", op=getattr(_ops, form.name))
    returned = [r for r in form.results if not (form.in_place and r.alias_of)]
    written = [r for r in form.results if r not in returned]
    text = f"{form.op.doc} (torch.ops.xla_gpu.{form.name})"
    function.__doc__ = _docs.of_schema(text, form.args, form.attrs, returned, written)
    function.__module__ = "xla_gpu.torch"
    return function


GENERATED = {
    name: _generated(form) for name, form in _schema.FORMS.items() if form.op.name not in globals()
}
