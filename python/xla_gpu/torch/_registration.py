"""The ops into torch's dispatcher: CPU, CUDA, fake tensors and autograd."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from xla_gpu import _ops
from xla_gpu._errors import UnimplementedError, at_callers_line
from xla_gpu.torch import _kernels, _schema, _user_kernels

_requires_grad = attrgetter("requires_grad")
_is_neg = torch.Tensor.is_neg
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_modes = torch._C._len_torch_dispatch_stack
_interpreter = torch._C._functorch.peek_interpreter_stack


def _no_gradient(run: _kernels.Kernel, forward_mode: bool = False) -> Exception:
    form, why = run.form, run.instead_of_gradient and f" ({run.instead_of_gradient})"
    what = "forward-mode derivative" if forward_mode else "gradient"
    no_grad = "" if forward_mode else "torch.no_grad() or "  # which forward mode does not heed
    return UnimplementedError(
        f"xla_gpu::{form.name} has no {what}{why}; call it under {no_grad}torch.inference_mode(), "
        "or detach() its inputs"
    )


class _Differentiable(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """The op, with its gradient or, as most have none, a backward that says what to do.

    Many models run forward with gradients on. Of a single level, as any autograd kernel: functorch
    calls it once for each of its transforms, and those that wait below must find differentiation
    switched on.
    """

    @staticmethod
    def forward(ctx: Any, run: _kernels.Kernel, options: Any, *tensors: torch.Tensor) -> Any:
        ctx.run, ctx.options = run, options
        with (
            torch.enable_grad(),
            forward_ad._set_fwd_grad_enabled(True),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            results = run.dispatch(tensors, options)
        several = isinstance(results, (tuple, list))
        results = tuple(results) if several else (results,)
        if run.gradients is not None:
            ctx.save_for_backward(*tensors, *results)
        return results if several else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        run = ctx.run
        if run.gradients is None:
            raise _no_gradient(run)
        count, saved = len(run.names), ctx.saved_tensors
        made = run.gradients(ctx.options, saved[:count], saved[count:], gradients)
        return None, None, *made


def _backend_kernel(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        run, tensors, options = inputs(*args, **kwargs)
        return run(tensors, options)

    return kernel


def _wants_grad(tensors: _kernels.Tensors) -> bool:
    return torch.is_grad_enabled() and any(map(_requires_grad, tensors))


def _has_tangent(tensors: _kernels.Tensors) -> bool:
    """Whether torch differentiates forward through one of them."""
    return (
        forward_ad._current_level >= 0
        and torch._C._is_fwd_grad_enabled()
        and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    )


def is_plain(run: _kernels.Kernel, tensors: _kernels.Tensors) -> bool:
    """Whether nothing below autograd would see the call but the CPU or CUDA kernel."""
    return (
        _modes() == 0
        and _PLAIN.issuperset(map(type, tensors))
        and _interpreter() is None
        and not _wants_grad(tensors)
        and forward_ad._current_level < 0
        # Views with the sign flipped, which the dispatcher resolves; only floats have them.
        and not any(map(_is_neg, run.floats(tensors)))
    )


def _below_autograd(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    """The autograd kernel for any device and any tensors: down the dispatcher again."""

    @at_callers_line
    def kernel(*args: Any, **kwargs: Any) -> Any:
        run, tensors, options = inputs(*args, **kwargs)
        run.check_present(tensors)
        if _has_tangent(tensors):
            raise _no_gradient(run, forward_mode=True)
        if _wants_grad(tensors):
            if run.written:
                raise _no_gradient(run)
            with enable_single_level_autograd_function():
                return _Differentiable.apply(run, options, *tensors)
        with torch._C._AutoDispatchBelowAutograd():
            result = run.dispatch(tensors, options)
        bump_versions(run, tensors)
        return result

    return kernel


def _autograd_kernel(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    """The autograd kernel of CPU and CUDA: with ordinary tensors, straight to the work."""
    below = _below_autograd(inputs)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        run, tensors, options = inputs(*args, **kwargs)
        if is_plain(run, tensors):
            result = run(tensors, options)
            if run.written:
                bump_versions(run, tensors)
            return result
        return below(*args, **kwargs)

    return kernel


def bump_versions(run: _kernels.Kernel, tensors: _kernels.Tensors) -> None:
    """Tells autograd what was written in place, as its own kernels do."""
    for i in run.written:
        if not tensors[i].is_inference():
            torch.autograd.graph.increment_version(tensors[i])


# ---- Fake tensors ---------------------------------------------------------------------------


def _hints(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The values as numbers: a symbolic one counts as in the example that is traced."""
    numbers = []
    for value in values:
        if isinstance(value, torch.SymInt):
            if not value.node.has_hint():
                return None
            value = value.node.hint
        numbers.append(value)
    return tuple(numbers)


def _infer(call: _schema.OpCall, exact: bool) -> list[_ops.Result] | None:
    """The library's check while torch traces; None where run time tells the sizes.

    `exact` has torch trace anew for other sizes.
    """
    _schema.check_devices(call)
    specs = []
    for name, tensor in zip(call.names, call.args):
        shape = tuple(map(int, tensor.shape)) if exact else _hints(tuple(tensor.shape))
        if shape is None:
            return None
        specs.append(_ops.TensorSpec(_schema.spec_of(call.op.name, name, tensor).dtype, shape))
    attrs = {}
    for name, value in call.attrs.items():
        known = _hints(value if isinstance(value, tuple) else (value,))
        if known is None:
            return None
        attrs[name] = known if isinstance(value, tuple) else known[0]
    return _ops.infer(call.op.id, "Host", specs, attrs)


def _fake_kernel(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    @at_callers_line
    def kernel(*args: Any, **kwargs: Any) -> Any:
        run, tensors, options = inputs(*args, **kwargs)
        call = run.call(tensors, options)
        told = run.told(call)
        known = all(r.alias_of or r.like or r.name in told for r in run.results)
        inferred = _infer(call, exact=not known) or []
        given = dict(zip(call.names, tensors))
        made = []
        for i, result in enumerate(run.results):
            like = given.get(result.alias_of or result.like)
            if like is None:
                spec = told.get(result.name) or inferred[i].spec
                like, shape, name = tensors[0], spec.shape, spec.dtype
            else:
                shape = like.shape[: result.rank] if result.rank else like.shape
                name = str(call.attrs.get(result.dtype, result.dtype))
            dtype = _schema.TORCH_DTYPES[name] if name else like.dtype
            made.append(like.new_empty(shape, dtype=dtype))
        return run.pick(made)

    return kernel


# ---- Registration ---------------------------------------------------------------------------

# Every op in torch.ops.xla_gpu, by name: the library's, and those that run the user's kernels.
OPS = {
    name: _kernels.TorchOp(form.torch_schema, _kernels.INPUTS[name], form.in_place)
    for name, form in _schema.FORMS.items()
} | _user_kernels.OPS


def _tags() -> tuple[torch.Tag, ...]:
    """pt2_compliant, and for Inductor: give each argument the strides that it was traced with."""
    names = ("pt2_compliant_tag", "needs_fixed_stride_order")
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def register() -> torch.library.Library:
    """Registers every op; they live as long as what it gives."""
    library = torch.library.Library(_schema.NAMESPACE, "DEF")
    for name, op in OPS.items():
        library.define(op.torch_schema, tags=_tags())
        backend = _backend_kernel(op.inputs)
        for key in ("CPU", "CUDA"):
            library.impl(name, backend, key)
            library.impl(name, _autograd_kernel(op.inputs), f"Autograd{key}")
        library.impl(name, _below_autograd(op.inputs), "Autograd")
        qualified = f"{_schema.NAMESPACE}::{name}"
        torch.library.register_fake(qualified, _fake_kernel(op.inputs), lib=library)
        if op.vmap is not None and hasattr(torch.library, "register_vmap"):  # torch 2.5 and later
            torch.library.register_vmap(qualified, op.vmap, lib=library)
    return library
