"""Functions of Triton as custom calls on the GPU: against jnp and against Triton's own launcher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton_kernels as kernels
import xla_gpu
from xla_gpu import _ops, _schema
from xla_gpu._ops import TensorRef, TensorSpec
from xla_gpu._triton import _device
from xla_gpu._triton._compile import version


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


add = xla_gpu.triton_kernel(
    kernels.add, grid=blocks, outputs={"out": "x"}, constexprs={"BLOCK": 1024}, vmap="sequential"
)
softmax = xla_gpu.triton_kernel(
    kernels.softmax,
    grid=lambda x: x.shape[0],
    outputs={"out": "x"},
    constexprs=lambda x: {"BLOCK": triton.next_power_of_2(x.shape[1])},
    scalars={
        "x_stride": lambda x: x.shape[1],
        "out_stride": lambda x: x.shape[1],
        "cols": lambda x: x.shape[1],
        "bias": None,
    },
)


def normal(*shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def close(got, want, tolerance=1e-6):
    got, want = (np.asarray(each, np.float32) for each in (got, want))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [1, 15, 16, 100_003])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.float64])
def test_elementwise(n, dtype):
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        x, y = ((10 * normal(n, seed=s)).astype(dtype) for s in (1, 2))
        assert (add(x, y, n=n) == x + y).all()
        assert (jax.jit(lambda x, y: add(x, y, n=n))(x, y) == x + y).all()


@pytest.mark.parametrize("cols", [1, 16, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-6), (jnp.bfloat16, 1e-2)])
def test_softmax(cols, with_bias, dtype, tolerance):
    x = normal(513, cols, dtype=dtype)
    bias = normal(cols, seed=3) if with_bias else None
    got = jax.jit(lambda x, bias: softmax(x, bias=bias, scale=0.5))(x, bias)
    want = jax.nn.softmax(x.astype(jnp.float32) * 0.5 + (bias if with_bias else 0))
    assert got.dtype == dtype
    close(got, want, tolerance)


@pytest.mark.parametrize("num_ctas, num_stages", [(1, 2), (1, 3), (2, 2)])
def test_matmul_with_much_shared_memory_and_clusters(num_ctas, num_stages):
    matmul = xla_gpu.triton_kernel(
        kernels.matmul,
        name=f"matmul_{num_ctas}_{num_stages}",
        grid=1,
        outputs={"c": ((128, 128), "f32")},
        constexprs={"B": 128},
        num_warps=8,
        num_ctas=num_ctas,
        num_stages=num_stages,
    )
    a, b = normal(128, 512, dtype=jnp.float16), normal(512, 128, dtype=jnp.float16, seed=1)
    assert matmul.variant(a, b, 512).attributes["shared_memory"] > 48 << 10
    want = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    close(matmul(a, b, 512), want, 2e-3)


@pytest.mark.skipif(version() < (3, 4), reason="tl.make_tensor_descriptor is of Triton 3.4")
def test_descriptors_made_on_the_device():
    copy = xla_gpu.triton_kernel(
        kernels.copy_by_descriptor,
        grid=lambda m, n, B: (m // B, n // B),
        outputs={"y": "x"},
        constexprs={"B": 64},
    )
    x = normal(256, 512, dtype=jnp.float16)
    assert copy.variant(x, 256, 512).attributes["workspace_bytes"] > 0
    assert (jax.jit(lambda x: copy(x, 256, 512))(x) == x).all()


@pytest.mark.skipif(version() < (3, 4), reason="tl.make_tensor_descriptor is of Triton 3.4")
def test_warp_specialisation():
    matmul = xla_gpu.triton_kernel(
        kernels.specialized_matmul,
        grid=lambda M, N, B: (M // B, N // B),
        outputs={"c": "a"},
        constexprs={"B": 128, "STEP": 64},
        num_warps=4,
    )
    a, b = (normal(512, 512, dtype=jnp.float16, seed=s) for s in (1, 2))
    got = jax.jit(lambda a, b: matmul(a, b, 512, 512, 512))(a, b)
    close(got, np.asarray(a, np.float64) @ np.asarray(b, np.float64).T, 5e-2)


def test_addresses_that_are_not_aligned_are_errors():
    """By the C ABI: XLA's own are aligned."""
    spec = TensorSpec("f32", (64,))
    variant = add.variant(spec, spec, n=64)
    op = _schema.define(variant.definition, None).key
    with _device.bench(_device.find()) as bench:
        x, y, out = (TensorRef(spec, bench.allocate(512)) for _ in range(3))
        _ops.run(op, "CUDA", [x, y], [out], variant.attributes, bench.stream)
        odd = TensorRef(spec, y.address + 4)
        with pytest.raises(
            xla_gpu.InvalidArgumentError, match="add: y lies at an address that is 4"
        ):
            _ops.run(op, "CUDA", [x, odd], [out], variant.attributes, bench.stream)


@pytest.mark.parametrize("value", [1, 2, 16, -3, 2**40, -(2**40), 0.25, True])
def test_scalars(value):
    fill = xla_gpu.triton_kernel(
        kernels.fill, grid=blocks, outputs={"out": "like"}, constexprs={"BLOCK": 8}
    )
    close(jax.jit(lambda x: fill(x, value, 20))(normal(20)), np.full(20, value, np.float32), 0)


@pytest.mark.parametrize("donate", [False, True])
def test_in_place(donate):
    accumulate = xla_gpu.triton_kernel(
        kernels.accumulate, grid=blocks, in_place=["total"], constexprs={"BLOCK": 64}
    )
    total, x = normal(1000), normal(1000, seed=1)
    want = total + 2 * x
    step = jax.jit(
        lambda t, x: accumulate(accumulate(t, x, 1000), x, 1000),
        donate_argnums=0 if donate else (),
    )
    kept = np.asarray(total)
    close(step(total, x), want)
    if not donate:
        assert (np.asarray(total) == kept).all()


@pytest.mark.parametrize("smallest_graph", [None, 1])
def test_a_chain_in_command_buffers(smallest_graph):
    options = {"xla_gpu_graph_min_graph_size": smallest_graph} if smallest_graph else None

    def chain(x, y):
        for _ in range(100):
            x = add(x, y, n=x.size)
        return x

    chain = jax.jit(chain, compiler_options=options)
    y = jnp.ones(100_003)
    for run in range(10):  # new buffers and other values, so that a graph is updated too
        x = jnp.arange(100_003, dtype=jnp.float32) + run
        assert (chain(x, y) == x + 100).all()


def test_vmap_and_scan():
    x, y = normal(7, 100), normal(7, 100, seed=1)
    assert (jax.vmap(lambda x, y: add(x, y, n=100))(x, y) == x + y).all()
    carry, _ = jax.lax.scan(lambda c, x: (add(c, x, n=100), None), jnp.zeros(100), x)
    close(carry, x.sum(0), 1e-5)


def test_a_grid_of_nothing():
    x = jnp.zeros(0)
    assert add(x, x, n=0).shape == (0,)


def test_autotune_on_this_gpu(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("XLA_GPU_LOG", "info")

    def run():
        tuned = xla_gpu.triton_kernel(
            kernels.tuned, name="tuned_add", grid=blocks, outputs={"out": "x"}
        )
        x = normal(1 << 20)
        assert (jax.jit(lambda x: tuned(x, x, 1 << 20))(x) == x + x).all()

    run()
    said = capfd.readouterr().err
    assert "autotuned in" in said and said.count(" us  BLOCK") == len(kernels.CONFIGS), said
    monkeypatch.setattr(_device, "bench", None)
    run()
    assert "autotuned before" in capfd.readouterr().err


def test_the_same_values_as_tritons_own_launcher():
    torch = pytest.importorskip("torch")
    n = 100_003
    x, y = normal(n), normal(n, seed=1)
    tx, ty = (torch.tensor(np.asarray(each), device="cuda") for each in (x, y))
    out = torch.empty_like(tx)
    kernels.add[(triton.cdiv(n, 1024),)](tx, ty, out, n, BLOCK=1024)
    assert (out.cpu().numpy() == np.asarray(add(x, y, n=n))).all()

    x = normal(513, 1000)
    tx = torch.tensor(np.asarray(x), device="cuda")
    out = torch.empty_like(tx)
    kernels.softmax[(513,)](out, tx, 1000, 1000, 1000, 0.5, None, BLOCK=1024)
    assert (out.cpu().numpy() == np.asarray(softmax(x, scale=0.5))).all()
