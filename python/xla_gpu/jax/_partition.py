"""How XLA splits a call over devices under plain jit, without gathering query or cache.

- heads: query, out, lse and sinks over q_heads; cache and scales over kv_heads. No communication.
- tokens of paged_attention: each device computes its own query rows against a cache that it holds
  whole; the (small, i32) index arguments are needed whole and each device cuts its part out of
  them, so this is right for any ragged batch, whatever the sequence boundaries.
- pages of update_kv_cache: each device writes the slots that lie in its own pages.

Anything else (pages of paged_attention, head_dim) is gathered first, since a block table may name
any page. A cache whose pages live where their sequences live is a job for shard_map, in which the
block tables are local (examples/jax/sharded_serving.py).

GSPMD (JAX before 0.7) asks the callbacks here; Shardy (since) propagates by the rule and then asks
`partition`, which decides: XLA reshards whatever does not fit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from xla_gpu.jax import _compat

if TYPE_CHECKING:
    from xla_gpu.jax._primitive import Attrs, OpPrimitive

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where each operand and result of a call lies, and how a shard rewrites its indices."""

    args: tuple[P, ...]
    results: tuple[P, ...]
    localize: Callable[[list[Any]], list[Any]] = lambda args: args


# (mesh, operands with shape and sharding, results likewise or None while not known) -> Placement
Chooser = Callable[[Mesh, Sequence[Any], Sequence[Any] | None], Placement]


@dataclasses.dataclass(frozen=True)
class ShardyRule:
    """A Shardy rule, e.g. "t (k g) d, p b k d -> t (k g) d": dimensions as products of factors.

    `whole` names the factors that must not be split. `sizes` gives those of factors inside
    parentheses; Shardy refuses them for factors that are a whole dimension somewhere.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    whole: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()

    def text(self) -> str:
        """The rule as JAX parses it."""
        return f"{', '.join(self.operands)} -> {', '.join(self.results)}"

    def ordered_whole(self) -> tuple[str, ...]:
        """`whole` in the order of first appearance, which the verifier asks for."""
        factors = dict.fromkeys(re.findall(r"\w+", self.text()))
        return tuple(factor for factor in factors if factor in self.whole)

    def needed_sizes(self) -> dict[str, int]:
        """The sizes that Shardy cannot tell from a dimension."""
        alone = set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", self.text())))
        used = set(re.findall(r"\w+", self.text()))
        return {factor: size for factor, size in self.sizes if factor in used - alone}


def _partitioned(
    op: OpPrimitive, optional_args: tuple[str, ...], attrs: Attrs, rule: ShardyRule, choose: Chooser
) -> Callable[..., Any]:
    def call(*args: Any) -> tuple[Any, ...]:
        return tuple(op.bind_local(args, optional_args, attrs))

    def partition(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        placement = choose(mesh, operands, results)

        def lower(*args: Any) -> tuple[Any, ...]:
            return call(*placement.localize(list(args)))

        place = functools.partial(NamedSharding, mesh)
        return mesh, lower, tuple(map(place, placement.results)), tuple(map(place, placement.args))

    def infer_sharding(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        placement = choose(mesh, operands, None)
        return tuple(NamedSharding(mesh, spec) for spec in placement.results)

    partitioned = _compat.custom_partitioning(call)
    _compat.define_partition(
        partitioned,
        partition=partition,
        infer_sharding=infer_sharding,
        rule=rule.text(),
        whole_factors=rule.ordered_whole(),
        factor_sizes=rule.needed_sizes(),
    )
    return partitioned


# ---- Mesh axes -----------------------------------------------------------------------------------


def _axes(array: Any, dim: int) -> Axes:
    """The mesh axes over which dimension `dim` of an operand is split."""
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


def _entry(axes: Axes) -> Any:
    return axes if axes else None


def _head_axes(mesh: Mesh, axes: Axes, q_heads: int, kv_heads: int) -> tuple[Axes, Axes]:
    """Splits heads: (axes of q_heads, axes of kv_heads), keeping each query beside its keys.

    A device may hold fewer query heads than a group only where it holds a single kv head.
    """
    kv = _dividing(mesh, axes, kv_heads)
    if _devices(mesh, kv) < kv_heads:
        return kv, kv
    return _dividing(mesh, axes, q_heads), kv


# ---- simple_add ----------------------------------------------------------------------------------


def partition_elementwise(
    op: OpPrimitive, optional_args: tuple[str, ...], attrs: Attrs, avals: Sequence[Any]
) -> Callable[..., Any]:
    """Two operands and a result of one shape, split alike."""
    rank = len(avals[0].shape)

    def choose(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any] | None) -> Placement:
        a, b = operands
        entries = []
        for dim, size in enumerate(a.shape):
            used = {axis for entry in entries if entry for axis in entry}
            axes = _first(_axes(a, dim), _axes(b, dim), *(_axes(r, dim) for r in results or ()))
            free = tuple(axis for axis in axes if axis not in used)
            entries.append(_entry(_dividing(mesh, free, size)))
        spec = P(*entries)
        return Placement((spec, spec), (spec,))

    dims = " ".join(f"d{i}" for i in range(rank))
    rule = ShardyRule((dims, dims), (dims,))
    return _partitioned(op, optional_args, attrs, rule, choose)


# ---- The cache's layouts -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Cache:
    """The dimensions of a kv_cache operand (DESIGN 4: interleaved, a pair, or stacked)."""

    interleaved: bool
    stacked: bool

    @property
    def pages_dim(self) -> int:
        return 1 if self.stacked else 0

    @property
    def heads_dim(self) -> int:
        return self.pages_dim + 2

    def kv_heads(self, shape: Sequence[int]) -> int:
        return shape[self.heads_dim] // (2 if self.interleaved else 1)

    def spec(self, pages: Axes, heads: Axes) -> P:
        entries = [_entry(pages), None, _entry(heads), None]
        return P(*([None] if self.stacked else []), *entries)

    def factors(self, kv_heads: int) -> str:
        """The dimensions as Shardy factors; it allows no factor of size 1 in a product."""
        heads = "k"
        if self.interleaved:
            heads = "(k i)" if kv_heads > 1 else "i"
        return f"{'c ' if self.stacked else ''}p b {heads} d"


def _cache_of(shape: Sequence[int], optional_args: Sequence[str]) -> _Cache:
    stacked = len(shape) == 5
    return _Cache(interleaved=not stacked and "v_cache" not in optional_args, stacked=stacked)


def _scale_spec(shape: Sequence[int], heads: Axes) -> P:
    return P(_entry(heads) if shape[0] > 1 else None)


# ---- paged_attention -----------------------------------------------------------------------------

_QUERY, _CACHE, _CONTEXT_LENS, _BLOCK_TABLES, _QUERY_START, _NUM_SEQS, _FIRST_OPTIONAL = range(7)


def partition_paged_attention(
    op: OpPrimitive, optional_args: tuple[str, ...], attrs: Attrs, avals: Sequence[Any]
) -> Callable[..., Any]:
    """By heads, and by query rows where no feature needs the whole sequence in one place."""
    options = dict(attrs)
    cache = _cache_of(avals[_CACHE].shape, optional_args)
    q_heads, kv_heads = avals[_QUERY].shape[1], cache.kv_heads(avals[_CACHE].shape)
    # Without a causal mask, a window is placed by the whole query's length: rows cannot be cut.
    window = options.get("sliding_window", 0)
    rows_may_split = options.get("causal", True) or not window

    def choose(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any] | None) -> Placement:
        query, kv = operands[_QUERY], operands[_CACHE]
        outs = results or ()
        wanted = _first(
            _axes(query, 1), _axes(kv, cache.heads_dim), *(_axes(out, 1) for out in outs)
        )
        q_axes, kv_axes = _head_axes(mesh, wanted, q_heads, kv_heads)
        row_axes = _first(_axes(query, 0), *(_axes(out, 0) for out in outs))
        row_axes = tuple(axis for axis in row_axes if axis not in q_axes) if rows_may_split else ()
        row_axes = _dividing(mesh, row_axes, query.shape[0])

        rows, heads = _entry(row_axes), _entry(q_axes)
        specs = [P(rows, heads, None), cache.spec((), kv_axes), P(), P(), P(), P()]
        for name, operand in zip(optional_args, operands[_FIRST_OPTIONAL:], strict=True):
            if name == "v_cache":
                specs.append(cache.spec((), kv_axes))
            elif name == "sinks":
                specs.append(P(heads))
            else:
                specs.append(_scale_spec(operand.shape, kv_axes))
        result_specs = [P(rows, heads, None), P(rows, heads)]
        num_results = 2 if options.get("return_lse") else 1
        localize = functools.partial(
            _localize_rows, row_axes, cache, options.get("causal", True), window
        )
        return Placement(
            tuple(specs),
            tuple(result_specs[:num_results]),
            localize if row_axes else Placement.localize,
        )

    return _partitioned(
        op, optional_args, attrs, _paged_attention_rule(optional_args, options, avals), choose
    )


def _paged_attention_rule(
    optional_args: tuple[str, ...], options: dict[str, Any], avals: Sequence[Any]
) -> ShardyRule:
    cache = _cache_of(avals[_CACHE].shape, optional_args)
    q_heads, kv_heads = avals[_QUERY].shape[1], cache.kv_heads(avals[_CACHE].shape)
    group = q_heads // kv_heads
    heads = "k" if group == 1 else "g" if kv_heads == 1 else "(k g)"
    sizes = {"k": kv_heads, "g": group, "i": 2}
    whole = ["p", "b", "d", "s", "m", "u", "n"]
    if cache.interleaved:
        whole.append("i")
    if cache.stacked:
        whole.append("c")
    operands = [f"t {heads} d", cache.factors(kv_heads), "s", "s m", "u", "n"]
    for i, name in enumerate(optional_args):
        if name == "v_cache":
            operands.append(cache.factors(kv_heads))
        elif name == "sinks":
            operands.append(heads)
        elif avals[_FIRST_OPTIONAL + i].shape[0] > 1:
            operands.append("k")
        else:
            operands.append(f"o{i}")
            whole.append(f"o{i}")
    results = [f"t {heads} d"] + ([f"t {heads}"] if options.get("return_lse") else [])
    return ShardyRule(tuple(operands), tuple(results), tuple(whole), tuple(sizes.items()))


def _localize_rows(
    axes: Axes, cache: _Cache, causal: bool, window: int, args: list[Any]
) -> list[Any]:
    """Rewrites a shard's index arguments so that they tell of its own query rows only.

    Where a shard ends inside a sequence, its last query stands before the sequence's last token, so
    the context that it sees is shorter by the queries that follow (bottom-right alignment).
    A sequence that the op would refuse (problem.h) must stay refused on every shard, though the
    shard's part alone may look right: its context becomes -1.
    """
    query, kv, context_lens, tables, starts = args[:_NUM_SEQS]
    local_rows = query.shape[0]
    num_rows = local_rows * jax.lax.psum(1, axes)
    first_row = (jax.lax.axis_index(axes) * local_rows).astype(starts.dtype)
    begin, end = starts[:-1], starts[1:]
    length = end - begin

    page_size, num_pages = kv.shape[cache.pages_dim + 1], kv.shape[cache.pages_dim]
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
    args[_CONTEXT_LENS] = jnp.where(bad, -1, contexts)
    args[_QUERY_START] = cut(starts) - first_row
    return args


# ---- update_kv_cache -----------------------------------------------------------------------------

_KEY, _VALUE, _UPDATED, _SLOTS, _UPDATE_OPTIONAL = range(5)


def partition_update_kv_cache(
    op: OpPrimitive, optional_args: tuple[str, ...], attrs: Attrs, avals: Sequence[Any]
) -> Callable[..., Any]:
    """By kv heads and by pages."""
    cache = _cache_of(avals[_UPDATED].shape, optional_args)
    kv_heads = cache.kv_heads(avals[_UPDATED].shape)

    def choose(mesh: Mesh, operands: Sequence[Any], results: Sequence[Any] | None) -> Placement:
        kv = operands[_UPDATED]
        wanted = _first(
            _axes(kv, cache.heads_dim),
            _axes(operands[_KEY], 1),
            *(_axes(result, cache.heads_dim) for result in results or ()),
        )
        heads = _dividing(mesh, wanted, kv_heads)
        pages = tuple(axis for axis in _axes(kv, cache.pages_dim) if axis not in heads)
        pages = _dividing(mesh, pages, kv.shape[cache.pages_dim])
        token = P(None, _entry(heads), None)
        cache_spec = cache.spec(pages, heads)
        specs = [token, token, cache_spec, P()]
        for name, operand in zip(optional_args, operands[_UPDATE_OPTIONAL:], strict=True):
            v_cache = name == "v_cache"
            specs.append(cache_spec if v_cache else _scale_spec(operand.shape, heads))
        num_results = 2 if "v_cache" in optional_args else 1
        localize = functools.partial(_localize_slots, pages, cache)
        return Placement(
            tuple(specs),
            (cache_spec,) * num_results,
            localize if pages else Placement.localize,
        )

    return _partitioned(op, optional_args, attrs, _update_rule(optional_args, avals), choose)


def _update_rule(optional_args: tuple[str, ...], avals: Sequence[Any]) -> ShardyRule:
    cache = _cache_of(avals[_UPDATED].shape, optional_args)
    whole = (
        ["t", "b", "d"] + (["i"] if cache.interleaved else []) + (["c"] if cache.stacked else [])
    )
    kv_heads = cache.kv_heads(avals[_UPDATED].shape)
    sizes = {"k": kv_heads, "i": 2}
    operands = ["t k d", "t k d", cache.factors(kv_heads), "t"]
    for i, name in enumerate(optional_args):
        if name == "v_cache":
            operands.append(cache.factors(kv_heads))
        elif avals[_UPDATE_OPTIONAL + i].shape[0] > 1:
            operands.append("k")
        else:
            operands.append(f"o{i}")
            whole.append(f"o{i}")
    results = [cache.factors(kv_heads)] * (2 if "v_cache" in optional_args else 1)
    return ShardyRule(tuple(operands), tuple(results), tuple(whole), tuple(sizes.items()))


def _localize_slots(axes: Axes, cache: _Cache, args: list[Any]) -> list[Any]:
    """Counts slots from the shard's first page; those of other shards fall outside: skipped."""
    shape = args[_UPDATED].shape
    slots = shape[cache.pages_dim] * shape[cache.pages_dim + 1]
    first_slot = (jax.lax.axis_index(axes) * slots).astype(args[_SLOTS].dtype)
    # A negative slot stays negative even next to the type's lowest value.
    args[_SLOTS] = jnp.where(args[_SLOTS] < 0, -1, args[_SLOTS] - first_slot)
    return args


RULES = {
    "simple_add": partition_elementwise,
    "paged_attention": partition_paged_attention,
    "update_kv_cache": partition_update_kv_cache,
}
