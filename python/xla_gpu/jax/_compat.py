"""The differences between jax 0.4.38 and 0.12, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

try:
    from jax import ffi
except ImportError:  # jax 0.4.38
    from jax.extend import ffi  # type: ignore[attr-defined,no-redef]

__all__ = ["custom_partitioning", "define_partition", "ffi", "make_aval", "register_replication"]

_TAKES_SHARDY_RULE = (
    "need_replication_factors" in inspect.signature(custom_partitioning.def_partition).parameters
)


def define_partition(
    partitioned: custom_partitioning,
    *,
    partition: Callable[..., Any],
    infer_sharding: Callable[..., Any],
    rule: str,
    whole_factors: tuple[str, ...],
    factor_sizes: dict[str, int],
) -> None:
    """`def_partition` with GSPMD callbacks and, where JAX has it (0.7 on), a Shardy rule."""
    shardy: dict[str, Any] = {}
    if _TAKES_SHARDY_RULE:
        shardy = dict(sharding_rule=rule, need_replication_factors=whole_factors, **factor_sizes)
    partitioned.def_partition(
        partition=partition, infer_sharding_from_operands=infer_sharding, **shardy
    )


def _varying(aval: Any) -> frozenset[Any]:
    """The mesh axes of shard_map over which a value may differ (0.6 on, renamed in 0.10)."""
    manual = getattr(aval, "manual_axis_type", None)
    if manual is not None:
        return frozenset(manual.varying)
    return getattr(aval, "vma", None) or frozenset()


def unsummed(aval: Any) -> frozenset[Any]:
    """The mesh axes of shard_map over which a value is still to be summed (0.10 on)."""
    manual = getattr(aval, "manual_axis_type", None)
    axes: frozenset[Any] = getattr(manual, "unreduced", frozenset())
    return axes


def make_aval(shape: tuple[int, ...], dtype: Any, operands: tuple[Any, ...]) -> Any:
    """A result's abstract value; inside shard_map it varies where any operand does."""
    varying = [aval for aval in operands if _varying(aval)]
    if not varying:
        return jax.core.ShapedArray(shape, dtype)
    axes = frozenset().union(*map(_varying, varying))
    # Some releases want the mesh of the varying axes beside them (0.8, 0.9).
    sharding = NamedSharding(varying[0].sharding.mesh, P(*[None] * len(shape)))
    if not hasattr(varying[0], "manual_axis_type"):
        return jax.core.ShapedArray(shape, dtype, vma=axes, sharding=sharding)  # type: ignore[call-arg]
    manual = jax.sharding.ManualAxisType(varying=axes)
    return jax.core.ShapedArray(shape, dtype, manual_axis_type=manual, sharding=sharding)


def register_replication(primitive: Any) -> None:
    """Lets shard_map's replication check (before 0.6) pass `primitive`, as an ordinary op."""
    try:
        from jax.experimental.shard_map import (  # type: ignore[attr-defined]
            register_standard_check,
            register_standard_rewrite,
        )
    except ImportError:  # later versions read the abstract value's vma
        return
    register_standard_check(primitive)
    register_standard_rewrite(primitive)


def needs_devices(primitive: Any) -> None:
    """Tells JAX that lowering `primitive` asks for the devices, as custom_partitioning does.

    JAX has no public name for it. Without it, programs whose arguments alone are sharded would be
    lowered without a device assignment, and custom_partitioning inside them fails.
    """
    from jax._src import dispatch

    dispatch.prim_requires_devices_during_lowering.add(primitive)
