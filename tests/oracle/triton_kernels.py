"""The kernels of these tests."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """Adds two tensors."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def softmax(out, x, x_stride, out_stride, cols, scale, bias, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    v = tl.load(x + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32) * scale
    if bias is not None:
        v += tl.load(bias + offsets, mask=mask, other=0.0)
    e = tl.exp(v - tl.max(v, axis=0))
    y = (e / tl.sum(e, axis=0)).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + offsets, y, mask=mask)


@triton.jit
def matmul(a, b, c, K, B: tl.constexpr):
    r = tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        left = tl.load(a + r[:, None] * K + k + r[None, :])
        right = tl.load(b + (k + r[:, None]) * B + r[None, :])
        total += tl.dot(left, right)
    tl.store(c + r[:, None] * B + r[None, :], total)


@triton.jit
def copy_by_descriptor(x, y, m, n, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[m, n], strides=[n, 1], block_shape=[B, B])
    target = tl.make_tensor_descriptor(y, shape=[m, n], strides=[n, 1], block_shape=[B, B])
    i, j = tl.program_id(0) * B, tl.program_id(1) * B
    target.store([i, j], source.load([i, j]))


@triton.jit
def specialized_matmul(a, b, c, M, N, K, B: tl.constexpr, STEP: tl.constexpr):
    """Some warps load, others multiply, so that a block has more than num_warps."""
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[B, STEP])
    right = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[B, STEP])
    result = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    total = tl.zeros((B, B), tl.float32)
    for k in tl.range(0, K, STEP, warp_specialize=True):
        total = tl.dot(left.load([m, k]), right.load([n, k]).T, total)
    result.store([m, n], total.to(tl.float16))


@triton.jit
def convert(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets).to(tl.float32).to(out.dtype.element_ty))


@triton.jit
def fill(like, out, value, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.zeros((BLOCK,), tl.float32) + value, mask=offsets < n)


@triton.jit(do_not_specialize=["value"])
def fill_any(like, out, value, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.zeros((BLOCK,), tl.float32) + value, mask=offsets < n)


@triton.jit
def accumulate(total, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(total + offsets, mask=mask) + tl.load(x + offsets, mask=mask)
    tl.store(total + offsets, value, mask=mask)


@triton.jit
def typed(x, out, wide: tl.int64, flag, BLOCK: tl.constexpr = 16):
    offsets = tl.arange(0, BLOCK)
    v = tl.load(x + offsets)
    if flag:
        v += wide.to(tl.float32)
    tl.store(out + offsets, v)


@triton.jit
def crowded(out, workspace, stream, grid, n, BLOCK: tl.constexpr):
    """Its parameters have the names of what calls carry."""
    offsets = tl.arange(0, BLOCK)
    v = tl.load(workspace + offsets) + tl.load(stream + offsets) + grid
    tl.store(out + offsets, v, mask=offsets < n)


CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block, warps in ((128, 4), (256, 4), (512, 8), (1024, 8))
]


def only_small(configs, named_args, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] <= named_args["n"]]


tuned = triton.autotune(configs=CONFIGS, key=["n"])(add)
pruned = triton.autotune(
    configs=CONFIGS,
    key=["n"],
    prune_configs_by={
        "early_config_prune": only_small,
        "perf_model": lambda BLOCK, n, **rest: -BLOCK,
        "top_k": 2,
    },
)(add)
zeroed = triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["total"])(accumulate)
by_size = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(add)
by_type = triton.heuristics({"BLOCK": lambda args: 64 if args["x"].dtype == "bf16" else 32})(add)
both = triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (2, 8)], key=["n"])(by_size)
