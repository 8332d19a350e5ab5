"""The examples of kernels of one's own on the GPU; each says itself what it lacks here."""

import kernel_examples
import pytest

EXAMPLES = sorted(
    path.stem for path in kernel_examples.FOLDER.glob("[!_]*.py") if path.stem != "numba_kernel"
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_on_the_gpu(name):
    if name.startswith("triton"):
        pytest.importorskip("triton")
    kernel_examples.check(name, "gpu")


@pytest.mark.parametrize("name", ["cublas_gemm", "rms_norm"])
def test_each_call_in_a_graph(name):
    """The first one, too, in which cuBLAS makes its handle."""
    kernel_examples.check(name, "gpu", XLA_FLAGS="--xla_gpu_graph_min_graph_size=1")
