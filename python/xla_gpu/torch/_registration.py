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
from xla_gpu.torch import _kernels, _schema

_requires_grad = attrgetter("requires_grad")
_is_neg = torch.Tensor.is_neg
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_modes = torch._C._len_torch_dispatch_stack
_interpreter = torch._C._functorch.peek_interpreter_stack


def _no_gradient(form: _schema.Form, forward_mode: bool = False) -> Exception:
    why = form.op.instead_of_gradient and f" ({form.op.instead_of_gradient})"
    what = "forward-mode derivative" if forward_mode else "gradient"
    no_grad = "" if forward_mode else "torch.no_grad() or "  # which forward mode does not heed
    return UnimplementedError(
        f"xla_gpu::{form.name} has no {what}{why}; call it under {no_grad}torch.inference_mode(), "
        "or detach() its inputs"
    )


class _NoGradient(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """The op, with a backward that says what to do: many models run forward with gradients on.

    Of a single level, as any autograd kernel: functorch calls it once for each of its transforms,
    and those that wait below must find differentiation switched on.
    """

    @staticmethod
    def forward(ctx: Any, form: _schema.Form, op: Any, names: tuple[str, ...], *values: Any) -> Any:
        ctx.form = form
        split = len(values) - len(names)
        with (
            torch.enable_grad(),
            forward_ad._set_fwd_grad_enabled(True),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return op(*values[:split], **dict(zip(names, values[split:])))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise _no_gradient(ctx.form)


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


def _below_autograd(
    form: _schema.Form, inputs: Callable[..., _kernels.Inputs]
) -> Callable[..., Any]:
    """The autograd kernel for any device and any tensors: down the dispatcher again."""
    op = _schema.torch_op(form)

    @at_callers_line
    def kernel(*args: Any, **kwargs: Any) -> Any:
        run, tensors, _ = inputs(*args, **kwargs)
        run.check_present(tensors)
        if _has_tangent(tensors):
            raise _no_gradient(form, forward_mode=True)
        if _wants_grad(tensors):
            if run.written:
                raise _no_gradient(form)
            with enable_single_level_autograd_function():
                return _NoGradient.apply(form, op, tuple(kwargs), *args, *kwargs.values())
        with torch._C._AutoDispatchBelowAutograd():
            result = op(*args, **kwargs)
        bump_versions(run, tensors)
        return result

    return kernel


def _autograd_kernel(
    form: _schema.Form, inputs: Callable[..., _kernels.Inputs]
) -> Callable[..., Any]:
    """The autograd kernel of CPU and CUDA: with ordinary tensors, straight to the work."""
    below = _below_autograd(form, inputs)

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


def _hints(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The dimensions as numbers: a symbolic one counts as in the example that is traced."""
    numbers = []
    for dim in shape:
        if not isinstance(dim, int):
            node = dim.node
            if not node.has_hint():
                return None
            dim = node.hint
        numbers.append(int(dim))
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
        specs.append(_ops.TensorSpec(_schema.spec_of(call.op, name, tensor).dtype, shape))
    return _ops.infer(call.op, "Host", specs, call.attrs)


def _fake_kernel(inputs: Callable[..., _kernels.Inputs]) -> Callable[..., Any]:
    @at_callers_line
    def kernel(*args: Any, **kwargs: Any) -> Any:
        run, tensors, options = inputs(*args, **kwargs)
        call = run.call(tensors, options)
        inferred = _infer(call, exact=not all(r.alias_of or r.like for r in run.results)) or []
        given = dict(zip(call.names, tensors))
        made = []
        for i, result in enumerate(run.results):
            like = given.get(result.alias_of or result.like)
            if like is None:
                like, shape, name = tensors[0], inferred[i].spec.shape, inferred[i].spec.dtype
            else:
                shape = like.shape[: result.rank] if result.rank else like.shape
                name = str(call.attrs.get(result.dtype, result.dtype))
            dtype = _schema.TORCH_DTYPES[name] if name else like.dtype
            made.append(like.new_empty(shape, dtype=dtype))
        return run.pick(made)

    return kernel


# ---- Registration ---------------------------------------------------------------------------


def _tags() -> tuple[torch.Tag, ...]:
    """pt2_compliant, and for Inductor: give each argument the strides that it was traced with."""
    names = ("pt2_compliant_tag", "needs_fixed_stride_order")
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def register() -> torch.library.Library:
    """Registers every op; they live as long as what it gives."""
    library = torch.library.Library(_schema.NAMESPACE, "DEF")
    for name, form in _schema.FORMS.items():
        inputs = _kernels.INPUTS[name]
        library.define(form.torch_schema, tags=_tags())
        backend = _backend_kernel(inputs)
        for key in ("CPU", "CUDA"):
            library.impl(name, backend, key)
            library.impl(name, _autograd_kernel(form, inputs), f"Autograd{key}")
        library.impl(name, _below_autograd(form, inputs), "Autograd")
        torch.library.register_fake(
            f"{_schema.NAMESPACE}::{name}", _fake_kernel(inputs), lib=library
        )
    return library
