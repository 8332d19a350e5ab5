"""vLLM's own paged-attention kernel, which PyTorch alone can launch, inside jax.jit.

On an NVIDIA GPU it needs vLLM (pip install vllm). On a CPU a few lines of PyTorch take its place.
"""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
import xla_gpu

SEQS, HEADS, KV_HEADS, HEAD_DIM, PAGE, PAGES_OF_ONE = 6, 8, 2, 64, 16, 4


def attend_by_vllm(query, key_cache, value_cache, block_tables, seq_lens, out, *, scale: float):
    most = block_tables.shape[1] * PAGE
    one = torch.ones((), device=out.device)  # scales of a quantised cache
    cache = ("auto", one, one)
    no_sparsity = (0, 0, 0, 64, 0)
    torch.ops._C.paged_attention_v1(
        out, query, key_cache, value_cache, KV_HEADS, scale, block_tables, seq_lens, PAGE, most,
        None, *cache, *no_sparsity,
    )  # fmt: skip


def attend_by_torch(query, key_cache, value_cache, block_tables, seq_lens, out, *, scale: float):
    for i, length in enumerate(seq_lens.tolist()):
        pages = block_tables[i].long()
        # vLLM's layouts: keys [page, head, dim / 8, token, 8], values [page, head, dim, token].
        keys = key_cache[pages].permute(1, 0, 3, 2, 4).reshape(KV_HEADS, -1, HEAD_DIM)
        values = value_cache[pages].permute(1, 0, 3, 2).reshape(KV_HEADS, -1, HEAD_DIM)
        keys, values = (
            kv[None, :, :length].repeat_interleave(HEADS // KV_HEADS, 1) for kv in (keys, values)
        )
        out[i] = torch.nn.functional.scaled_dot_product_attention(
            query[i][None, :, None], keys, values, scale=scale
        )[0, :, 0]


attend = xla_gpu.torch_kernel(
    attend_by_vllm,
    name="vllm_paged_attention",
    outputs={"out": "query"},
    platform="CUDA",
    host=xla_gpu.torch_kernel(attend_by_torch, outputs={"out": "query"}),
)


def reference(query, keys, values, seq_lens, scale):
    """In float64, of keys and values [sequence, token, kv head, dim]."""
    out = np.zeros(query.shape)
    for i, length in enumerate(seq_lens):
        for head in range(HEADS):
            k, v = (kv[i, :length, head * KV_HEADS // HEADS] for kv in (keys, values))
            weights = np.exp(scale * k @ query[i, head])
            out[i, head] = weights @ v / weights.sum()
    return out


def main():
    if jax.default_backend() == "gpu":
        try:
            importlib.import_module("vllm._custom_ops")  # puts its ops into torch.ops._C
        except ImportError as e:
            sys.exit(f"on a GPU this example runs vLLM's kernel: {e}; pip install vllm")
    rng = np.random.default_rng(0)
    rows = (SEQS, PAGES_OF_ONE * PAGE, KV_HEADS, HEAD_DIM)
    query, keys, values = (
        rng.standard_normal(shape).astype(np.float16)
        for shape in ((SEQS, HEADS, HEAD_DIM), rows, rows)
    )
    seq_lens = np.array([1, 5, 16, 17, 50, 64], np.int32)
    tables = rng.permutation(SEQS * PAGES_OF_ONE).astype(np.int32).reshape(SEQS, PAGES_OF_ONE)
    paged = (SEQS * PAGES_OF_ONE, PAGE, KV_HEADS, HEAD_DIM)
    key_pages, value_pages = (np.empty(paged, np.float16) for _ in range(2))
    key_pages[tables.reshape(-1)] = keys.reshape(paged)
    value_pages[tables.reshape(-1)] = values.reshape(paged)
    key_cache = key_pages.reshape(*paged[:3], HEAD_DIM // 8, 8).transpose(0, 2, 3, 1, 4)
    value_cache = value_pages.transpose(0, 2, 3, 1)

    step = jax.jit(lambda *args: attend(*args, scale=HEAD_DIM**-0.5))
    out = step(*map(jnp.asarray, (query, key_cache, value_cache, tables, seq_lens)))
    wide = (array.astype(np.float64) for array in (query, keys, values))
    error = np.abs(np.asarray(out) - reference(*wide, seq_lens, HEAD_DIM**-0.5)).max()
    print(f"out {out.shape} on {jax.devices()[0].platform}, error against float64: {error:.1e}")
    assert error < 5e-3


if __name__ == "__main__":
    main()
