"""One JAX primitive per op, made from its schema; it lowers to a typed-FFI custom call.

The primitive's parameters are hashable: `optional_args` (names of the optional arguments present),
`attrs` (name, value pairs) and `local` (true once XLA has partitioned the call, see _partition.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from xla_gpu import _ops, _schema
from xla_gpu._errors import InvalidArgumentError, UnimplementedError
from xla_gpu._kernel import as_key
from xla_gpu.jax import _compat, _partition, _registration
from xla_gpu.jax._rules import RULES, of_kernel

# JAX's lowering platforms -> XLA's (and the library's) platform names.
PLATFORMS = {"cpu": "Host", "cuda": "CUDA"}

Attrs = tuple[tuple[str, Any], ...]


def call(
    op: str | _schema.Op, args: Mapping[str, Any], attrs: Mapping[str, _ops.AttrValue]
) -> list[jax.Array]:
    """Calls an op by the names of its schema.

    Args:
      op: the op, or its name.
      args: arrays by argument, absent optional ones left out.
      attrs: attributes as the library takes them; those left out have their defaults.

    Returns:
      The results that the call has, without work space.

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    primitive = of(op)
    unknown = [name for name in args if name not in primitive.names]
    if unknown:
        raise InvalidArgumentError(
            f"{primitive.op}: no argument is named {unknown}; known are {primitive.names}"
        )
    jitted = primitive.jitted(_keyed(attrs), primitive.environment())
    return jitted(*map(args.get, primitive.names))


def _keyed(attrs: Mapping[str, _ops.AttrValue]) -> Attrs:
    """Attributes as a key of caches, ours and JAX's: it lowers equal calls of a program once."""
    return tuple(zip(attrs, as_key(tuple(attrs.values()))))


@functools.cache
def of(op: str | _schema.Op) -> OpPrimitive:
    """The primitive of an op; NotFoundError if the library has none of that name."""
    return of(_schema.schema(op)) if isinstance(op, str) else OpPrimitive(op)


@functools.lru_cache(maxsize=4096)
def _infer(
    op: str,
    platform: str,
    specs: tuple[_ops.TensorSpec, ...],
    optional_args: tuple[str, ...],
    attrs: Attrs,
) -> tuple[_ops.Result, ...]:
    named = dict(attrs)
    if optional_args:
        named["optional_args"] = ",".join(optional_args)
    return tuple(_ops.infer(op, platform, specs, named))


def _numpy_dtype(name: str) -> np.dtype:
    return jax.numpy.dtype(_ops.NUMPY_NAMES[name])


def _mlir_attribute(value: Any, floats: type[np.floating[Any]]) -> Any:
    """The value as XLA's dictionary carries it: a float, i64, i1, a string or i64s."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return floats(value)
    return np.asarray(value, np.int64)[()]


def spec_of(op: str, name: str, array: Any) -> _ops.TensorSpec:
    """An argument's type; InvalidArgumentError for a shape that is not known yet (jax.export)."""
    if not all(isinstance(size, int) for size in array.shape):
        raise InvalidArgumentError(
            f"{op}: {name} has the symbolic shape {array.shape}; XLA's kernels are made for exact "
            "shapes, so export with concrete shapes"
        )
    try:
        return _ops.spec_of(array)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{op}: {name}: {error}") from None


class OpPrimitive:
    """An op of the library as a JAX primitive."""

    def __init__(self, schema: _schema.Op) -> None:
        self.op, self.schema, self._id = schema.name, schema, schema.id
        self.names = tuple(a.name for a in schema.args)
        self._environment = tuple(a.environment.encode() for a in schema.attrs if a.environment)
        self.primitive = Primitive(f"xla_gpu_{self.op}")
        self.primitive.multiple_results = True
        self.primitive.def_abstract_eval(self._abstract_eval)
        self.primitive.def_impl(self._run)
        loop = schema.instead_of_batching.replace("loop over the batch", "loop with jax.lax.map")
        stop = "wrap its inputs in jax.lax.stop_gradient"
        refuse = self._refuse("vmap", loop)
        has_rule = schema.kernel is not None and schema.kernel.vmap is not None
        batching.primitive_batchers[self.primitive] = self._batch if has_rule else refuse
        ad.primitive_jvps[self.primitive] = self._refuse(
            "differentiation", schema.instead_of_gradient, stop
        )
        for platform in PLATFORMS:
            mlir.register_lowering(
                self.primitive, functools.partial(self._lower, platform), platform=platform
            )
        mlir.register_lowering(self.primitive, functools.partial(self._lower, ""))
        _compat.register_replication(self.primitive)
        _compat.needs_devices(self.primitive)
        self.jitted = functools.lru_cache(maxsize=1024)(self._make_jitted)

    def environment(self) -> tuple[bytes | None, ...]:
        """The environment variables that defaults of attributes depend on."""
        return tuple(map(_schema.getenv, self._environment))

    def _make_jitted(
        self, attrs: Attrs, environment: tuple[bytes | None, ...]
    ) -> Callable[..., list[jax.Array]]:
        """The call as a function of all arguments of the schema, absent ones None.

        Compiled once per types, inlined in an outer jit. Defaults depend on `environment`.
        """
        complete = self.complete(dict(attrs))

        def call(*values: Any) -> list[jax.Array]:
            args, optional_args = [], []
            for arg, value in zip(self.schema.args, values, strict=True):
                if arg.optional:
                    if value is None:
                        continue
                    optional_args.append(arg.name)
                elif value is None:
                    raise InvalidArgumentError(
                        f"{self.op}: {arg.name} is None; it must be an array"
                    )
                args.append(self._vector(arg, value) if arg.vector else value)
            results: list[jax.Array] = self.primitive.bind(
                *args, optional_args=tuple(optional_args), attrs=complete, local=False
            )
            return results

        call.__name__ = self.op
        return jax.jit(call, inline=True)

    def complete(self, attrs: Mapping[str, _ops.AttrValue]) -> Attrs:
        """The attributes with the defaults of those that are not given, in one order."""
        named: dict[str, Any] = {
            a.name: _schema.default(a) for a in self.schema.attrs if a.default is not None
        }
        return _keyed(dict(sorted((named | dict(attrs)).items())))

    def arg_names(self, optional_args: tuple[str, ...]) -> tuple[str, ...]:
        """The names of a call's arguments."""
        return tuple(a.name for a in self.schema.args if not a.optional or a.name in optional_args)

    def _run(self, *args: Any, optional_args: tuple[str, ...], attrs: Attrs, local: bool) -> Any:
        """Outside any trace: a program of this op alone, under jax.disable_jit too."""
        values = dict(zip(self.arg_names(optional_args), args, strict=True))
        with jax.disable_jit(False):
            return self.jitted(attrs, ())(*map(values.get, self.names))

    def _vector(self, arg: _schema.Arg, array: Any) -> Any:
        """A vector's array of rank 1 where a 0-d one came; for f32 of any floating dtype."""
        if array.ndim == 0:
            array = array.reshape(1)
        if arg.dtypes != ("f32",) or array.dtype == np.float32:
            return array
        if not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
            came = spec_of(self.op, arg.name, array)
            raise InvalidArgumentError(
                f"{self.op}: {arg.name} is {came}; its dtype must be floating"
            )
        return array.astype(np.float32)

    def bind_local(self, args: Sequence[Any], optional_args: tuple[str, ...], attrs: Attrs) -> Any:
        """The call on one device's shard, whose types may want other attributes of a kernel."""
        if self.schema.kernel is not None:
            from xla_gpu.jax import _kernels

            given = dict(zip(self.arg_names(optional_args), args, strict=True))
            scalars = self.schema.kernel.user_scalars(dict(attrs))
            return _kernels.bind(self.schema.kernel, given, scalars, local=True)
        return self.primitive.bind(*args, optional_args=optional_args, attrs=attrs, local=True)

    def results(
        self, platform: str, avals: Sequence[Any], optional_args: tuple[str, ...], attrs: Attrs
    ) -> tuple[_ops.Result, ...]:
        """The results on "Host" or "CUDA"; ValueError with the library's message."""
        names = self.arg_names(optional_args)
        specs = tuple(spec_of(self.op, name, aval) for name, aval in zip(names, avals))
        return _infer(self._id, platform, specs, optional_args, attrs)

    def _batch(
        self,
        args: Sequence[Any],
        dims: Sequence[Any],
        *,
        optional_args: tuple[str, ...],
        attrs: Attrs,
        local: bool,
    ) -> Any:
        from xla_gpu.jax import _kernels

        return _kernels.batch(self, args, dims, optional_args, attrs)

    def _refuse(self, what: str, *remedies: str) -> Callable[..., Any]:
        message = "; ".join((f"{self.op}: {what} is not supported", *filter(None, remedies)))

        def rule(*args: Any, **params: Any) -> Any:
            raise UnimplementedError(message)

        return rule

    def _abstract_eval(
        self, *avals: Any, optional_args: tuple[str, ...], attrs: Attrs, local: bool
    ) -> list[Any]:
        for name, aval in zip(self.arg_names(optional_args), avals):
            if axes := _compat.unsummed(aval):
                raise InvalidArgumentError(
                    f"{self.op}: {name} is unreduced over {sorted(map(str, axes))}; its parts must "
                    "be summed first (jax.lax.psum)"
                )
        return [
            _compat.make_aval(r.spec.shape, _numpy_dtype(r.spec.dtype), avals)
            for r in self.results("Host", avals, optional_args, attrs)
            if r.kind != "scratch"
        ]

    def _lower(
        self,
        platform: str,
        ctx: mlir.LoweringRuleContext,
        *operands: Any,
        optional_args: tuple[str, ...],
        attrs: Attrs,
        local: bool,
    ) -> Any:
        self._check_platforms(platform, ctx)
        if self._id == "all_reduce" and platform == "cuda":
            self._check_devices(ctx, dict(attrs)["devices"])
        single = getattr(ctx.module_context.axis_context, "num_devices", 0) == 1
        if not local and not single:
            kernel = self.schema.kernel
            rule = RULES.get(self.op) if kernel is None else of_kernel(kernel)
            call = _partition.partitioned(self, rule, optional_args, attrs, ctx.avals_in)
            return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)
        return self._lower_custom_call(PLATFORMS[platform], ctx, operands, optional_args, attrs)

    def _check_platforms(self, platform: str, ctx: mlir.LoweringRuleContext) -> None:
        wanted = getattr(ctx, "platforms", None) or ctx.module_context.platforms
        if not platform:
            unknown = [p for p in wanted if p not in PLATFORMS]
            raise UnimplementedError(
                f"{self.op}: platform {', '.join(unknown or wanted)} is not supported; allowed are "
                f"{', '.join(PLATFORMS)} (jax.default_device or JAX_PLATFORMS chooses)"
            )

    def _check_devices(self, ctx: mlir.LoweringRuleContext, devices: str) -> None:
        """A sum over devices must run on them all: one would wait for those that never come."""
        wanted, context = devices.count(",") + 1, ctx.module_context.axis_context
        mesh = getattr(context, "mesh", None)
        count = mesh.size if mesh is not None else getattr(context, "num_devices", wanted)
        if wanted > count:
            raise InvalidArgumentError(
                f"{self.op}: attribute 'devices' is \"{devices}\", but the program runs on {count} "
                f"device{'s' * (count > 1)}; it must run on all that sum (jax.shard_map over "
                "their mesh)"
            )
        if wanted > 1 and mesh is None and hasattr(context, "num_devices"):
            raise InvalidArgumentError(
                f"{self.op}: x is one array of {count} devices, of which each would add the whole; "
                "call it in jax.shard_map, where x is what each device has"
            )

    def _lower_custom_call(
        self,
        platform: str,
        ctx: mlir.LoweringRuleContext,
        operands: Sequence[Any],
        optional_args: tuple[str, ...],
        attrs: Attrs,
    ) -> Any:
        _registration.register_op(self._id, platform)
        results = self.results(platform, ctx.avals_in, optional_args, attrs)
        scratch = [
            jax.core.ShapedArray(r.spec.shape, _numpy_dtype(r.spec.dtype))
            for r in results
            if r.kind == "scratch"
        ]
        wide = np.float64 if self.schema.key else np.float32  # a user's scalar may be an f64
        attributes = {name: _mlir_attribute(value, wide) for name, value in attrs}
        if optional_args:
            attributes["optional_args"] = ",".join(optional_args)
        if self.schema.definition and ctx.module_context.lowering_parameters.for_export:
            attributes["definition"] = _schema.portable(self.schema)
        lowering = _compat.ffi.ffi_lowering(
            self.schema.target,
            operand_output_aliases={
                r.alias_of: i for i, r in enumerate(results) if r.alias_of is not None
            },
        )
        full_ctx = ctx.replace(avals_out=[*ctx.avals_out, *scratch])
        return list(lowering(full_ctx, *operands, **attributes))[: len(ctx.avals_out)]
