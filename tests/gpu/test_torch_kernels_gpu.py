"""Kernels of the user's on torch's CUDA tensors: values, streams, graphs, compiled, in threads."""

import concurrent.futures

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import xla_gpu
from user_kernels import SIZE, random_case

SOURCE = """
extern "C" __global__ void scale(const float* x, long long n, float alpha, float* out) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    out[i] = alpha * x[i];
}
extern "C" __global__ void add_to(float* y, const float* x, long long n) {
  long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}
extern "C" __global__ void swap_out(float* y, const float* x, long long n, float* before) {
  long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    before[i] = y[i];
    y[i] = x[i];
  }
}
template <typename T>
__global__ void twice(const T* x, long long n, T* out) {
  long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[2 * i] = out[2 * i + 1] = x[i];
}
"""
LAUNCH = {"grid": lambda x: xla_gpu.cdiv(x.size, 256), "block": 256, "scalars": SIZE}
scale = xla_gpu.cuda_kernel(
    SOURCE,
    "scale",
    outputs={"out": "x"},
    grid=LAUNCH["grid"],
    block=256,
    scalars={**SIZE, "alpha": 2.0},
    vmap="broadcast_all",
    gradient=lambda args, results, gradients, alpha: (scale(gradients[0], alpha=alpha),),
)
add_to = xla_gpu.cuda_kernel(SOURCE, "add_to", in_place=["y"], vmap="sequential", **LAUNCH)
swap_out = xla_gpu.cuda_kernel(
    SOURCE, "swap_out", in_place=["y"], outputs={"before": "y"}, **LAUNCH
)
twice = xla_gpu.cuda_kernel(
    SOURCE, "twice<float>", outputs={"out": lambda x: ((2 * x.size,), x.dtype)}, **LAUNCH
)


def ramp(size):
    return torch.arange(float(size), device="cuda")


def program(x, y):
    a = scale(x + 1, alpha=3.0)
    y = add_to(y, a)
    before, after = swap_out(y, x)
    return twice(a) * 2, before, after + 1


@pytest.mark.parametrize("size", [1, 255, 257, 100_000])
def test_values(size):
    x, y = ramp(size), ramp(size)
    assert torch.equal(scale(x, alpha=3.0), 3 * x)
    assert torch.equal(twice(x), x.repeat_interleave(2))
    assert add_to(y, x) is y and torch.equal(y, 2 * x)
    before, after = swap_out(y, x)
    assert after is y and torch.equal(before, 2 * x) and torch.equal(y, x)
    assert torch.equal(torch.vmap(scale)(x.reshape(1, -1)), 2 * x.reshape(1, -1))
    wide = torch.stack([x, -x], 1)
    assert torch.equal(scale(wide[:, 1]), -2 * x)
    with pytest.raises(ValueError, match="add_to: y f32.* has strides"):
        add_to(torch.stack([x, x, x, x], 1)[:2, 0].expand(2), x[:1])
    with pytest.raises(ValueError, match="x f32.* is on cpu but y is on cuda:0"):
        add_to(y, x.cpu())


def test_an_empty_tensor():
    """A grid of no blocks launches nothing."""
    assert scale(ramp(0)).shape == (0,) and twice(ramp(0)).shape == (0,)


def test_gradient():
    x = ramp(10).requires_grad_()
    scale(scale(x, alpha=3.0)).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 6.0))


def test_the_current_stream():
    x, stream = ramp(1 << 22), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = x * 1
        for _ in range(20):
            y = scale(y, alpha=0.5)
        assert torch.equal(y, x * 0.5**20)


def test_a_captured_graph():
    x, y = ramp(1000), ramp(1000)
    program(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = program(x, y)
    for turn in range(3):
        x.fill_(turn)
        y.fill_(-turn)
        graph.replay()
        want = program(x.clone(), torch.full_like(y, -turn))
        assert all(torch.equal(a, b) for a, b in zip(out, want)) and torch.equal(y, x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    torch._dynamo.reset()
    step = torch.compile(program, fullgraph=True, mode=mode)
    for size in (300, 301, 555, 1000, 1000, 1000):
        ours, theirs = ramp(size), ramp(size)
        for got, want in zip(step(ramp(size), ours), program(ramp(size), theirs), strict=True):
            assert torch.equal(got, want)
        assert torch.equal(ours, theirs)


def test_threads():
    def work(seed):
        x = ramp(seed + 1)
        return all(torch.equal(scale(x, alpha=float(seed)), seed * x) for _ in range(20))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))


@pytest.mark.parametrize("group", range(8))
def test_random_signatures(group):
    """The host's source as a kernel of one thread."""
    case = random_case(np.random.default_rng([320, group]), cuda=True)
    args = {name: tensor.cuda() for name, tensor in case.args.items()}
    if not args:
        return
    for result, want in zip(case.call(args), case.want(), strict=True):
        assert torch.equal(result.cpu().to(torch.int64), want)
