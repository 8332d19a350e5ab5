"""Kernels of the user's on JAX's arrays and tracers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_gpu import _given
from xla_gpu._errors import InvalidArgumentError, at_callers_line
from xla_gpu._kernel import Kernel, Scalars, as_key
from xla_gpu.jax import _functions, _primitive


@at_callers_line
def call(kernel: Kernel, arrays: Sequence[Any], scalars: tuple[Any, ...]) -> Any:
    """The kernel on arrays and scalars in its schema's order: its result, or a tuple of them."""
    if not _functions.known_types.issuperset(map(type, arrays)):
        arrays = [
            _functions.array(kernel.name, arg.name, value, arg.optional)
            for arg, value in zip(kernel.schema.args, arrays, strict=True)
        ]
    results = _jitted(kernel, *as_key(scalars))(*arrays)
    return results[0] if len(results) == 1 else tuple(results)


@_functions.keep
def _jitted(kernel: Kernel, *values: Any) -> Callable[..., Sequence[jax.Array]]:
    """The call as a function of all arguments, absent ones None; traced once for their types."""
    scalars = kernel.scalars(values)

    def run(*values: Any) -> Sequence[jax.Array]:
        given = {}
        for arg, value in zip(kernel.schema.args, values, strict=True):
            if value is not None:
                given[arg.name] = value
            elif not arg.optional:
                raise InvalidArgumentError(
                    f"{kernel.name}: {arg.name} is None; it must be an array"
                )
        return bind(kernel, given, scalars)

    run.__name__ = kernel.name
    if kernel.gradient is not None:
        run = _differentiable(kernel, run, scalars)
    return jax.jit(run, inline=True)


def bind(
    kernel: Kernel, given: Mapping[str, Any], scalars: Scalars, local: bool = False
) -> Sequence[jax.Array]:
    """The primitive of the op that the kernel is for arrays of these types."""
    specs = {name: _primitive.spec_of(kernel.name, name, value) for name, value in given.items()}
    op, attrs = kernel.resolve(specs, scalars)
    primitive = _primitive.of(op)
    optional = [a.name for a in primitive.schema.args if a.optional and a.name in given]
    results: Sequence[jax.Array] = primitive.primitive.bind(
        *given.values(),
        optional_args=tuple(optional),
        attrs=primitive.complete(attrs),
        local=local,
    )
    return results


def _differentiable(
    kernel: Kernel, run: Callable[..., Any], scalars: Scalars
) -> Callable[..., Any]:
    """`run` with the kernel's gradient for reverse mode."""
    function = jax.custom_vjp(run)

    def forward(*values: Any) -> tuple[Any, Any]:
        results = run(*values)
        return results, (values, tuple(results))

    def backward(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        values, results = kept
        given = tuple(v for v in values if v is not None)
        assert kernel.gradient is not None
        gradients = kernel.gradient(given, results, tuple(cotangents), **scalars)
        if not isinstance(gradients, tuple | list) or len(gradients) != len(given):
            raise InvalidArgumentError(
                f"{kernel.name}: gradient gave {type(gradients).__name__}; it must give a tuple of "
                f"{len(given)}, one for each argument (None: it has none)"
            )
        left = iter(gradients)
        return tuple(
            None if v is None else gradient(v, next(left), f"{kernel.name}: gradient of {arg.name}")
            for arg, v in zip(kernel.schema.args, values, strict=True)
        )

    function.defvjp(forward, backward)
    return function


def gradient(value: Any, made: Any, said: str) -> Any:
    """As JAX takes it: integers have gradients of float0, None stands for zeros.

    Raises:
      InvalidArgumentError: it is no array of the value's shape; the message begins with `said`.
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return None
    if made is None:
        return jnp.zeros_like(value)
    is_array = isinstance(made, jax.Array | np.ndarray) and made.shape == value.shape
    if not is_array or (jnp.iscomplexobj(made) and not jnp.iscomplexobj(value)):
        raise InvalidArgumentError(
            f"{said} is {_given.came(made)}; it must be a real array of shape {value.shape}, "
            "or None"
        )
    return jnp.asarray(made, value.dtype)


# ---- vmap ----------------------------------------------------------------------------------------


def batch(
    primitive: _primitive.OpPrimitive,
    args: Sequence[Any],
    dims: Sequence[Any],
    optional_args: tuple[str, ...],
    attrs: _primitive.Attrs,
) -> tuple[Sequence[jax.Array], Sequence[int]]:
    """Vmap's rule of a call, as the kernel's `vmap` says."""
    kernel = primitive.schema.kernel
    assert kernel is not None
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    is_batched = [d is not None for d in dims]
    if kernel.vmap == "sequential":

        def one(batched: Sequence[Any]) -> Sequence[jax.Array]:
            items = iter(batched)
            mixed = [next(items) if b else a for a, b in zip(moved, is_batched, strict=True)]
            results: Sequence[jax.Array] = primitive.primitive.bind(
                *mixed, optional_args=optional_args, attrs=attrs, local=False
            )
            return results

        results = jax.lax.map(one, [a for a, b in zip(moved, is_batched, strict=True) if b])
    else:
        size = next(a.shape[0] for a, b in zip(moved, is_batched, strict=True) if b)
        lead = 1 if kernel.vmap == "expand_dims" else size
        whole = [
            a if b else jnp.broadcast_to(a, (lead, *a.shape))
            for a, b in zip(moved, is_batched, strict=True)
        ]
        names = primitive.arg_names(optional_args)
        given = dict(zip(names, whole, strict=True))
        results = bind(kernel, given, kernel.user_scalars(dict(attrs)))
    return results, (0,) * len(results)
