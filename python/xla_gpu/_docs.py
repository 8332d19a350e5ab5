"""What functions for JAX and for torch document alike."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from xla_gpu._schema import Arg, Attr, Result

_F = TypeVar("_F", bound=Callable[..., object])


def contract(text: str) -> Callable[[_F], _F]:
    """Puts `text` below what a function's docstring says of its framework."""

    def add(function: _F) -> _F:
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{inspect.cleandoc(text)}"
        return function

    return add


def of_schema(
    text: str,
    args: Sequence[Arg],
    attrs: Sequence[Attr],
    returned: Sequence[Result],
    written: Sequence[Result] = (),
) -> str:
    """The docstring of a function that the schema alone makes."""
    dtypes = [re.sub(", ([^ ]*)$", r" or \1", ", ".join(a.dtypes)) or "any dtype" for a in args]
    sections = {
        "Args": [f"{a.name}: {either}, {a.doc}" for a, either in zip(args, dtypes)]
        + [f"{a.name}: {a.type}, {a.doc}" for a in attrs],
        "Updates in place": [f"{r.alias_of}: {r.doc}" for r in written],
        "Returns": [f"{r.name}: {r.doc}" for r in returned],
        "Raises": ["ValueError: for wrong shapes, dtypes, devices or attributes"],
    }
    lines = [text]
    for title, entries in sections.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}." for entry in entries)]
    return "\n".join(
        textwrap.fill(line, 100, subsequent_indent="    " * line.startswith(" ")) for line in lines
    )


PAGED_ATTENTION = """
    Query i of a sequence stands at pos = context_len - query_len + i and sees keys k <= pos; with a
    window only those with pos - k < sliding_window. Rows that belong to no sequence are 0,
    and so are rows that see no key, as before the first token where context_len < query_len. A
    sequence with an index that cannot be meant (a negative length, a page outside the cache, ...)
    gives NaN rows, the others are untouched. Softmax and sums are in f32 or better.

    Args:
      query: bf16, f16 or f32 [tokens, q_heads, head_dim], all sequences one after the other.
      kv_cache: [pages, page_size, 2 * kv_heads, head_dim] with K on even heads and V on odd; or a
        pair (K, V) of [pages, page_size, kv_heads, head_dim]; or [2, pages, page_size, kv_heads,
        head_dim]. bf16, f16, f32, float8_e4m3fn or float8_e5m2. q_heads is a multiple of kv_heads.
      context_lens: i32 [max_seqs], tokens in the cache, the new ones included.
      block_tables: i32 [max_seqs, max_pages], page numbers.
      query_start_loc: i32 [max_seqs + 1], first query row of each sequence.
      num_seqs: sequences in use, the rest is padding: i32 [1] or [], or a Python int from 0 to
        max_seqs; None for max_seqs.
      scale: factor of the logits, -1e20 to 1e20; None for head_dim ** -0.5.
      sliding_window: keys that a query sees, itself included, at least 1; None for all.
      soft_cap: logits become soft_cap * tanh(logits / soft_cap), 1e-20 to 1e20; None for none.
      sinks: f32 [q_heads] or a number, one more logit a head in the softmax's denominator.
      k_scale: f32 [1] or [kv_heads], a number, or one for each token and head in the cache, [pages,
        page_size, kv_heads]: factor of the stored keys (fp8 caches).
      v_scale: as k_scale, of the stored values.
      causal: False lets every query see the whole context.
      return_lse: also return the log-sum-exp of each row's logits.
      max_query_len: query rows that a sequence has at most, an int, 0 for unknown: a promise that
        makes decode of several tokens a sequence faster on a GPU. Where a sequence has more,
        results are right and the call is slow.
      out_dtype: float32, bfloat16 or float16; None for query's.
      batch_invariant: a sequence's bits do not depend on what else is in the batch; None for what
        the environment variable XLA_GPU_BATCH_INVARIANT says when the call is traced (in eager
        torch: at the first call of these types).

    Returns:
      out [tokens, q_heads, head_dim]; with return_lse, (out, lse) with lse f32 [tokens, q_heads]
      (natural log; where a row sees nothing the sink's logit, -inf without sinks).

    Raises:
      ValueError: for wrong shapes, dtypes, devices or attributes, while the call is traced.
"""

UPDATE_KV_CACHE = """
    Args:
      key: f32, bf16 or f16 [tokens, kv_heads, head_dim].
      value: as key.
      kv_cache: any layout of paged_attention's; its dtype may differ from key's.
      slot_mapping: i32 or i64 [tokens], page * page_size + offset in the page. A negative slot or
        one past the last is skipped: nothing is written.
      k_scale: f32 [1] or [kv_heads], a number, or [pages, page_size, kv_heads], of which a token
        takes those of its slot: fp8 caches store key / k_scale, saturated.
      v_scale: as k_scale, of the values.

    Returns:
      The updated cache, an array or a pair as it came; nothing where it is updated in place.

    Raises:
      ValueError: for wrong shapes, dtypes or devices, while the call is traced.
"""
