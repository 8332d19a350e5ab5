"""How calls of each op may be split (_partition.py), without gathering query or cache.

- heads: query, out, lse and sinks over q_heads; cache and scales over kv_heads. No communication.
- tokens of paged_attention: each device computes its own query rows against a cache that it holds
  whole; the (small, i32) index arguments are needed whole and each device cuts its part out of
  them, so this is right for any ragged batch, whatever the sequence boundaries.
- pages of update_kv_cache: each device writes the slots that lie in its own pages.
- columns of grouped_matmul, rows of quantize_rows, tokens of rotary_embedding. No communication.

Anything else (pages of paged_attention, head_dim) is gathered first, since a block table may name
any page. A cache whose pages live where their sequences live is a job for shard_map, in which the
block tables are local (examples/jax/sharded_serving.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from xla_gpu._errors import InvalidArgumentError
from xla_gpu._kernel import Kernel, factors_of
from xla_gpu.jax._partition import Localize, Rule, Specs, Split

Axes = tuple[str, ...]
Arrays = Mapping[str, Any]

# ---- Mesh axes -----------------------------------------------------------------------------------


def _axes(array: Any, dim: int) -> Axes:
    """The mesh axes over which dimension `dim` of an array is split; none for None."""
    spec = getattr(getattr(array, "sharding", None), "spec", None)
    if spec is None or dim >= len(spec) or spec[dim] is None:
        return ()
    if isinstance(spec[dim], str):
        return (spec[dim],)
    return tuple(spec[dim]) if isinstance(spec[dim], tuple) else ()


def _devices(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _dividing(mesh: Mesh, axes: Axes, size: int) -> Axes:
    """The longest prefix of `axes` that splits `size` evenly."""
    for end in range(len(axes), 0, -1):
        if size % _devices(mesh, axes[:end]) == 0:
            return axes[:end]
    return ()


def _first(*candidates: Axes) -> Axes:
    return next((axes for axes in candidates if axes), ())


def _without(axes: Axes, used: Axes) -> Axes:
    return tuple(axis for axis in axes if axis not in used)


def _head_axes(mesh: Mesh, axes: Axes, q_heads: int, kv_heads: int) -> tuple[Axes, Axes]:
    """Splits heads: (axes of q_heads, axes of kv_heads), keeping each query beside its keys.

    A device may hold fewer query heads than a group only where it holds a single kv head.
    """
    kv = _dividing(mesh, axes, kv_heads)
    if _devices(mesh, kv) < kv_heads:
        return kv, kv
    return _dividing(mesh, axes, q_heads), kv


def _product(**factors: int) -> str:
    """Factors of one dimension, with their sizes; Shardy allows none of size 1 in a product."""
    names = [name for name, size in factors.items() if size > 1]
    return f"({' '.join(names)})" if len(names) > 1 else names[0] if names else "one"


# ---- Ops whose dimensions are told apart by factors ----------------------------------------------


def _by_factors(factors: Mapping[str, Sequence[str]], args: Arrays, splittable: set[str]) -> Split:
    """Each dimension of the arrays has a factor; those of `splittable` may be split."""
    sizes = {f: n for name in args for f, n in zip(factors[name], args[name].shape)}

    def choose(mesh: Mesh, args: Arrays, results: Arrays) -> tuple[Specs, None]:
        found: dict[str, Axes] = {}
        for name, array in (*args.items(), *results.items()):
            for dim, factor in enumerate(factors[name]):
                if factor in splittable and factor not in found and factor in sizes:
                    axes = _without(_axes(array, dim), sum(found.values(), ()))
                    if axes := _dividing(mesh, axes, sizes[factor]):
                        found[factor] = axes
        return {n: P(*(found.get(f) for f in dims)) for n, dims in factors.items()}, None

    return Split(choose, {n: " ".join(dims) for n, dims in factors.items()}, sorted(splittable))


def _simple_add(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    dims = [f"d{i}" for i in range(len(args["a"].shape))]
    return _by_factors(dict.fromkeys("abc", dims), args, set(dims))


def _grouped_matmul(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    """Columns of the matrices and of the result; which rows are whose stands in group_sizes."""
    factors = {
        "lhs": ("rows", "inner"),
        "rhs": ("groups", "inner", "columns"),
        "group_sizes": ("groups",),
        "rhs_scale": ("groups", "blocks", "columns"),
        "out": ("rows", "columns"),
    }
    return _by_factors(factors, args, {"columns"})


def _quantize_rows(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    factors = {
        "x": ("rows", "of_x"),  # twice as many columns with an activation
        "norm_weight": ("columns",),
        "row_factor": ("rows",),
        "column_factor": ("of_x",),
        "residual": ("rows", "columns"),
        "out": ("rows", "columns"),
        "scale": ("rows",),
        "sum": ("rows", "columns"),
    }
    return _by_factors(factors, args, {"rows"})


def _rotary_embedding(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    """By tokens; queries, keys and values lie one after the other in a row."""
    factors = {
        "qkv": ("tokens", "columns"),
        "positions": ("tokens",),
        "cos_sin": ("positions", "angles"),
        "q_norm": ("head_dim",),
        "k_norm": ("head_dim",),
        "row_factor": ("tokens",),
        "column_factor": ("columns",),
        "q": ("tokens", "queries"),
        "k": ("tokens", "keys"),
        "v": ("tokens", "values"),
    }
    return _by_factors(factors, args, {"tokens"})


def of_kernel(kernel: Kernel) -> Rule | None:
    """The rule of a user's kernel by its `sharding`, "i j, j k -> i k".

    Factors that every result has may be split; the others, over which a kernel sums, stay whole.
    """
    if kernel.sharding is None:
        return None
    sides = factors_of(kernel.name, kernel.sharding, kernel.schema)
    results = [r.name for r in kernel.schema.results if r.kind != "scratch"]
    splittable = set.intersection(*map(set, sides[1]))

    def rule(args: Arrays, attrs: Mapping[str, Any]) -> Split:
        # An optional argument that the call leaves out takes its dimensions with it.
        known = dict(zip((arg.name for arg in kernel.schema.args), sides[0]))
        factors = {name: known[name] for name in args if name in known}
        ranks, told = [len(a.shape) for a in args.values()], list(map(len, factors.values()))
        if ranks != told:
            raise InvalidArgumentError(
                f"{kernel.name}: sharding is {kernel.sharding!r}, for arguments of ranks {told}; "
                f"those of this call are {ranks}"
            )
        return _by_factors(factors | dict(zip(results, sides[1])), args, splittable)

    return rule


# ---- The cache's layouts -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Cache:
    """The dimensions of a kv_cache operand (interleaved, a pair, or stacked) and of its scales."""

    interleaved: bool
    stacked: bool
    scales: Mapping[str, int]

    @property
    def pages_dim(self) -> int:
        return 1 if self.stacked else 0

    @property
    def heads_dim(self) -> int:
        return self.pages_dim + 2

    def kv_heads(self, shape: Sequence[int]) -> int:
        return shape[self.heads_dim] // (2 if self.interleaved else 1)

    def specs(self, pages: Axes, heads: Axes) -> Specs:
        lead = [None] if self.stacked else []
        of_scales = _of_scales(self.scales, (pages or None, None), heads or None)
        specs = {name: P(*dims) for name, dims in of_scales.items()}
        cache = P(*lead, pages or None, None, heads or None)
        return specs | dict.fromkeys(("kv_cache", "v_cache"), cache)

    def factors(self, kv_heads: int) -> dict[str, str]:
        heads = _product(k=kv_heads, i=2 if self.interleaved else 1)
        of_scales = _of_scales(self.scales, ("p", "b"), _product(k=kv_heads))
        factors = {name: " ".join(dims) for name, dims in of_scales.items()}
        cache = f"{'c ' if self.stacked else ''}p b {heads} d"
        return factors | dict.fromkeys(("kv_cache", "v_cache"), cache)


def _cache_of(args: Arrays) -> _Cache:
    stacked = len(args["kv_cache"].shape) == 5
    interleaved = not stacked and "v_cache" not in args
    return _Cache(interleaved=interleaved, stacked=stacked, scales=_scales(args))


def _scales(args: Arrays) -> dict[str, int]:
    """The scales of kv heads, with their rank: 3 for those of pages' tokens."""
    shapes = {name: args[name].shape for name in ("k_scale", "v_scale") if name in args}
    return {name: len(shape) for name, shape in shapes.items() if shape != (1,)}


def _of_scales(scales: Mapping[str, int], tokens: tuple[Any, Any], heads: Any) -> dict[str, Any]:
    """What each dimension of the scales is, by that of pages, tokens in a page, and heads."""
    return {name: (*tokens, heads)[-rank:] for name, rank in scales.items()}


# ---- paged_attention -----------------------------------------------------------------------------


def _paged_attention(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    """By heads, and by query rows where no feature needs the whole sequence in one place."""
    cache = _cache_of(args)
    q_heads, kv_heads = args["query"].shape[1], cache.kv_heads(args["kv_cache"].shape)
    # Without a causal mask, a window is placed by the whole query's length: rows cannot be cut.
    causal, window = attrs["causal"], attrs.get("sliding_window", 0)
    rows_may_split = causal or not window

    def choose(mesh: Mesh, args: Arrays, results: Arrays) -> tuple[Specs, Localize | None]:
        query, outs = args["query"], results.values()
        wanted = _first(
            _axes(query, 1),
            _axes(args["kv_cache"], cache.heads_dim),
            *(_axes(out, 1) for out in outs),
        )
        heads, kv_axes = _head_axes(mesh, wanted, q_heads, kv_heads)
        rows = _first(_axes(query, 0), *(_axes(out, 0) for out in outs)) if rows_may_split else ()
        rows = _dividing(mesh, _without(rows, heads), query.shape[0])
        specs = dict.fromkeys(("query", "out", "lse"), P(rows or None, heads or None))
        specs |= cache.specs((), kv_axes) | {"sinks": P(heads or None)}
        return specs, functools.partial(_cut_rows, rows, cache, causal, window) if rows else None

    sizes = {"k": kv_heads, "g": q_heads // kv_heads}
    heads = _product(**sizes)
    factors = dict.fromkeys(("query", "out"), f"t {heads} d")
    factors |= cache.factors(kv_heads) | {"lse": f"t {heads}", "sinks": heads}
    return Split(choose, factors, "tkg", sizes | {"i": 2})


def _cut_rows(axes: Axes, cache: _Cache, causal: bool, window: int, args: dict[str, Any]) -> None:
    """Rewrites a shard's index arguments so that they tell of its own query rows only.

    Where a shard ends inside a sequence, its last query stands before the sequence's last token, so
    the context that it sees is shorter by the queries that follow (bottom-right alignment).
    A sequence that the op would refuse (problem.h) must stay refused on every shard, though the
    shard's part alone may look right: its context becomes -1.
    """
    kv, context_lens, tables = args["kv_cache"], args["context_lens"], args["block_tables"]
    starts, local_rows = args["query_start_loc"], args["query"].shape[0]
    num_rows = local_rows * jax.lax.psum(1, axes)
    first_row = (jax.lax.axis_index(axes) * local_rows).astype(starts.dtype)
    begin, end = starts[:-1], starts[1:]
    length = end - begin

    num_pages, page_size = kv.shape[cache.pages_dim : cache.heads_dim]
    bad = (begin > end) | (begin < 0) | (end > num_rows)
    bad |= (context_lens < 0) | (context_lens > tables.shape[1] * page_size)
    page = jnp.arange(tables.shape[1], dtype=tables.dtype)
    used = page < ((context_lens + page_size - 1) // page_size)[:, None]
    if window:
        first_key = jnp.maximum(context_lens - length - (window - 1), 0)
        used &= page >= (first_key // page_size)[:, None]
    bad |= jnp.any(used & ((tables < 0) | (tables >= num_pages)), axis=1)

    def cut(row: Any) -> Any:
        return jnp.clip(row, first_row, first_row + local_rows)

    contexts = context_lens - (end - cut(end)) if causal else context_lens
    # Sequences that have no rows here, or none that sees a key, must not look wrong.
    contexts = jnp.where(cut(end) > cut(begin), jnp.maximum(contexts, 0), 0)
    args["context_lens"] = jnp.where(bad, -1, contexts)
    args["query_start_loc"] = cut(starts) - first_row


# ---- update_kv_cache -----------------------------------------------------------------------------


def _update_kv_cache(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    """By kv heads and by pages."""
    cache = _cache_of(args)
    kv_heads = cache.kv_heads(args["kv_cache"].shape)

    def choose(mesh: Mesh, args: Arrays, results: Arrays) -> tuple[Specs, Localize | None]:
        kv = args["kv_cache"]
        wanted = _first(
            _axes(kv, cache.heads_dim),
            _axes(args["key"], 1),
            *(_axes(result, cache.heads_dim) for result in results.values()),
        )
        heads = _dividing(mesh, wanted, kv_heads)
        pages = _without(_axes(kv, cache.pages_dim), heads)
        pages = _dividing(mesh, pages, kv.shape[cache.pages_dim])
        specs = dict.fromkeys(("key", "value"), P(None, heads or None))
        specs |= cache.specs(pages, heads)
        return specs, functools.partial(_own_slots, pages, cache) if pages else None

    factors = dict.fromkeys(("key", "value"), "t k d") | cache.factors(kv_heads)
    return Split(choose, factors, "kp", {"k": kv_heads, "i": 2})


def _own_slots(axes: Axes, cache: _Cache, args: dict[str, Any]) -> None:
    """Counts slots from the shard's first page; those of other shards fall outside: skipped."""
    slots = args["slot_mapping"]
    number = math.prod(args["kv_cache"].shape[cache.pages_dim : cache.heads_dim])
    first_slot = (jax.lax.axis_index(axes) * number).astype(slots.dtype)
    # A negative slot stays negative even next to the type's lowest value.
    args["slot_mapping"] = jnp.where(slots < 0, -1, slots - first_slot)


# ---- ragged_paged_attention_v3 -------------------------------------------------------------------


def _ragged_paged_attention_v3(args: Arrays, attrs: Mapping[str, Any]) -> Split:
    """By heads, in units that fill whole 32 bits of the cache, which makes each share a cache."""
    q_heads, kv_heads = args["queries"].shape[1], args["keys"].shape[1]
    rows, packing = args["kv_cache"].shape[2:4]
    # `packing` rows of 32 bits are each one head or, one after the other, K or V of it.
    unit = packing if attrs["cache_layout"] == "side_by_side" else max(1, packing // 2)
    units = kv_heads // unit if kv_heads % unit == 0 else 1
    scales = _scales(args)

    def choose(mesh: Mesh, args: Arrays, results: Arrays) -> tuple[Specs, None]:
        wanted = _first(
            _axes(args["kv_cache"], 2),
            _axes(args["queries"], 1),
            _axes(args["keys"], 1),
            _axes(results.get("out"), 1),
            _axes(results.get("kv_cache"), 2),
        )
        axes = _dividing(mesh, wanted, units) or None
        specs = dict.fromkeys(("queries", "keys", "values", "out"), P(None, axes))
        specs |= {n: P(*dims) for n, dims in _of_scales(scales, (None, None), axes).items()}
        specs["attention_sink"] = P(axes)
        return specs | {"kv_cache": P(None, None, axes)}, None

    if units == 1 or rows % units:
        return Split(choose, {}, ())
    in_unit = {"c": kv_heads // units, "g": q_heads // kv_heads}
    queries, keys = _product(u=units, **in_unit), _product(u=units, c=in_unit["c"])
    factors = dict.fromkeys(("queries", "out"), f"t {queries} d") | {"attention_sink": queries}
    factors |= dict.fromkeys(("keys", "values"), f"t {keys} d")
    factors |= {n: " ".join(dims) for n, dims in _of_scales(scales, ("p", "b"), keys).items()}
    factors["kv_cache"] = f"p b {_product(u=units, i=rows // units)} w e"
    return Split(choose, factors, "u", {"u": units, "i": rows // units} | in_unit)


RULES: dict[str, Rule] = {
    "simple_add": _simple_add,
    "grouped_matmul": _grouped_matmul,
    "quantize_rows": _quantize_rows,
    "rotary_embedding": _rotary_embedding,
    "paged_attention": _paged_attention,
    "update_kv_cache": _update_kv_cache,
    "ragged_paged_attention_v3": _ragged_paged_attention_v3,
}
