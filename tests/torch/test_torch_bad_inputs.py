"""Wrong calls through every torch door: each raises an error that says what was wrong.

The doors: the op (torch.ops.xla_gpu), the function (xla_gpu.torch), the op on fake tensors (what
torch.compile and torch.export see) and the op on meta tensors.
"""

import dataclasses
import pathlib
import traceback
from collections.abc import Callable

import pytest
import torch
import xla_gpu.torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_calls import small_batch

NAN, INF = float("nan"), float("inf")
NAMES = ("query", "kv_cache", "context_lens", "block_tables", "query_start_loc", "num_seqs")


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)


@dataclasses.dataclass
class Row:
    """What is changed in a good call, and a part of the message."""

    op: str
    changes: dict[str, object]
    message: str
    doors: str = "op function fake meta"

    def __str__(self):
        return f"{self.op}-{'-'.join(self.changes)}-{self.message[:30]}"


def attention(message, doors="op function fake meta", **changes):
    return Row("paged_attention", changes, message, doors)


def update(message, doors="op function fake meta", **changes):
    return Row("update_kv_cache", changes, message, doors)


def in_place(message, doors="op function", **changes):
    return Row("update_kv_cache_", changes, message, doors)


def add(message, doors="op function fake meta", **changes):
    return Row("simple_add", changes, message, doors)


EAGER = "op function"
# The pair by its parts: only the op has v_cache; the function takes (K, V).
OP = "op fake meta"
K_CACHE = zeros(16, 16, 2, 64)

ROWS = [
    # ---- Shapes and dtypes of paged_attention
    attention("query is f64[8,8,64]; its dtype", query=zeros(8, 8, 64, dtype=torch.float64)),
    attention("query is i32[8,8,64]; its dtype must be", query=ints(8, 8, 64)),
    attention("complex64 has no counterpart", query=zeros(8, 8, 64, dtype=torch.complex64)),
    attention("its dtype must be", query=zeros(8, 8, 64, dtype=torch.bool)),
    attention("its dtype must be", query=zeros(8, 8, 64).to(torch.float8_e4m3fn)),
    attention("it must be [tokens, q_heads, head_dim], of rank 3", query=zeros(8, 512)),
    attention("it must be [tokens, q_heads, head_dim], of rank 3", query=zeros(1, 8, 8, 64)),
    attention("head_dim is 32 in query", query=zeros(8, 8, 32)),
    attention("q_heads must be a multiple of kv_heads", query=zeros(8, 7, 64)),
    attention("q_heads must be a multiple", query=zeros(8, 0, 64)),
    attention("kv_cache", kv_cache=zeros(16, 16, 256)),
    attention("kv_cache", kv_cache=zeros(16, 16, 3, 64)),
    attention("kv_cache", kv_cache=zeros(3, 16, 16, 2, 64)),
    attention("kv_cache", kv_cache=zeros(16, 0, 4, 64)),
    attention("kv_cache", kv_cache=zeros(16, 16, 4, 64, dtype=torch.int8)),
    attention("kv_cache", kv_cache=zeros(16, 16, 4, 64, dtype=torch.float64)),
    attention("v_cache", OP, kv_cache=K_CACHE, v_cache=zeros(16, 16, 4, 64)),
    attention("v_cache", OP, kv_cache=K_CACHE, v_cache=zeros(15, 16, 2, 64)),
    attention("v_cache", OP, kv_cache=K_CACHE, v_cache=K_CACHE.to(torch.bfloat16)),
    attention("block_tables is i64[4,4]; its dtype must be i32", block_tables=ints(4, 4).long()),
    attention("block_tables is i32[16]; it must be i32", block_tables=ints(16)),
    attention("context_lens is i64[4]; its dtype must be i32", context_lens=ints(4).long()),
    attention("context_lens is i32[3]; it must be i32[4]", context_lens=ints(3)),
    attention("context_lens is i32[4,1]; it must be", context_lens=ints(4, 1)),
    attention("context_lens is f32[4]; its dtype must be i32", context_lens=zeros(4)),
    attention("query_start_loc is i32[4]; it must be i32[5]", query_start_loc=ints(4)),
    attention("query_start_loc is i64[5]; its dtype must be i32", query_start_loc=ints(5).long()),
    attention("num_seqs is i32[2]; it must be i32[1]", num_seqs=ints(2)),
    attention("num_seqs is i64[1]; its dtype must be i32", num_seqs=ints(1).long()),
    # ---- Optional arguments and attributes
    attention("sinks is f32[7]; it must be f32[8]", sinks=zeros(7)),
    attention("sinks is i32[8]; its dtype must be f32", sinks=ints(8)),
    attention("sinks", sinks=zeros(8, 1)),
    attention("k_scale", k_scale=zeros(3)),
    attention("k_scale is i32[1]; its dtype must be f32", k_scale=ints(1)),
    attention("v_scale", v_scale=zeros(1, 1)),
    attention("'scale' is nan; it must be a finite number", scale=NAN),
    attention("'scale' is inf; it must be a finite number", scale=INF),
    attention("attribute 'scale' is 1e+300; it must be a finite number from", scale=1e300),
    attention("'sliding_window' is -1; it must be at least 1", sliding_window=-1),
    attention("'sliding_window' is 0; it must be at least 1, or left out", sliding_window=0),
    attention("'soft_cap' is 0; it must be a finite number", soft_cap=0.0),
    attention("'soft_cap' is nan; it must be a finite number", soft_cap=NAN),
    attention("attribute 'soft_cap' is -1", soft_cap=-1.0),
    attention("out_dtype is torch.float64; allowed are", out_dtype=torch.float64),
    attention("out_dtype is torch.int32; allowed are", out_dtype=torch.int32),
    # ---- What only Python can hold
    attention("scale", EAGER, scale="0.1"),
    attention("scale is a tensor; allowed is", "function", scale=torch.tensor(0.1)),
    attention("sliding_window", EAGER, sliding_window=1.5),
    attention("soft_cap", EAGER, soft_cap="1"),
    attention("causal is int 1; allowed are True and False", "function", causal=1),
    attention("causal", EAGER, causal="yes"),
    attention("query is None", EAGER, query=None),
    attention("query", EAGER, query=[[1.0]]),
    attention("block_tables", EAGER, block_tables=[[0]]),
    attention("out_dtype is str 'bfloat16'; allowed is", "function", out_dtype="bfloat16"),
    attention("kv_cache is a tuple of 3; allowed is", "function", kv_cache=(K_CACHE,) * 3),
    attention("kv_cache[1] is None", "function", kv_cache=(K_CACHE, None)),
    attention("sinks is str", "function", sinks="1"),
    attention("k_scale is int 1000", "function", k_scale=10**400),
    attention("sinks is float -1e+300; f32 holds no such number", "function", sinks=-1e300),
    attention("max_query_len is int 1180", "function", max_query_len=2**70),
    attention(
        "max_query_len is int 1180",
        "function",
        query=zeros(8, 8, 64).requires_grad_(),
        max_query_len=2**70,
    ),
    attention("num_seqs is True; it must be 0 to 4", "function", num_seqs=True),
    attention("num_seqs is 5; it must be 0 to 4, as many sequences", "function", num_seqs=5),
    attention("num_seqs is -1; it must be 0 to 4", "function", num_seqs=-1),
    attention("num_seqs is float 2.0", "function", num_seqs=2.0),
    # ---- Memory
    attention("query is torch.sparse", EAGER, query=zeros(8, 8, 64).to_sparse()),
    attention("must be on one device", OP, context_lens=ints(4).to("meta")),
    attention("has strides", EAGER, kv_cache=zeros(16, 16, 64, 4).transpose(2, 3)),
    attention("a cache must be contiguous", EAGER, kv_cache=zeros(32, 16, 4, 64)[::2]),
    # ---- update_kv_cache
    update("key is f64[8,2,64]", key=zeros(8, 2, 64, dtype=torch.float64)),
    update("key", key=zeros(8, 2, 32)),
    update("key", key=zeros(8, 3, 64)),
    update("key", key=zeros(8, 128)),
    update("value", value=zeros(7, 2, 64)),
    update("value", value=zeros(8, 2, 64, dtype=torch.bfloat16)),
    update("slot_mapping", slot_mapping=ints(7)),
    update("slot_mapping", slot_mapping=zeros(8)),
    update("slot_mapping", slot_mapping=ints(8, 1)),
    update("slot_mapping", slot_mapping=ints(8).to(torch.int16)),
    update("kv_cache", kv_cache=zeros(16, 16, 3, 64)),
    update("kv_cache", kv_cache=zeros(16, 16, 4, 64, dtype=torch.int32)),
    update("k_scale", k_scale=zeros(5)),
    update("v_scale is i32[1]; its dtype must be f32", v_scale=ints(1)),
    update("key", EAGER, key="key"),
    in_place("key is f64", key=zeros(8, 2, 64, dtype=torch.float64)),
    in_place("a cache must be contiguous", kv_cache=zeros(16, 16, 64, 4).transpose(2, 3)),
    in_place("has no gradient", key=zeros(8, 2, 64).requires_grad_()),
    # ---- simple_add
    add("simple_add: a is f64[3]; its dtype must be", a=zeros(3, dtype=torch.float64)),
    add("simple_add: a is f32[3] but b is f32[4]", b=zeros(4)),
    add("they must be equal in dtype and shape", b=zeros(3, dtype=torch.bfloat16)),
    add("they must be equal in dtype and shape", b=zeros(1, 3)),
    add("complex64 has no counterpart in XLA", a=zeros(3, dtype=torch.complex64)),
    add("must be on one device", OP, b=zeros(3).to("meta")),
    add("a is None", EAGER, a=None),
    add("b", EAGER, b=1.0),
]


def good_args(op):
    if op == "paged_attention":
        return {**dict(zip(NAMES, small_batch())), "scale": 0.125}
    if op == "simple_add":
        return {"a": zeros(3), "b": zeros(3)}
    return {
        "key": zeros(8, 2, 64),
        "value": zeros(8, 2, 64),
        "kv_cache": zeros(16, 16, 4, 64),
        "slot_mapping": ints(8),
    }


def by_op(op, args):
    return getattr(torch.ops.xla_gpu, op)(**args)


def by_function(op, args):
    return getattr(xla_gpu.torch, op)(**args)


def by_fake(op, args):
    with FakeTensorMode() as mode:
        fake = {
            n: mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for n, a in args.items()
        }
        return by_op(op, fake)


def by_meta(op, args):
    on_cpu = [n for n, a in args.items() if isinstance(a, torch.Tensor) and a.device.type == "meta"]
    meta = {
        n: (torch.zeros(a.shape, dtype=a.dtype) if n in on_cpu else a.to("meta"))
        if isinstance(a, torch.Tensor)
        else a
        for n, a in args.items()
    }
    return by_op(op, meta)


DOORS: dict[str, Callable] = {
    "op": by_op,
    "function": by_function,
    "fake": by_fake,
    "meta": by_meta,
}
CASES = [(row, door) for row in ROWS for door in row.doors.split()]


def test_the_table_is_long_enough():
    assert len(ROWS) >= 60


@pytest.mark.parametrize("op", ["paged_attention", "update_kv_cache", "simple_add"])
@pytest.mark.parametrize("door", DOORS)
def test_the_good_call_is_good(op, door):
    DOORS[door](op, good_args(op))


@pytest.mark.parametrize(("row", "door"), CASES, ids=lambda x: str(x))
def test_bad_input(row, door):
    args = {**good_args(row.op), **row.changes}
    with pytest.raises((ValueError, TypeError, RuntimeError, NotImplementedError)) as caught:
        DOORS[door](row.op, args)
    text = str(caught.value)
    assert row.message in text, f"message: {text[:300]}"
    if isinstance(caught.value, xla_gpu.XlaGpuError):
        assert our_frames(caught.value) <= 2


def our_frames(error):
    """How many frames of xla_gpu a user sees at the traceback's end."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [str(pathlib.Path(xla_gpu.__file__).parent) in file for file in files]
    return ours[::-1].index(False)


@pytest.mark.parametrize(
    "change", [{"query": zeros(8, 8, 32)}, {"num_seqs": 9}, {"kv_cache": None}, {"causal": 1}]
)
def test_a_traceback_ends_at_the_callers_line(change):
    with pytest.raises(ValueError) as error:
        xla_gpu.torch.paged_attention(**{**good_args("paged_attention"), **change})
    assert our_frames(error.value) <= 2 and error.value.__suppress_context__
