"""vLLM's own paged attention, which PyTorch alone can launch, inside jax.jit.

On an NVIDIA GPU it needs vLLM (pip install vllm): its paged_attention op where it has that (up to
0.24), else the FlashAttention that took its place. On a CPU a few lines of PyTorch do.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
import xla_gpu

SEQS, HEADS, KV_HEADS, HEAD_DIM, PAGE, PAGES_OF_ONE = 6, 8, 2, 64, 16, 4


def paged_attention(query, key_cache, value_cache, block_tables, seq_lens, out, *, scale: float):
    """vLLM's op; keys are [page, head, dim / 8, token, 8], values [page, head, dim, token]."""
    most = block_tables.shape[1] * PAGE
    one = torch.ones((), device=out.device)  # scales of a quantised cache
    cache = ("auto", one, one)
    no_sparsity = (0, 0, 0, 64, 0)
    torch.ops._C.paged_attention_v1(
        out, query, key_cache, value_cache, KV_HEADS, scale, block_tables, seq_lens, PAGE, most,
        None, *cache, *no_sparsity,
    )  # fmt: skip


def flash_attention(query, key_cache, value_cache, block_tables, seq_lens, out, *, scale: float):
    """vLLM's FlashAttention 3 on Hopper, else 2; both caches are [page, token, head, dim]."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

    flash_attn_varlen_func(
        query,
        key_cache,
        value_cache,
        out=out,
        max_seqlen_q=1,
        cu_seqlens_q=torch.arange(len(query) + 1, dtype=torch.int32, device=out.device),
        max_seqlen_k=block_tables.shape[1] * PAGE,
        seqused_k=seq_lens,
        block_table=block_tables,
        softmax_scale=scale,
        causal=True,
        fa_version=3 if is_fa_version_supported(3) else 2,
    )


def by_torch(query, key_cache, value_cache, block_tables, seq_lens, out, *, scale: float):
    for i, length in enumerate(seq_lens.tolist()):
        keys, values = (
            cache[block_tables[i].long()].flatten(0, 1)[:length].transpose(0, 1)[None]
            for cache in (key_cache, value_cache)
        )
        out[i] = torch.nn.functional.scaled_dot_product_attention(
            query[i][None, :, None],
            keys.repeat_interleave(HEADS // KV_HEADS, 1),
            values.repeat_interleave(HEADS // KV_HEADS, 1),
            scale=scale,
        )[0, :, 0]


def vllms_kernel():
    """The function to call on a GPU."""
    try:
        import vllm._custom_ops  # noqa: F401  puts its ops into torch.ops._C
    except ImportError as e:
        sys.exit(f"on a GPU this example runs vLLM's kernel: {e}; pip install vllm")
    return paged_attention if hasattr(torch.ops._C, "paged_attention_v1") else flash_attention


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
    fn = vllms_kernel() if jax.default_backend() == "gpu" else by_torch
    attend = xla_gpu.torch_kernel(fn, name=f"vllm_{fn.__name__}", outputs={"out": "query"})
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
    if fn is paged_attention:
        key_pages = key_pages.reshape(*paged[:3], HEAD_DIM // 8, 8).transpose(0, 2, 3, 1, 4)
        value_pages = value_pages.transpose(0, 2, 3, 1)

    step = jax.jit(lambda *args: attend(*args, scale=HEAD_DIM**-0.5))
    out = step(*map(jnp.asarray, (query, key_pages, value_pages, tables, seq_lens)))
    wide = (array.astype(np.float64) for array in (query, keys, values))
    error = np.abs(np.asarray(out) - reference(*wide, seq_lens, HEAD_DIM**-0.5)).max()
    where = jax.devices()[0].platform
    print(f"{fn.__name__}: out {out.shape} on {where}, error against float64: {error:.1e}")
    assert error < 5e-3


if __name__ == "__main__":
    main()
