"""How XLA splits ragged_paged_attention_v3 under plain jit: by heads.

Queries, out and attention_sink are split over q_heads, keys, values and cache over kv_heads, where
each device's share of the packed cache is a packed cache of its own: 32 bits must not hold heads of
two devices. Everything else is gathered. A cache whose pages live where their sequences live is a
job for shard_map, in which the page indices are local (docs/jax.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from xla_gpu.jax._partition import (
    RULES,
    Placement,
    ShardyRule,
    _axes,
    _dividing,
    _entry,
    _first,
    _partitioned,
    _scale_spec,
)

if TYPE_CHECKING:
    from xla_gpu.jax._primitive import Attrs, OpPrimitive

_QUERIES, _KEYS, _VALUES, _CACHE = range(4)
_FIRST_OPTIONAL = 8


def partition_ragged_paged_attention_v3(
    op: OpPrimitive, optional_args: tuple[str, ...], attrs: Attrs, avals: Sequence[Any]
) -> Callable[..., Any]:
    """By heads, in units that fill whole 32 bits of the cache."""
    kv_heads = avals[_KEYS].shape[1]
    side_by_side = dict(attrs).get("cache_layout") == "side_by_side"
    unit = _heads_per_unit(avals[_CACHE].shape[3], side_by_side)
    units = kv_heads // unit if kv_heads % unit == 0 else 1

    def choose(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any] | None) -> Placement:
        outs = results or (None, None)
        wanted = _first(
            _axes(operands[_CACHE], 2),
            _axes(operands[_QUERIES], 1),
            _axes(operands[_KEYS], 1),
            _axes(outs[0], 1),
            _axes(outs[1], 2),
        )
        axes = _dividing(mesh, wanted, units)
        heads = P(None, _entry(axes), None)
        cache = P(None, None, _entry(axes), None, None)
        specs = [heads, heads, heads, cache, P(), P(), P(), P()]
        for name, operand in zip(optional_args, operands[_FIRST_OPTIONAL:], strict=True):
            sink = name == "attention_sink"
            specs.append(P(_entry(axes)) if sink else _scale_spec(operand.shape, axes))
        return Placement(tuple(specs), (heads, cache))

    rule = _rule(optional_args, avals, units, unit, side_by_side)
    return _partitioned(op, optional_args, attrs, rule, choose)


def _heads_per_unit(packing: int, side_by_side: bool) -> int:
    """How many kv heads fill whole 32 bits: `packing` rows, of one head or of half a head each."""
    return packing if side_by_side else max(1, packing // 2)


def _product(*factors: tuple[str, int]) -> str:
    """Factors of one dimension; Shardy allows none of size 1 in a product."""
    names = [name for name, size in factors if size > 1]
    return f"({' '.join(names)})" if len(names) > 1 else names[0] if names else "one"


def _rule(
    optional_args: tuple[str, ...],
    avals: Sequence[Any],
    units: int,
    unit: int,
    side_by_side: bool,
) -> ShardyRule:
    q_heads, kv_heads = avals[_QUERIES].shape[1], avals[_KEYS].shape[1]
    rows = avals[_CACHE].shape[2]
    if units == 1 or rows % units:
        return _whole_rule(optional_args, avals)
    in_unit, group = kv_heads // units, q_heads // kv_heads
    queries = _product(("u", units), ("c", in_unit), ("g", group))
    keys = _product(("u", units), ("c", in_unit))
    cache_rows = _product(("u", units), ("i", rows // units))
    cache = f"p b {cache_rows} w e"
    operands = [f"t {queries} d", f"t {keys} d", f"t {keys} d", cache, "s", "n", "m", "z"]
    whole = ["t", "d", "p", "b", "i", "w", "e", "s", "n", "m", "z", "c", "g"]
    for i, name in enumerate(optional_args):
        if name == "attention_sink":
            operands.append(queries)
        elif avals[_FIRST_OPTIONAL + i].shape[0] > 1:
            operands.append(keys)
        else:
            operands.append(f"o{i}")
            whole.append(f"o{i}")
    sizes = (("u", units), ("c", in_unit), ("g", group), ("i", rows // units))
    return ShardyRule(tuple(operands), (f"t {queries} d", cache), tuple(whole), sizes)


def _whole_rule(optional_args: tuple[str, ...], avals: Sequence[Any]) -> ShardyRule:
    """Nothing is split: the heads of one device fill no whole 32 bits."""
    operands = ["t q d", "t k d", "t k d", "p b r w e", "s", "n", "m", "z"]
    whole = list("tqdkpbrwesnmz")
    for i, name in enumerate(optional_args):
        if name == "attention_sink":
            operands.append("q")
        elif avals[_FIRST_OPTIONAL + i].shape[0] > 1:
            operands.append("k")
        else:
            operands.append(f"o{i}")
            whole.append(f"o{i}")
    return ShardyRule(tuple(operands), ("t q d", "p b r w e"), tuple(whole))


RULES["ragged_paged_attention_v3"] = partition_ragged_paged_attention_v3
