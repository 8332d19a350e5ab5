"""How XLA splits a call over devices under plain jit.

An op may have a rule (_rules.py), which says for a call how it may be split; what the rule does not
name is gathered first, and so is every array of an op without one.

GSPMD (JAX before 0.7) asks the callbacks here; Shardy (since) propagates by the factors and then
asks `partition`, which decides: XLA reshards whatever does not fit.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from xla_gpu._errors import InvalidArgumentError
from xla_gpu.jax import _compat

if TYPE_CHECKING:
    from xla_gpu._kernel import Kernel
    from xla_gpu.jax._primitive import Attrs, OpPrimitive

# By the names of arguments and of results; an alias shares the name of its argument.
Specs = dict[str, P]
# Rewrites the arguments of a shard, by name.
Localize = Callable[[dict[str, Any]], None]
# (mesh, arguments with shape and sharding, results likewise or none while not known)
#   -> (where arrays lie that are not whole, what a shard rewrites)
Chooser = Callable[[Mesh, Mapping[str, Any], Mapping[str, Any]], tuple[Specs, Localize | None]]


@dataclasses.dataclass(frozen=True)
class Split:
    """How one call may be split.

    Attributes:
      choose: decides, once the shardings of arguments (and results) are known.
      factors: by name, an array's dimensions as products of Shardy's factors: "t (k g) d".
      split: the factors over which devices may be spread.
      sizes: of factors inside parentheses.
    """

    choose: Chooser
    factors: Mapping[str, str]
    split: Sequence[str]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


# A call's arguments (their types, by name) and attributes -> how it may be split.
Rule = Callable[[Mapping[str, Any], Mapping[str, Any]], Split]

_WHOLE = Split(lambda mesh, args, results: ({}, None), {}, ())


def partitioned(
    op: OpPrimitive,
    rule: Rule | None,
    optional_args: tuple[str, ...],
    attrs: Attrs,
    avals: Sequence[Any],
) -> Callable[..., Any]:
    """The call in the form that XLA may split, by the op's rule if it has one."""
    results = [r for r in op.results("Host", avals, optional_args, attrs) if r.kind != "scratch"]
    arg_names, result_names = op.arg_names(optional_args), [r.name for r in results]
    split = rule(dict(zip(arg_names, avals, strict=True)), dict(attrs)) if rule else _WHOLE

    def call(*args: Any) -> tuple[Any, ...]:
        return tuple(op.bind_local(args, optional_args, attrs))

    def choose(mesh: Mesh, args: Sequence[Any], outs: Sequence[Any]) -> tuple[Specs, Any]:
        return split.choose(mesh, dict(zip(arg_names, args)), dict(zip(result_names, outs)))

    def partition(mesh: Mesh, operands: Sequence[Any], outs: Sequence[Any]) -> Any:
        specs, localize = choose(mesh, operands, outs)

        def lower(*args: Any) -> tuple[Any, ...]:
            named = dict(zip(arg_names, args, strict=True))
            if localize is not None:
                localize(named)
            return call(*named.values())

        return mesh, lower, *(_place(mesh, specs, names) for names in (result_names, arg_names))

    def infer_sharding(mesh: Mesh, operands: Sequence[Any], outs: Sequence[Any]) -> Any:
        return _place(mesh, choose(mesh, operands, ())[0], result_names)

    shapes = [aval.shape for aval in avals] + [r.spec.shape for r in results]
    if op.schema.kernel is not None:
        _check_sizes(op.schema.kernel, split, dict(zip([*arg_names, *result_names], shapes)))
    factors = _all_factors(split, [*arg_names, *result_names], shapes)
    text = " -> ".join(map(", ".join, (factors[: len(avals)], factors[len(avals) :])))
    # In the order of first appearance, which Shardy's verifier asks for.
    used, may_split = dict.fromkeys(re.findall(r"\w+", text)), set(split.split)
    alone = set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", text)))
    call_by_devices = _compat.custom_partitioning(call)
    _compat.define_partition(
        call_by_devices,
        partition=partition,
        infer_sharding=infer_sharding,
        rule=text,
        whole_factors=tuple(factor for factor in used if factor not in may_split),
        # Shardy refuses those of factors that are a whole dimension somewhere.
        factor_sizes={f: n for f, n in split.sizes.items() if f in used and f not in alone},
    )
    return call_by_devices


def _check_sizes(kernel: Kernel, split: Split, shapes: Mapping[str, Sequence[int]]) -> None:
    """A rule of the user's that does not fit the call would give devices parts of other sizes."""
    sizes: dict[str, int] = {}
    for name, rule in split.factors.items():
        dims, shape = rule.split(), shapes[name]
        fits = len(dims) == len(shape)
        if not fits or any(sizes.setdefault(f, n) != n for f, n in zip(dims, shape)):
            known = f", where {', '.join(f'{f} is {n}' for f, n in sizes.items())}" if fits else ""
            raise InvalidArgumentError(
                f"{kernel.name}: sharding is {kernel.sharding!r}, which says '{rule}' of {name}, "
                f"but its shape is {list(shape)}{known}"
            )


def _place(mesh: Mesh, specs: Specs, names: Sequence[str]) -> tuple[NamedSharding, ...]:
    return tuple(NamedSharding(mesh, specs.get(name, P())) for name in names)


def _all_factors(split: Split, names: Sequence[str], shapes: Sequence[Any]) -> list[str]:
    """The factors of each array; those that the rule does not name have some of their own."""
    own = (f"whole{i}" for i in itertools.count())
    return [
        split.factors[name] if name in split.factors else " ".join(next(own) for _ in shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
