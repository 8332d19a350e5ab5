"""grouped_matmul beside PyTorch's grouped product (CUTLASS), on an NVIDIA GPU.

    python benchmarks/grouped_matmul.py [--quick] [--device cpu]

Shapes are the two products of a Qwen3-30B-A3B layer (128 experts, 8 a token) and of a Mixtral-8x7B
layer (8 experts, 2 a token), each token's experts drawn at random. Calls by turns in CUDA graphs
over eight draws, so that weights come from memory; the median of 15 rounds. All in bf16, and ours
with weights of e4m3 and a scale for each column. TB/s counts the weights of experts that have rows,
once, and the rows in and out. Prints a Markdown table; a result that differs from the f32 product
of the same numbers by 1% of its norm ends the run.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "python")]

import torch
import xla_gpu.torch
from peers import timing

LAYERS = {  # name: experts, of a token, (K, N) of the products
    "30B-A3B": (128, 8, [(2048, 1536), (768, 2048)]),
    "Mixtral": (8, 2, [(4096, 28672), (14336, 4096)]),
}
TOKENS = (1, 4, 16, 64, 256, 1024, 8192)
DRAWS = 8


class Inputs:
    """The rows of DRAWS draws of experts, sorted by expert, and one set of weights."""

    def __init__(self, tokens: int, experts: int, of_token: int, weights: torch.Tensor) -> None:
        device, inner = weights.device, weights.shape[1]
        random = torch.Generator().manual_seed(tokens)
        self.weights = weights
        self.scale = weights.abs().amax(1, keepdim=True).float() / 448
        self.eights = (weights / self.scale).to(torch.float8_e4m3fn)
        self.sizes, self.rows = [], []
        for _ in range(DRAWS):
            drawn = [torch.randperm(experts, generator=random)[:of_token] for _ in range(tokens)]
            sizes = torch.bincount(torch.cat(drawn), minlength=experts)
            self.sizes.append(sizes.to(device, torch.int32))
            self.rows.append(torch.randn(tokens * of_token, inner, device=device).bfloat16())
        self.ends = [sizes.cumsum(0).int() for sizes in self.sizes]
        self.active = sum(int((sizes > 0).sum()) for sizes in self.sizes) / DRAWS

    def ours(self, i: int) -> torch.Tensor:
        return xla_gpu.torch.grouped_matmul(self.rows[i], self.weights, self.sizes[i])

    def ours_of_8_bits(self, i: int) -> torch.Tensor:
        return xla_gpu.torch.grouped_matmul(
            self.rows[i], self.eights, self.sizes[i], rhs_scale=self.scale
        )

    def torchs(self, i: int) -> torch.Tensor:
        return torch._grouped_mm(self.rows[i], self.weights, offs=self.ends[i])

    def check(self, out: torch.Tensor, eights: bool) -> None:
        parts = self.rows[0].split(self.sizes[0].tolist())
        experts = zip(self.eights, self.scale, strict=True) if eights else self.weights
        matrices = (w[0].float() * w[1] if eights else w.float() for w in experts)
        want = torch.cat([x.float() @ w for x, w in zip(parts, matrices, strict=True)])
        error = ((out.float() - want).norm() / want.norm()).item()
        if not error < 0.01:
            raise SystemExit(f"wrong: differs by {error:.2g} of the norm")

    def bytes(self, of_weight: int) -> float:
        _, inner, columns = self.weights.shape
        rows = self.rows[0].shape[0] * (inner + columns)
        return of_weight * self.active * inner * columns + 2 * rows

    def flops(self) -> float:
        return 2 * self.rows[0].numel() * self.weights.shape[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the code")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    columns = ["layer", "K x N", "tokens", "experts with rows", "ours, us", "TB/s", "TFLOP/s"]
    columns += ["torch, us", "ratio", "ours e4m3, us", "TB/s", "bf16 / e4m3"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for layer, (experts, of_token, products) in LAYERS.items():
        for inner, columns in products:
            if options.quick:
                inner, columns = inner // 32, columns // 32
            torch.manual_seed(0)
            weights = torch.randn(experts, inner, columns, device=options.device).bfloat16()
            weights *= inner**-0.5
            for tokens in TOKENS[:2] if options.quick else TOKENS:
                given = Inputs(tokens, experts, of_token, weights)
                calls = {"ours": given.ours, "torch": given.torchs, "e4m3": given.ours_of_8_bits}
                for name, call in calls.items():
                    given.check(call(0), eights=name == "e4m3")
                chains = {
                    name: timing.Chain(call, DRAWS, options.device) for name, call in calls.items()
                }
                seconds = {
                    name: statistics.median(some)
                    for name, some in timing.by_turns(chains, 2 if options.quick else 15).items()
                }
                ours, torchs, eights = (seconds[name] for name in calls)
                print(
                    f"| {layer} | {inner} x {columns} | {tokens} | {given.active:.0f} "
                    f"| {ours * 1e6:.1f} | {given.bytes(2) / ours / 1e12:.2f} "
                    f"| {given.flops() / ours / 1e12:.0f} | {torchs * 1e6:.1f} "
                    f"| {torchs / ours:.2f} | {eights * 1e6:.1f} "
                    f"| {given.bytes(1) / eights / 1e12:.2f} | {ours / eights:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
