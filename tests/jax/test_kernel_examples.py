"""The examples of kernels of one's own: run on the CPU, and compiled for a GPU."""

import importlib.util
import os
import re
import subprocess

import jax
import jax.numpy as jnp
import kernel_examples
import pytest
import xla_gpu
from kernel_examples import FOLDER, LACKS_SOMETHING
from xla_gpu._ops import TensorSpec

ON_CPU = ["minimal", "saxpy", "rms_norm", "cublas_gemm", "numba_kernel"]
ON_GPU = {
    "cute_dsl": "cutlass",
    "flashinfer_rms_norm": "flashinfer",
    "tilelang_softmax": "tilelang",
}
TRITON = ["triton_softmax", "triton_matmul"]  # in tests/triton


@pytest.mark.parametrize("name", ON_CPU)
def test_on_the_cpu(name):
    kernel_examples.check(name, "cpu", JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("name", ON_GPU)
def test_what_is_missing_is_said(name):
    done = kernel_examples.run(name, JAX_PLATFORMS="cpu")
    assert done.returncode == LACKS_SOMETHING, done.stdout + done.stderr
    installed = importlib.util.find_spec(ON_GPU[name])
    missing = (
        "needs an NVIDIA GPU" if installed else f"{ON_GPU[name]} is not installed: pip install"
    )
    assert f"{name}.py: " in done.stderr and missing in done.stderr


def test_each_is_in_the_table_and_tested():
    files = {path.stem for path in FOLDER.glob("[!_]*.py")}
    assert files == {*ON_CPU, *ON_GPU, *TRITON}
    table = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"^\| \[`(\w+)\.py`\]\(\1\.py\)", table, re.MULTILINE)) == files


@pytest.fixture
def example(monkeypatch):
    return lambda name: kernel_examples.module(name, monkeypatch)


CUDA = [("minimal", "my_add", "f32", 1), ("saxpy", "saxpy", "f32", 1)]
CUDA += [
    ("rms_norm", kernel, dtype, cols)
    for kernel in ("norm", "norm_dx", "norm_dweight")
    for dtype in ("f32", "bf16")
    for cols in (64, 33)
]


@pytest.mark.skipif("XLA_GPU_PROGRAM" not in os.environ, reason="XLA_GPU_PROGRAM names xla-gpu")
@pytest.mark.parametrize("name, kernel, dtype, cols", CUDA)
def test_the_cuda_source_compiles(example, tmp_path, name, kernel, dtype, cols):
    kernel = getattr(example(name), kernel)
    specs = {arg.name: TensorSpec(dtype, (cols,)) for arg in kernel.schema.args}
    made = kernel._variant(specs, {}) if kernel._variant else kernel._definition
    code = made["implementations"]["CUDA"]
    (tmp_path / "source.cu").write_text(code["text"])
    command = [os.environ["XLA_GPU_PROGRAM"], "compile", tmp_path / "source.cu"]
    done = subprocess.run(
        [*command, "--entry", code["entry"], "--arch", "sm_90a"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"spilled, stores +0 ", done.stdout), done.stdout


def test_a_training_step_for_a_gpu(example):
    """What XLA is given there: each kernel once a layer, under its own name."""
    rms_norm = example("rms_norm")
    x, weights = jnp.ones((5, 33)), jnp.ones((3, 33))
    step = jax.jit(jax.grad(rms_norm.loss, (1, 2, 3)), static_argnums=0)
    traced = step.trace(rms_norm.rms_norm, x, weights, jnp.ones((3, 33, 33)))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for name in ("rms_norm", "rms_norm_dx", "rms_norm_dweight"):
        assert len(re.findall(rf"stablehlo\.custom_call @{name}\(", text)) == 3, name
    assert re.search(r"grid = (dense<\[5, 1, 1\]>|array<i64: 5, 1, 1>)", text)  # the latter in 0.4


def test_the_launcher_of_cublas_is_right_c(example):
    gemm = example("cublas_gemm")
    try:
        include, _ = gemm.cuda()
    except SystemExit:
        pytest.skip("CUDA's headers are not here")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{include}"]
    subprocess.run(["c++", *flags, gemm.SOURCE], check=True)


def test_the_launcher_of_cublas_checks_shapes(example):
    gemm = example("cublas_gemm").gemm
    with pytest.raises(ValueError, match="gemm: the inner sizes are 3 of a and 2 of b"):
        jax.jit(gemm)(jnp.ones((2, 3)), jnp.ones((2, 3)))
    assert gemm(jnp.ones((2, 3)), jnp.ones((2, 3)), b_transposed=True).tolist() == [[3, 3]] * 2
    with pytest.raises(xla_gpu.InvalidArgumentError, match="a is i32"):
        gemm(jnp.ones((2, 3), jnp.int32), jnp.ones((3, 2)))
