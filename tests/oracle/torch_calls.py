"""Cases of problems.py through torch: arrays to tensors and back, and the ops by either door."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import torch
import xla_gpu.torch
from problems import Case
from ragged_v3 import V3Case, V3Static, random_v3_static

_NAMES = ("query", "kv_cache", "context_lens", "block_tables", "query_start_loc", "num_seqs")
# NumPy has no bf16 and no fp8: their bits travel as integers.
_BITS = {1: np.uint8, 2: np.int16}


def to_torch(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """The same numbers as a tensor of its own."""
    array = np.array(array, order="C")
    name = str(array.dtype)
    if name.startswith(("bfloat16", "float8")):
        bits = torch.from_numpy(array.view(_BITS[array.dtype.itemsize]))
        return bits.view(getattr(torch, name)).to(device)
    return torch.from_numpy(array).to(device)


def shifted(tensor: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """The same numbers as a view that starts `elements` past an aligned address."""
    whole = torch.empty(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
    return whole[elements:].view(tensor.shape).copy_(tensor)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same numbers as an array (of an ml_dtypes dtype where NumPy has none)."""
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("bfloat16", "float8")):
        bits = tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.int16).numpy()
        return bits.view(getattr(ml_dtypes, name))
    return tensor.numpy()


def torch_args(case: Case, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {name: to_torch(array, device) for name, array in case.args.items()}


def attention_op(static, args):
    """torch.ops.xla_gpu.paged_attention on tensors by name: (out, lse or None)."""
    args = dict(args)
    positional = [args.pop(name) for name in _NAMES]
    ops = torch.ops.xla_gpu
    op = ops.paged_attention_with_lse if static.return_lse else ops.paged_attention
    result = op(
        *positional,
        static.scale,
        static.sliding_window or None,
        static.soft_cap or None,
        causal=static.causal,
        max_query_len=static.max_query_len,
        out_dtype=getattr(torch, static.out_dtype) if static.out_dtype else None,
        **args,
    )
    return result if static.return_lse else (result, None)


def attention_function(static, args):
    """The same through xla_gpu.torch.paged_attention."""
    args = dict(args)
    query, cache, *rest = (args.pop(name) for name in _NAMES)
    if "v_cache" in args:
        cache = (cache, args.pop("v_cache"))
    result = xla_gpu.torch.paged_attention(
        query,
        cache,
        *rest,
        static.scale,
        static.sliding_window or None,
        static.soft_cap or None,
        causal=static.causal,
        max_query_len=static.max_query_len,
        return_lse=static.return_lse,
        out_dtype=getattr(torch, static.out_dtype) if static.out_dtype else None,
        **args,
    )
    return result if static.return_lse else (result, None)


def update_op(args, in_place: bool):
    """The updated caches of update_kv_cache, _pair or _, as a list."""
    args = dict(args)
    ops = torch.ops.xla_gpu
    key, value, cache, slots = (args.pop(n) for n in ("key", "value", "kv_cache", "slot_mapping"))
    v_cache = args.pop("v_cache", None)
    if in_place:
        assert ops.update_kv_cache_(key, value, cache, slots, v_cache=v_cache, **args) is None
        return [cache] if v_cache is None else [cache, v_cache]
    if v_cache is None:
        return [ops.update_kv_cache(key, value, cache, slots, **args)]
    return list(ops.update_kv_cache_pair(key, value, cache, v_cache, slots, **args))


def v3_arrays(case: V3Case) -> dict[str, np.ndarray]:
    """The arguments of ragged_paged_attention_v3, its scales among them."""
    scales = {name: getattr(case.static, name) for name in ("k_scale", "v_scale")}
    given = {n: np.array([s], np.float32) for n, s in scales.items() if s is not None}
    return {**case.args, **given}


def v3_op(static: V3Static, args, in_place: bool):
    """(out, the cache after the call) of ragged_paged_attention_v3 or, in place, of its twin."""
    s, ops = static.base, torch.ops.xla_gpu
    options = dict(
        sm_scale=s.scale,
        sliding_window=s.sliding_window or None,
        soft_cap=s.soft_cap or None,
        use_causal_mask=s.causal,
        update_kv_cache=static.update_kv_cache,
        cache_layout="side_by_side" if static.hd64 else "interleaved",
        max_query_len=s.max_query_len,
        out_dtype=getattr(torch, s.out_dtype) if s.out_dtype else None,
    )
    if in_place:
        return ops.ragged_paged_attention_v3_(**args, **options), args["kv_cache"]
    return ops.ragged_paged_attention_v3(**args, **options)


def random_v3(rng: np.random.Generator) -> V3Static:
    """A random problem of what the op itself takes."""
    return dataclasses.replace(random_v3_static(rng), q_scale=None, skip_kv_mask=False)


def small_batch(device: str = "cpu", dtype: torch.dtype = torch.float32, tokens: int = 8):
    """The first six arguments of paged_attention for a small good batch of four sequences."""
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(tokens, 8, 64, generator=generator).to(dtype)
    cache = torch.randn(16, 16, 4, 64, generator=generator).to(dtype)
    tables = torch.randint(0, 16, (4, 4), generator=generator, dtype=torch.int32)
    lens = torch.tensor([20, 64, tokens, 33], dtype=torch.int32)
    starts = torch.tensor([0, 1, 2, tokens - 1, tokens], dtype=torch.int32)
    count = torch.tensor([4], dtype=torch.int32)
    return [t.to(device) for t in (query, cache, lens, tables, starts, count)]
