"""Weights go to the device as they lie in the file, and are turned there.

tpu-inference turns them on the host: from numpy's copy, or by way of float32, in XLA's programs for
the CPU. Over several devices that stays for flax models, as each takes its part of what was turned;
a torchax model's are turned on the first, and experts go to their devices, each to its own.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from jax.experimental.layout import Layout
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from torch.overrides import TorchFunctionMode

from xla_gpu.vllm_xla._names import (
    ShardingAxisName,
    get_mesh_shape_product,
    replace,
    to_jax_dtype,
    unexpected,
)

_FP8 = (jnp.float8_e4m3fn, jnp.float8_e5m2)
_turning = threading.Semaphore(4)  # files are read by up to 64 threads: so many have two copies


def _sending(tensor: torch.Tensor, sharding: Sharding | None) -> jax.Array:
    """What `sent` returns, while the tensor may still be read."""
    octets = np.from_dlpack(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
    host = octets.view(to_jax_dtype(tensor.dtype)).reshape(tensor.shape)
    devices: Any = sharding.device_set if sharding else jax.devices("cpu")
    if any(device.platform == "cpu" for device in devices):
        host = host.copy()  # JAX's CPU may take the memory itself
    array: jax.Array = jax.device_put(host, sharding)
    return array


def sent(tensor: torch.Tensor, sharding: Sharding | None) -> jax.Array:
    """A tensor of the host on devices, bit for bit; None: the default one, uncommitted.

    Its memory may be freed when this returns, even by resizing its storage, which torch refuses
    once `Tensor.numpy` has had a view of it.
    """
    array: jax.Array = jax.block_until_ready(_sending(tensor, sharding))
    return array


# ---- Flax models ---------------------------------------------------------------------------------


def _as_views(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def tensors(
        weights_file: str, framework: str, filter_regex: str | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        yield from original(weights_file, "pt", filter_regex)  # of the mapped file; "flax" copies

    return tensors


def _from_the_device(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load(
        vllm_config: Any,
        params: Any,
        shardings: Any,
        metadata_map: Any,
        mesh: jax.sharding.Mesh,
        hf_key: str,
        hf_weight: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        one = mesh.size == 1
        with _turning if one else contextlib.nullcontext():
            if isinstance(hf_weight, torch.Tensor):
                hf_weight = sent(hf_weight, NamedSharding(mesh, PartitionSpec()) if one else None)
            before = vllm_config, params, shardings, metadata_map, mesh, hf_key
            original(*before, hf_weight, *args, **kwargs)

    return load


def _turn(array: jax.Array, shape: tuple[int, ...], order: tuple[int, ...]) -> jax.Array:
    return jnp.transpose(array.reshape(shape), order)


@functools.cache
def _compiled_turn(like: jax.ShapeDtypeStruct, *how: tuple[int, ...]) -> Callable[..., jax.Array]:
    # Held here, as tpu-inference clears JAX's caches after each layer that it has loaded.
    return jax.jit(_turn, static_argnums=(1, 2)).lower(like, *how).compile()


def _turned_on_the_device(original: Callable[..., None]) -> Callable[..., None]:
    from xla_gpu.vllm_xla._names import assign_and_shard_param

    @functools.wraps(original)
    def load(
        jax_param: Any,
        torch_weight: torch.Tensor,
        _shard_id: int = -1,
        *,
        reshape_dims: tuple[int, ...] | None = None,
        permute_dims: tuple[int, ...] | None = None,
        param_name: str = "Unknown",
    ) -> None:
        shape = tuple(reshape_dims or torch_weight.shape)
        order = permute_dims or tuple(range(len(shape)))[:: -1 if len(shape) == 2 else 1]
        mesh = jax.sharding.get_mesh()
        fits = tuple(shape[i] for i in order) == jax_param.get_value().shape
        if mesh.empty or mesh.size > 1 or not fits:  # padded, or refused, by the original
            dims: Any = dict(reshape_dims=reshape_dims, permute_dims=permute_dims)
            original(jax_param, torch_weight, _shard_id, param_name=param_name, **dims)
            return
        array = sent(torch_weight, NamedSharding(mesh, PartitionSpec()))
        if shape != array.shape or list(order) != sorted(order):
            like = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
            array = _compiled_turn(like, shape, order)(array)
        assign_and_shard_param(jax_param, array, param_name)

    return load


# ---- torchax models ------------------------------------------------------------------------------


def _sent_as_it_is(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(
        layer: Any, param_name: str, sharding: NamedSharding, stage_on_host: bool = False
    ) -> Any:
        tensor, one = getattr(layer, param_name), sharding.mesh.size == 1
        if (array := taken(tensor)) is not None:
            return jax.device_put(array, sharding)
        on_host = not isinstance(tensor, torchax.tensor.Tensor) and tensor.device.type == "cpu"
        if not on_host or (stage_on_host and not one):
            return original(layer, param_name, sharding, stage_on_host)
        # What is short, such as scales, is computed with on the CPU, where programs compile sooner.
        if tensor.ndim == 1:
            return sent(tensor, None)
        return sent(
            tensor, sharding if one else SingleDeviceSharding(sharding.mesh.devices.flat[0])
        )

    return load


def _not_compiled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def build(self: Any, layer: Any, weight: Any, bias: Any) -> Any:
        with jax.disable_jit():
            return original(self, layer, weight, bias)

    return build


def _one_shard_stays(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reorder(concatenated_tensor: Any, split_sizes: Any, n_shards: int, dim: int) -> Any:
        if n_shards == 1:
            return concatenated_tensor
        return original(concatenated_tensor, split_sizes, n_shards, dim)

    return reorder


def _fp8_column_by_column(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def put(tensor: Any, sharding: Any, *, layout: Any = None, source_mesh: Any = None) -> Any:
        arrays = jax.tree.leaves(tensor)
        if layout is None and all(x.ndim == 2 and x.dtype in _FP8 for x in arrays):
            layout = Layout((1, 0))
        return original(tensor, sharding, layout=layout, source_mesh=source_mesh)

    return put


# ---- torchax models' experts ---------------------------------------------------------------------

_SHARDS = "_xla_gpu_shards"  # the attribute of a parameter whose values are on devices
_UNDER_WAY = 64 << 20  # octets of a file that are being sent: XLA has as many again, pinned


class _Shards:
    """An experts' weight on its devices, of which each has some of the experts, from `first` on."""

    def __init__(self, param: torch.Tensor, sharding: NamedSharding) -> None:
        self.sharding, dtype = sharding, to_jax_dtype(param.dtype)
        self.first: dict[Sharding, int] = {}
        self.arrays: dict[Sharding, jax.Array] = {}
        for device, (experts, *_) in sharding.devices_indices_map(tuple(param.shape)).items():
            one = SingleDeviceSharding(device)
            self.first[one] = experts.indices(len(param))[0]
            self.arrays[one] = jnp.zeros(sharding.shard_shape(param.shape), dtype, device=one)


def taken(param: torch.Tensor) -> jax.Array | None:
    """The values of an experts' parameter if they went to its devices, split by experts; once."""
    shards: _Shards | None = vars(param).pop(_SHARDS, None)
    if shards is None:
        return None
    arrays = list(shards.arrays.values())
    whole: jax.Array = jax.make_array_from_single_device_arrays(
        tuple(param.shape), shards.sharding, arrays
    )
    return whole


@functools.partial(jax.jit, static_argnames="turned", donate_argnames="whole")
def _placed(whole: jax.Array, part: jax.Array, start: jax.Array, turned: bool) -> jax.Array:
    part = jnp.matrix_transpose(part) if turned else part
    part = jnp.expand_dims(part, range(whole.ndim - part.ndim))
    return jax.lax.dynamic_update_slice(whole, part, list(start))


class ExpertsOnTheDevice(TorchFunctionMode):  # type: ignore[misc]
    """While it is entered, what is copied into a model's experts' weights goes to their devices.

    vLLM gives a layer's weights, [experts, outputs, inputs], room on the host and copies each
    expert's tensors of the file into it. That memory is not touched here.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        from xla_gpu.vllm_xla._names import (
            RoutedExperts,
            VllmFp8MoEMethod,
            VllmMxfp4MoEMethod,
            VllmUnquantizedFusedMoEMethod,
        )

        super().__init__()
        # These themselves: others take weights from the host in their own ways.
        methods = VllmUnquantizedFusedMoEMethod, VllmFp8MoEMethod, VllmMxfp4MoEMethod
        self.weights: dict[int, tuple[torch.Tensor, NamedSharding]] = {}  # by their address
        self.parts: collections.deque[jax.Array] = collections.deque()  # that are under way
        for layer in model.modules():
            if not isinstance(layer, RoutedExperts) or type(layer.quant_method) not in methods:
                continue
            mesh = layer.quant_method.mesh
            sharding = NamedSharding(mesh, PartitionSpec(ShardingAxisName.EXPERT))
            if len(layer.w2_weight) % get_mesh_shape_product(mesh, ShardingAxisName.EXPERT):
                continue  # they are turned on the host
            for param in (layer.w13_weight, layer.w2_weight):
                self.weights[param.untyped_storage().data_ptr()] = param, sharding

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.copy_:
            place, values = args[:2]
            if weight := self.weights.get(place.untyped_storage().data_ptr()):
                self._place(*weight, place, values)
                return place
        return function(*args, **(kwargs or {}))

    def _place(
        self,
        param: torch.Tensor,
        sharding: NamedSharding,
        place: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        if place.stride() != param.stride()[param.ndim - place.ndim :]:
            raise unexpected(
                f"experts' weights {tuple(param.shape)} are loaded in parts of strides "
                f"{place.stride()}"
            )
        shards: _Shards = vars(param).get(_SHARDS) or _Shards(param, sharding)
        setattr(param, _SHARDS, shards)
        values = values.to(place.dtype).expand_as(place)
        offset = place.storage_offset() - param.storage_offset()
        expert, *start = np.unravel_index(offset, param.shape)
        several = values.ndim == param.ndim
        end = expert + (len(values) if several else 1)
        for one, array in shards.arrays.items():
            first = shards.first[one]
            low, high = max(expert, first), min(end, first + len(array))
            if low < high:
                part = values[low - expert : high - expert] if several else values
                shards.arrays[one] = self._placed(array, part, (low - first, *start), one)

    def _placed(
        self, whole: jax.Array, values: torch.Tensor, start: tuple[Any, ...], one: Sharding
    ) -> jax.Array:
        turned = not values.is_contiguous() and values.mT.is_contiguous()
        part = _sending(values.mT if turned else values, one)
        self.parts.append(part)
        while sum(sent.nbytes for sent in self.parts) > _UNDER_WAY:
            self.parts.popleft().block_until_ready()
        array: jax.Array = _placed(whole, part, np.array(start, np.int32), turned)
        return array

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        jax.block_until_ready(list(self.parts))
        self.parts.clear()


def _experts_to_the_device(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        of_torch = isinstance(model, torch.nn.Module)  # else a flax model: Qwen3's is loaded so too
        with ExpertsOnTheDevice(model) if of_torch else contextlib.nullcontext():
            original(self, model, model_config)

    return load_weights


# ---- All of them ---------------------------------------------------------------------------------


def fp8_products_take_weights_as_they_are() -> None:
    """Of fp8, cuBLASLt multiplies with columns of weights alone, before Blackwell.

    A weight of inputs x outputs whose rows follow one another is transposed by XLA in each step.
    """
    replace("linear_weights.general_device_put", _fp8_column_by_column)


def loaded_onto_the_device() -> None:
    """A weight was copied two to five times on the host before it went to the device.

    Flax models' were copied by safetensors and by JAX, reshaped and transposed, each a copy; the
    newer ones' (Qwen3), and torchax models', went by way of float32. A torchax model's were then
    cut into their projections and joined again, where there is nothing to reorder between, in a
    program compiled anew for each layer. Experts' weights of all layers were put together in host
    memory, before the first went to the device.
    """
    for name, make in (
        ("weight_utils.model_weights_single_file_generator", _as_views),
        ("weight_utils._load_and_shard_weight", _from_the_device),
        ("weight_utils.load_nnx_param_from_reshaped_torch", _turned_on_the_device),
        ("unquantized._load_weight_for_layer", _sent_as_it_is),
        ("fp8._load_weight_for_layer", _sent_as_it_is),
        ("VllmUnquantizedLinearMethod._build_linear_weights", _not_compiled),
        ("linear_weights.reorder_concatenated_tensor_for_sharding", _one_shard_stays),
        ("DefaultModelLoader.load_weights", _experts_to_the_device),
    ):
        replace(name, make)
