"""How weights come from a file to the device; without a server."""

from __future__ import annotations

import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.torch import save_file
from tpu_inference.layers.common import utils
from tpu_inference.layers.common.process_weights import linear_weights
from tpu_inference.layers.vllm.quantization import awq, fp8, mxfp4, unquantized
from tpu_inference.models.jax.utils import weight_utils
from vllm.model_executor.layers.fused_moe import RoutedExperts
from xla_gpu.vllm_xla import _mxfp4, _weights
from xla_gpu.vllm_xla._names import UnsupportedError

MESH = jax.make_mesh((1,), ("model",), devices=jax.devices("cpu")[:1])
ON_ONE = NamedSharding(MESH, PartitionSpec(None, "model"))
TWO = jax.make_mesh((2,), ("model",), devices=jax.devices("cpu"))
OVER_TWO = NamedSharding(TWO, PartitionSpec(None, "model"))


def octets(array: jax.Array) -> bytes:
    return np.asarray(array).tobytes()


def some(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.arange(np.prod(shape)) % 100).reshape(shape).to(dtype)


# ---- One tensor ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sharding", [None, ON_ONE])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_a_tensor_is_sent_bit_for_bit(dtype, sharding):
    tensor = some(32, 64, dtype=dtype)
    expected = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    array = _weights.sent(tensor.clone(), sharding)
    assert octets(array) == expected
    assert array.dtype.name == str(dtype).removeprefix("torch.")
    assert array.shape == (32, 64)
    assert array.committed == (sharding is not None)


def test_scalars_and_views_are_sent():
    assert _weights.sent(torch.tensor(2.5), None) == 2.5
    turned = some(4, 6).T
    assert octets(_weights.sent(turned, None)) == octets(_weights.sent(turned.contiguous(), None))


@pytest.mark.parametrize("sharding", [None, ON_ONE])
def test_a_tensors_memory_may_go(sharding):
    tensor = some(1000, 1000)
    array = _weights.sent(torch.nn.Parameter(tensor), sharding)
    tensor.zero_()
    tensor.untyped_storage().resize_(0)
    np.testing.assert_array_equal(array, np.arange(10**6).reshape(1000, 1000) % 100)


# ---- Flax models ---------------------------------------------------------------------------------


def test_a_file_is_read_as_it_is(tmp_path):
    file = tmp_path / "model.safetensors"
    tensors = {"a.weight": some(4, 6), "b.weight": some(3, dtype=torch.float32)}
    save_file(tensors, file)
    read = _weights._as_views(inspect.unwrap(weight_utils.model_weights_single_file_generator))
    found = dict(read(str(file), framework="flax"))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert [name for name, _ in read(str(file), "flax", "b")] == ["b.weight"]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_weight_of_a_file_is_turned_where_it_is_used(devices):
    mesh = MESH if devices == 1 else TWO
    loaded = []

    def original(*args, **kwargs):
        loaded.append((args, kwargs))

    load = _weights._from_the_device(original)
    load("config", "params", "shardings", "maps", mesh, "key", some(4, 6), [], pp_missing_layers=3)
    (((*before, array, suffixes), kwargs),) = loaded
    assert before == ["config", "params", "shardings", "maps", mesh, "key"]
    assert (suffixes, kwargs) == ([], {"pp_missing_layers": 3})
    assert octets(array) == octets(_weights.sent(some(4, 6), None))
    assert array.committed == (devices == 1)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, 4), {}),
        ((6,), {}),
        ((2, 3, 4), {}),
        ((6, 4), dict(permute_dims=(0, 1))),
        ((6, 4), dict(reshape_dims=(2, 3, 4), permute_dims=(2, 0, 1))),
        ((6, 4), dict(reshape_dims=(2, 3, 4), permute_dims=(0, 2, 1))),
        ((6, 4), dict(reshape_dims=(6, 2, 2), permute_dims=(1, 2, 0))),
        ((6,), dict(reshape_dims=(2, 3), permute_dims=(0, 1))),
    ],
)
@pytest.mark.parametrize("padded", [False, True])
def test_a_torch_weight_is_turned_as_by_tpu_inference(shape, dims, padded):
    original = inspect.unwrap(weight_utils.load_nnx_param_from_reshaped_torch)
    weight = some(*shape)
    turned = weight_utils.jax_array_from_reshaped_torch(weight, **dims)
    size = (turned.shape[0] + 2, *turned.shape[1:]) if padded else turned.shape
    loaded = []
    for load in (original, _weights._turned_on_the_device(original)):
        param = nnx.Param(jax.ShapeDtypeStruct(size, jnp.bfloat16))
        with jax.set_mesh(MESH):
            load(param, weight, **dims, param_name="lm_head.weight")
        loaded.append(param.get_value())
        assert param.get_metadata()["_is_loaded"]
    before, now = loaded
    assert (now.shape, now.dtype, now.sharding) == (before.shape, before.dtype, before.sharding)
    assert octets(now) == octets(before)


def test_a_torch_weight_that_does_not_fit_is_refused():
    original = inspect.unwrap(weight_utils.load_nnx_param_from_reshaped_torch)
    param = nnx.Param(jax.ShapeDtypeStruct((4, 7), jnp.bfloat16))
    with jax.set_mesh(MESH), pytest.raises(ValueError, match="Shape mismatch"):
        _weights._turned_on_the_device(original)(param, some(6, 4), param_name="some.weight")


# ---- torchax models ------------------------------------------------------------------------------


@pytest.mark.parametrize("stage_on_host", [False, True])
def test_a_layers_matrix_goes_to_its_device(stage_on_host):
    load = _weights._sent_as_it_is(lambda *args: args)
    layer = types.SimpleNamespace(weight=some(4, 6), scale=some(4))
    array = load(layer, "weight", ON_ONE, stage_on_host)
    assert (array.sharding, octets(array)) == (ON_ONE, octets(_weights.sent(some(4, 6), None)))
    assert not load(layer, "scale", ON_ONE, stage_on_host).committed


def test_a_layers_matrix_of_several_devices_goes_to_the_first_to_be_turned():
    load = _weights._sent_as_it_is(lambda *args: args)
    layer = types.SimpleNamespace(weight=some(4, 6))
    array = load(layer, "weight", OVER_TWO)
    assert array.committed
    assert array.devices() == {OVER_TWO.mesh.devices.flat[0]}
    assert octets(array) == octets(_weights.sent(some(4, 6), None))
    assert load(layer, "weight", OVER_TWO, stage_on_host=True) == (layer, "weight", OVER_TWO, True)
    layer.weight = layer.weight.to("meta")
    assert load(layer, "weight", ON_ONE) == (layer, "weight", ON_ONE, False)


def test_a_layers_weights_are_put_together_without_a_program():
    @_weights._not_compiled
    def build(self, layer, weight, bias):
        compiled = jax.jit(lambda x: isinstance(x, jax.core.Tracer))
        return layer, bool(compiled(weight)), bias

    assert build(None, "layer", jnp.ones(3), None) == ("layer", False, None)


@pytest.mark.parametrize("shards", [1, 2])
def test_projections_are_reordered_for_several_shards_alone(shards):
    original = inspect.unwrap(utils.reorder_concatenated_tensor_for_sharding)
    weight = jnp.arange(48).reshape(4, 12)
    now = _weights._one_shard_stays(original)(weight, [8, 4], shards, -1)
    assert (now is weight) == (shards == 1)
    np.testing.assert_array_equal(now, original(weight, [8, 4], shards, -1))


@pytest.mark.parametrize(
    ("dtype", "shape", "order"),
    [
        ("float8_e4m3fn", (4, 6), (1, 0)),
        ("float8_e5m2", (4, 6), (1, 0)),
        ("float8_e4m3fn", (6,), (0,)),
        ("int8", (4, 6), (0, 1)),
        ("bfloat16", (4, 6), (0, 1)),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_fp8_weights_lie_column_by_column(dtype, shape, order, split):
    put = _weights._fp8_column_by_column(inspect.unwrap(linear_weights.general_device_put))
    weight = jnp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    (array,) = jax.tree.leaves(
        put([weight] if split else weight, NamedSharding(MESH, PartitionSpec()))
    )
    assert array.format.layout.major_to_minor == order
    np.testing.assert_array_equal(array.astype("float32"), weight.astype("float32"))
    product = jax.jit(lambda x, w: x @ w.astype("float32"))(jnp.ones(shape[0]), array)
    np.testing.assert_array_equal(product, jnp.ones(shape[0]) @ weight.astype("float32"))


# ---- torchax models' experts ---------------------------------------------------------------------


def a_layer(
    dtype=torch.bfloat16,
    method=unquantized.VllmUnquantizedFusedMoEMethod,
    mesh=MESH,
    experts=4,
):
    """A layer that nothing was loaded into: w13 [experts, 8, 6], w2 [experts, 6, 4]."""
    layer, quant_method = RoutedExperts.__new__(RoutedExperts), method.__new__(method)
    for module in (layer, quant_method):
        if isinstance(module, torch.nn.Module):
            torch.nn.Module.__init__(module)
    quant_method.mesh = mesh
    layer.quant_method = quant_method
    for name, shape in (("w13_weight", (experts, 8, 6)), ("w2_weight", (experts, 6, 4))):
        room = torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
        layer.register_parameter(name, room)
    return layer


def by_expert(layer):
    """As vLLM loads a file with tensors of each expert: halves of one weight, types converted."""
    for expert in reversed(range(len(layer.w2_weight))):
        place = layer.w13_weight.data[expert]
        for half in range(2):
            place.narrow(0, 4 * half, 4).copy_(some(4, 6, dtype=torch.float32) + expert + half)
        layer.w2_weight.data[expert].copy_(some(6, 4) + expert)


def turned(layer):
    """A file that has each expert's inputs first."""
    for expert in range(4):
        layer.w13_weight.data[expert].copy_((some(6, 8) + expert).T)
        layer.w2_weight.data[expert].copy_((some(4, 12) + expert)[:, ::2].T)


def all_at_once(layer):
    """Smaller than the room for them."""
    layer.w13_weight.data[:, :5, :4].copy_(some(4, 5, 4))
    layer.w2_weight.data[:, :1].copy_(some(1))
    layer.w2_weight.data[1, 2].copy_(some(4))


@pytest.mark.parametrize("under_way", [0, 1 << 20])
@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (unquantized.VllmUnquantizedFusedMoEMethod, torch.bfloat16),
        (unquantized.VllmUnquantizedFusedMoEMethod, torch.float32),
        (fp8.VllmFp8MoEMethod, torch.float8_e4m3fn),
        (mxfp4.VllmMxfp4MoEMethod, torch.uint8),
    ],
)
@pytest.mark.parametrize("load", [by_expert, turned, all_at_once])
@pytest.mark.parametrize("mesh", [MESH, TWO], ids=["one", "two"])
def test_experts_go_to_their_devices(load, method, dtype, under_way, mesh, monkeypatch):
    monkeypatch.setattr(_weights, "_UNDER_WAY", under_way)
    on_host, layer = a_layer(dtype, method), a_layer(dtype, method, mesh)
    load(on_host)
    with _weights.ExpertsOnTheDevice(torch.nn.ModuleList([layer])):
        load(layer)
    take = _weights._sent_as_it_is(lambda *args: args)
    for name in ("w13_weight", "w2_weight"):
        assert not getattr(layer, name).float().any()  # its memory was not touched
        split = NamedSharding(mesh, PartitionSpec("model"))
        array, expected = take(layer, name, split), take(on_host, name, ON_ONE)
        assert (array.sharding, array.dtype) == (split, expected.dtype)
        assert octets(array) == octets(expected)
        assert _weights.taken(getattr(layer, name)) is None


@pytest.mark.parametrize(
    "how",
    [dict(mesh=TWO, experts=3), dict(method=awq.VllmAWQMoEMethod), dict(entered=False)],
)
def test_other_experts_are_loaded_on_the_host(how):
    entered = how.pop("entered", True)
    layer, other = a_layer(**how), torch.zeros(2)
    expected = a_layer(experts=how.get("experts", 4))
    mode = _weights.ExpertsOnTheDevice(torch.nn.ModuleList([layer]))
    if entered:
        with mode:
            by_expert(layer)
            other.copy_(torch.ones(2))
        assert other.all()
    else:
        by_expert(layer)
    by_expert(expected)
    for name in ("w13_weight", "w2_weight"):
        assert torch.equal(getattr(layer, name), getattr(expected, name))
        assert _weights.taken(getattr(layer, name)) is None


def test_experts_loaded_in_another_order_are_refused():
    layer = a_layer()
    with (
        _weights.ExpertsOnTheDevice(layer),
        pytest.raises(
            UnsupportedError, match=r"\(4, 8, 6\) are loaded in parts of strides \(1, 6\)"
        ),
    ):
        layer.w13_weight.data[0].T.copy_(some(6, 8))


def test_the_loader_sends_experts():
    layer = a_layer()
    load = _weights._experts_to_the_device(lambda self, model, config: by_expert(model))
    load("loader", layer, "config")
    assert _weights.taken(layer.w13_weight) is not None


def test_rooms_for_mxfp4_are_pages_that_nothing_has_written():
    @_mxfp4.room_untouched
    def create_weights():
        return torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(4, dtype=torch.bfloat16)

    octets_, floats = create_weights()
    assert (octets_.shape, octets_.dtype, octets_.any()) == ((2, 3), torch.uint8, False)
    assert (floats.shape, floats.dtype, floats.any()) == ((4,), torch.bfloat16, False)
