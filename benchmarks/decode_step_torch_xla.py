"""decode_step.py's step in PyTorch/XLA under torch.compile(backend="openxla")."""

from __future__ import annotations

import xla_gpu.torch_xla  # isort: skip

import decode_step
import numpy as np
import torch
import torch_xla
from torch.nn import functional

ops = torch.ops.xla_gpu


def norm(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def main() -> None:
    sizes, steps, *_ = decode_step.parse(__doc__)
    to = torch_xla.device()
    bf16 = lambda array: torch.from_numpy(array).to(torch.bfloat16).to(to)  # noqa: E731
    w = {name: bf16(array) for name, array in decode_step.weights(sizes).items()}
    given = decode_step.inputs(sizes)
    x = bf16(given.pop("x"))
    index = {name: torch.from_numpy(array).to(to) for name, array in given.items()}
    angles = torch.from_numpy(decode_step.angles(sizes))
    cos, sin = angles.cos().to(to), angles.sin().to(to)
    start = bf16(decode_step.cache(sizes))
    caches = [start + 0 for _ in range(sizes.layers)]
    torch_xla.sync(wait=True)
    batch, head_dim = sizes.batch, sizes.head_dim

    @torch.compile(backend="openxla", fullgraph=True)
    def step(x, w, caches, cos, sin, index):
        for cache in caches:
            torch.ops.xla.dynamo_set_buffer_donor_(cache, True)
            y = norm(x)
            q = rotate((y @ w["q"]).reshape(batch, sizes.q_heads, head_dim), cos, sin)
            k = rotate((y @ w["k"]).reshape(batch, sizes.kv_heads, head_dim), cos, sin)
            v = (y @ w["v"]).reshape(batch, sizes.kv_heads, head_dim)
            ops.update_kv_cache_(k, v, cache, index["slots"])
            out = ops.paged_attention(
                q,
                cache,
                index["context_lens"],
                index["block_tables"],
                index["query_start_loc"],
                index["num_seqs"],
                head_dim**-0.5,
            )
            x = x + out.reshape(batch, sizes.hidden) @ w["o"]
            y = norm(x)
            x = x + (functional.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return norm(x)

    with torch.no_grad():
        first = step(x, w, caches, cos, sin, index)
        state = [first]
        shown = first.float().cpu().numpy().astype(np.float32)
        pointers = [torch_xla._XLAC._unsafe_buffer_pointer(cache) for cache in caches]

        def one() -> None:
            state[0] = step(state[0], w, caches, cos, sin, index)

        times = decode_step.time_steps(one, lambda: state[0].cpu(), steps)
    torch_xla.sync(wait=True)
    kept = pointers == [torch_xla._XLAC._unsafe_buffer_pointer(cache) for cache in caches]
    device = xla_gpu.torch_xla.platform()
    decode_step.report("torch_xla", sizes, times, shown, device=device, caches_in_place=kept)


if __name__ == "__main__":
    main()
