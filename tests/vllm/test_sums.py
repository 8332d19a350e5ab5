"""A layer's sums over two devices, with a stand-in for all_reduce, which is for GPUs."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from torchax.interop import jax_view, torch_view
from tpu_inference.layers.common.linear import sharded_matmul
from tpu_inference.layers.vllm.custom_ops import fused_moe
from xla_gpu import InvalidArgumentError
from xla_gpu.vllm_xla import _sums

COLUMNS = 1 << 12


@pytest.fixture(params=["data", "model"])
def mesh(request):
    """Two devices, one of these axes over both; another if there are not as many."""
    if jax.device_count() < 2:
        pytest.skip("there is one device")
    shape = (2, 1) if request.param == "data" else (1, 2)
    return Mesh(np.array(jax.devices()[:2]).reshape(shape), ("data", "model"))


@pytest.fixture
def calls(monkeypatch):
    """The rows and devices of each call of all_reduce."""
    made = []

    def all_reduce(x, devices):
        made.append((x.shape[0], devices))
        return lax.psum(x, ("data", "model"))

    monkeypatch.setattr(_sums, "_are_gpus_here", lambda devices: True)
    monkeypatch.setattr(_sums, "all_reduce", all_reduce)
    _sums._ordinals.cache_clear()
    yield made
    _sums._ordinals.cache_clear()


def product(mesh, rows):
    """Of rows by a weight whose rows are on the devices of "model", in a step's jit."""
    summed = _sums._summed_here(_sums._rows_of_the_weight, sharded_matmul)
    x, weight = np.ones((rows, 6), np.float32), np.ones((6, COLUMNS), np.float32)
    with jax.set_mesh(mesh):
        out = jax.jit(lambda *xs: summed(*xs, P("model", None), mesh=mesh))(x, weight)
    np.testing.assert_array_equal(out, np.full((rows, COLUMNS), 6))


def test_a_sum_over_all_devices_is_all_reduce(mesh, calls):
    product(mesh, 128)  # 2 MiB
    product(mesh, 2)
    product(mesh, 130)
    ordinals = ",".join(str(device.local_hardware_id) for device in mesh.devices.flat)
    over_all = [(8, ordinals), (128, ordinals), (2, ordinals)]  # the first is tried out
    assert calls == (over_all if mesh.shape["model"] == 2 else [])


def test_the_sum_of_routed_and_shared_experts_is_all_reduce(mesh, calls):
    summed = _sums._of_routed_and_shared_experts(fused_moe._all_reduce_over_tp)
    with jax.set_mesh(mesh):
        parts = np.ones((2, COLUMNS), np.float32)
        out = jax.jit(lambda x: jax_view(summed(torch_view(x), mesh)))(parts)
    over_all = mesh.shape["model"] == 2
    np.testing.assert_array_equal(out, parts * (2 if over_all else 1))
    assert [rows for rows, _ in calls] == ([8, 2] if over_all else [])


def test_what_all_reduce_does_not_serve_is_psum(mesh, calls, monkeypatch):
    def refuse(x, devices):
        raise InvalidArgumentError("stand-in")

    monkeypatch.setattr(_sums, "all_reduce", refuse)
    product(mesh, 2)
