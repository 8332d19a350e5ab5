"""xla_gpu.profile with torch tensors: what needs no XLA is counted too."""

import torch
import xla_gpu


def test_eager_calls_and_compiled_ones_are_counted():
    twice = xla_gpu.host_kernel(
        "void twice(const float* x, float* out, long n) {"
        "  for (long i = 0; i < n; ++i) out[i] = 2 * x[i];"
        "}",
        "twice",
        outputs={"out": "x"},
        scalars={"n": lambda x: x.size},
    )
    x = torch.ones(1000)
    with xla_gpu.profile() as p:
        for _ in range(10):
            twice(x)
        torch.ops.xla_gpu.simple_add(x, x)
    calls = {k.name: (k.platform, k.calls, k.timed) for k in p.kernels}
    assert calls == {"twice": ("Host", 10, 10), "simple_add": ("Host", 1, 1)}
    assert all(0 < k.min_us <= k.max_us <= k.total_us for k in p.kernels)
