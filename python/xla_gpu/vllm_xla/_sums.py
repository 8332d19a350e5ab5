"""Sums over devices, two in a layer of tensor or expert parallelism, by all_reduce."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from torchax.interop import jax_view, torch_view

from xla_gpu._errors import InvalidArgumentError
from xla_gpu.jax import all_reduce
from xla_gpu.vllm_xla._names import ShardingAxisName, get_mesh_shape_product, init_logger, replace

logger = init_logger("vllm.xla_gpu")

_MOST = 2 << 20  # octets that all_reduce takes


def _on_each(mesh: Mesh, function: Callable[[Any], Any], x: Any) -> jax.Array:
    """Of what each device has as x, for which the array says that all have the same."""
    whole = PartitionSpec()
    run = jax.shard_map(function, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    out: jax.Array = run(x)
    return out


def _are_gpus_here(devices: list[Any]) -> bool:
    return all(d.platform == "gpu" and d.process_index == jax.process_index() for d in devices)


@functools.cache
def _ordinals(mesh: Mesh) -> str:
    """CUDA's of the mesh's devices; "" where all_reduce does not serve them.

    Not to be asked within shard_map, where JAX takes no other over the mesh. Under a trace jit is
    computed at once, and shard_map alone is not.
    """
    devices = list(mesh.devices.flat)
    if not _are_gpus_here(devices):
        return ""
    ordinals = ",".join(str(d.local_hardware_id) for d in devices)
    total = functools.partial(all_reduce, devices=ordinals)
    try:  # its memory is allocated here, before that of the caches
        with jax.ensure_compile_time_eval():
            ones = np.ones(8, np.float32)
            jax.jit(functools.partial(_on_each, mesh, total))(ones).block_until_ready()
    except (jax.errors.JaxRuntimeError, InvalidArgumentError) as why:
        logger.warning("xla_gpu: sums over devices are XLA's: %s", why)
        return ""
    return ordinals


def _total(mesh: Mesh, ordinals: str, x: jax.Array) -> Any:
    if ordinals and x.size * x.dtype.itemsize <= _MOST:
        return all_reduce(x, devices=ordinals)
    return lax.psum(x, mesh.axis_names)


def _is_over_all(mesh: Mesh | None, axes: Any) -> bool:
    return mesh is not None and 1 < get_mesh_shape_product(mesh, axes) == mesh.size


def _summed(mesh: Mesh, parts: jax.Array) -> jax.Array:
    return _on_each(mesh, functools.partial(_total, mesh, _ordinals(mesh)), parts)


def _summed_here(
    axes_of: Callable[[dict[str, Any]], Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def product(*args: Any, **kwargs: Any) -> jax.Array:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given, mesh = bound.arguments, bound.arguments["mesh"]
        if given["defer_all_reduce"] or not _is_over_all(mesh, axes_of(given)):
            out: jax.Array = original(*args, **kwargs)
            return out
        given["defer_all_reduce"] = True
        return _summed(mesh, original(*bound.args, **bound.kwargs))

    return product


def _of_routed_and_shared_experts(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce(t: Any, mesh: Mesh, axis_name: Any = None) -> Any:
        if _is_over_all(mesh, axis_name or ShardingAxisName.MLP_TENSOR):
            return torch_view(_summed(mesh, jax_view(t)))
        return original(t, mesh, axis_name)

    return reduce


def _rows_of_the_weight(given: dict[str, Any]) -> Any:
    sharding = given["weight_sharding"]
    return getattr(sharding, "spec", sharding)[0]


def _of_experts(given: dict[str, Any]) -> Any:
    if given["scatter_results"] or given["enable_rs_kernel"] or given["use_gmm_fused_rs_kernel"]:
        return None
    return ShardingAxisName.EXPERT if given["use_ep"] else ShardingAxisName.MLP_TENSOR


def sums_of_a_step_are_all_reduce() -> None:
    """XLA ends a CUDA graph at its own kernel for a sum, and waits for the step to end.

    NCCL's sums are recorded anew in each step, which takes longer than the step.
    """
    for name, axes_of in (
        ("unquantized.sharded_matmul", _rows_of_the_weight),
        ("fp8.sharded_quantized_matmul", _rows_of_the_weight),
        ("nvfp4.sharded_quantized_matmul", _rows_of_the_weight),
        ("compressed_tensors_w8a8_fp8.sharded_quantized_matmul", _rows_of_the_weight),
        ("compressed_tensors_w8a8_int8.sharded_quantized_matmul", _rows_of_the_weight),
        ("moe.fused_moe_func", _of_experts),
    ):
        replace(name, functools.partial(_summed_here, axes_of))
    replace("fused_moe._all_reduce_over_tp", _of_routed_and_shared_experts)
