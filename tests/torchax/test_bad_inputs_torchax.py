"""A table of wrong calls on torchax tensors: each gives the library's message, none crashes."""

import jax.numpy as jnp
import pytest

torchax = pytest.importorskip("torchax", exc_type=ImportError)

import torch
import xla_gpu
from torchax import interop
from torchax_calls import ops, zeros


def i32(*shape):
    return zeros(*shape, dtype=jnp.int32)


def attend_with(op=ops.paged_attention, **change):
    call = {
        "query": zeros(4, 4, 8),
        "kv_cache": zeros(6, 4, 4, 8),
        "context_lens": i32(2),
        "block_tables": i32(2, 3),
        "query_start_loc": i32(3),
        "num_seqs": i32(1),
        "scale": 1.0,
    }
    return op(**(call | change))


def update_with(op=ops.update_kv_cache, **change):
    call = {
        "key": zeros(4, 2, 8),
        "value": zeros(4, 2, 8),
        "kv_cache": zeros(6, 4, 4, 8),
        "slot_mapping": i32(4),
    }
    return op(**(call | change))


CPU = torch.zeros(2, 3, dtype=torch.int32)
BAD = {
    "query rank": (lambda: attend_with(query=zeros(4, 32)), "query is f32[4,32]; it must be"),
    "query dtype": (lambda: attend_with(query=i32(4, 4, 8)), "query is i32[4,4,8]; its dtype"),
    "head_dim": (lambda: attend_with(query=zeros(4, 4, 16)), "head_dim is 16 in query"),
    "cache heads": (lambda: attend_with(kv_cache=zeros(6, 4, 3, 8)), "[6,4,3,8]"),
    "v_cache": (lambda: attend_with(v_cache=zeros(6, 4, 2, 8)), "v_cache"),
    "lens": (lambda: attend_with(context_lens=i32(3)), "context_lens is i32[3]; it must be i32[2]"),
    "tables dtype": (lambda: attend_with(block_tables=zeros(2, 3)), "block_tables is f32[2,3]"),
    "sinks": (lambda: attend_with(sinks=zeros(2)), "sinks is f32[2]; it must be f32[4]"),
    "sinks dtype": (lambda: attend_with(sinks=i32(4)), "sinks is i32[4]; its dtype must be"),
    "scale": (lambda: attend_with(scale=float("nan")), "scale"),
    "window": (lambda: attend_with(sliding_window=-1), "sliding_window"),
    "cap": (lambda: attend_with(soft_cap=-1.0), "soft_cap"),
    "out_dtype": (lambda: attend_with(out_dtype=torch.int32), "out_dtype"),
    "out_dtype unknown": (
        lambda: attend_with(out_dtype=torch.quint8),
        "out_dtype is torch.quint8; allowed are",
    ),
    "with lse": (
        lambda: attend_with(ops.paged_attention_with_lse, num_seqs=i32(2)),
        "num_seqs is i32[2]; it must be i32[1]",
    ),
    "on the cpu": (
        lambda: attend_with(block_tables=CPU),
        "paged_attention: block_tables i32[2,3] is an ordinary tensor on cpu but others are "
        "torchax's; move it with .to('jax')",
    ),
    "key": (lambda: update_with(key=zeros(4, 16)), "key is f32[4,16]"),
    "slots": (lambda: update_with(slot_mapping=i32(5)), "slot_mapping is i32[5]"),
    "slots dtype": (lambda: update_with(slot_mapping=zeros(4)), "slot_mapping is f32[4]"),
    "in place": (lambda: update_with(ops.update_kv_cache_, k_scale=zeros(5)), "k_scale is f32[5]"),
    "pair": (
        lambda: update_with(ops.update_kv_cache_pair, v_cache=zeros(6, 4, 1, 8)),
        "v_cache",
    ),
    "add shapes": (lambda: ops.simple_add(zeros(3), zeros(4)), "a is f32[3] but b is f32[4]"),
    "add dtypes": (lambda: ops.simple_add(zeros(3), i32(3)), "a is f32[3] but b is i32[3]"),
    "add on the cpu": (lambda: ops.simple_add(torch.zeros(3), zeros(3)), "simple_add: a f32[3] is"),
}


@pytest.mark.parametrize("row", BAD)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "env"])
def test_bad_calls(row, inside):
    call, message = BAD[row]
    with pytest.raises(ValueError) as error:
        if inside:
            with torchax.default_env():
                call()
        else:
            call()
    assert message in str(error.value)
    assert isinstance(error.value, xla_gpu.XlaGpuError)
    assert error.value.code_name == "INVALID_ARGUMENT"


def test_a_bad_call_in_place_changes_nothing(env):
    cache = zeros(6, 4, 4, 8)
    array = cache.jax()
    with pytest.raises(ValueError, match="key is"):
        update_with(ops.update_kv_cache_, key=zeros(4, 16), kv_cache=cache)
    assert cache.jax() is array


def test_bad_calls_under_jit():
    with pytest.raises(ValueError, match=r"query is f32\[4,32\]; it must be"):
        interop.jax_jit(lambda query: attend_with(query=query))(zeros(4, 32))
