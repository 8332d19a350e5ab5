"""Decoding with a paged KV cache in PyTorch/XLA: one compiled step, the cache updated in place.

PJRT_DEVICE=XLA_GPU python paged_attention.py
"""

from __future__ import annotations

import xla_gpu.torch_xla  # isort: skip

import torch
import torch_xla

PAGES, PAGE_SIZE, Q_HEADS, KV_HEADS, HEAD_DIM = 64, 16, 8, 2, 64
ops = torch.ops.xla_gpu


@torch.compile(backend="openxla", fullgraph=True)
def step(query, key, value, cache, lens, tables, starts, num_seqs, slots):
    # The step overwrites the cache, so its memory may be used for the result.
    torch.ops.xla.dynamo_set_buffer_donor_(cache, True)
    ops.update_kv_cache_(key, value, cache, slots)
    return ops.paged_attention(query, cache, lens, tables, starts, num_seqs, scale=HEAD_DIM**-0.5)


def main() -> None:
    torch.manual_seed(0)
    device = torch_xla.device()
    ints = lambda *values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    cache = torch.zeros(PAGES, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM).to(device)
    tables = ints(*range(8)).reshape(2, 4).to(device)  # two sequences of up to 64 tokens
    starts, num_seqs = ints(0, 1, 2).to(device), ints(2).to(device)  # one new token each
    on_cpu = torch.zeros(PAGES, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    torch_xla.sync(wait=True)
    addresses = set()
    for position in range(40):
        query = torch.randn(2, Q_HEADS, HEAD_DIM)
        key, value = torch.randn(2, 2, KV_HEADS, HEAD_DIM)
        lens = ints(position + 1, position + 1)
        slots = ints(position, 4 * PAGE_SIZE + position)  # page * PAGE_SIZE + offset
        moved = [tensor.to(device) for tensor in (query, key, value, lens, slots)]
        out = step(*moved[:3], cache, moved[3], tables, starts, num_seqs, moved[4])
        torch_xla.sync(wait=True)
        addresses.add(torch_xla._XLAC._unsafe_buffer_pointer(cache))
        # The same on the CPU, without XLA.
        ops.update_kv_cache_(key, value, on_cpu, slots)
        want = ops.paged_attention(
            query, on_cpu, lens, tables.cpu(), starts.cpu(), num_seqs.cpu(), HEAD_DIM**-0.5
        )
        torch.testing.assert_close(out.cpu(), want, rtol=2e-5, atol=2e-5)
    where = "in place" if len(addresses) == 1 else f"in {len(addresses)} places"
    print(f"40 decode steps on {xla_gpu.torch_xla.platform()} as on the CPU, the cache {where}")


if __name__ == "__main__":
    main()
