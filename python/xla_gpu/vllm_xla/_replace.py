"""What of tpu-inference runs on TPUs alone, and what stands in its place on CPUs and NVIDIA GPUs.

One function each, with the reason. Before anything is replaced it is looked at: another signature
or content than that of the known release is an UnsupportedError, not a guess.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import torch
from jax._src.pallas.mosaic import tpu_info
from jax.experimental.pallas import tpu as pltpu

from xla_gpu.vllm_xla._versions import UnsupportedError, installed

_MARK = "_xla_gpu_replacement"
_IS_0_31 = installed("tpu-inference") == "0.31.0"


def _expect(owner: ModuleType | type, name: str, parameters: str) -> Any:
    """owner.name, if it is a function of just these parameter names."""
    function: Any = getattr(owner, name, None)
    found = "nothing" if function is None else "something that is no function"
    if callable(function):
        found = f"{name}({', '.join(inspect.signature(function).parameters)})"
    if found != f"{name}({parameters})":
        raise UnsupportedError(
            f"xla_gpu.vllm_xla: {owner.__name__} should have {name}({parameters}) but has "
            f"{found}; this tpu-inference is not the release that pip installed, or was patched"
        )
    return function


def _replace(
    owner: str, name: str, parameters: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Puts make(original) in the place of a module's function or a class's method, once.

    Args:
      owner: "module" or "module:Class".
      name: the function.
      parameters: the names of its parameters.
      make: returns the replacement, of the original.
    """
    module, _, class_name = owner.partition(":")
    place = importlib.import_module(module)
    if class_name:
        place = getattr(place, class_name, place)
    if hasattr(getattr(place, name, None), _MARK):
        return
    replacement = make(_expect(place, name, parameters))
    setattr(replacement, _MARK, True)
    setattr(place, name, replacement)


# ---- Compiler options ----------------------------------------------------------------------------


def _without_options(original: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    # Read, not called: it would start JAX, in the server process too, to ask a TPU for its memory.
    options = set(re.findall(r'"(xla_\w+)"', inspect.getsource(original)))
    others = sorted(name for name in options if not name.startswith("xla_tpu_"))
    if others or not options:
        raise UnsupportedError(
            f"xla_gpu.vllm_xla: {original.__module__}.{original.__name__} should name options of "
            f"TPUs (xla_tpu_*) only but names {others or 'none'}; this tpu-inference is not the "
            "release that pip installed, or was patched"
        )

    @functools.wraps(original)
    def no_options() -> dict[str, Any]:
        return {}

    return no_options


def compiler_options() -> None:
    """XLA:CPU and XLA:GPU refuse a program compiled with options they do not know (xla_tpu_*)."""
    module = "tpu_inference.models.common.compiler_options"
    _replace(module, "get_step_fn_compiler_options", "", _without_options)
    if not _IS_0_31:
        _replace(module, "get_sampling_compiler_options", "", _without_options)


# ---- Devices -------------------------------------------------------------------------------------


def _plain_mesh(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_mesh(axis_shapes: Any, axis_names: Any, *, devices: Any = None) -> jax.sharding.Mesh:
        devices = jax.devices() if devices is None else devices
        types = (jax.sharding.AxisType.Auto,) * len(axis_shapes)
        return jax.make_mesh(axis_shapes, axis_names, types, devices=devices)

    return make_mesh


def device_mesh() -> None:
    """The TPU's mesh is ordered by the chips' coordinates; other devices have none."""
    _replace(
        "tpu_inference.utils",
        "make_optimized_mesh",
        "axis_shapes, axis_names, devices",
        _plain_mesh,
    )


def _memory_of_this_machine(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def memory_limit() -> int:
        gibibytes = os.environ.get("VLLM_CPU_KVCACHE_SPACE")
        if gibibytes:
            return int(gibibytes) << 30
        return int(psutil.virtual_memory().available) // 4

    return memory_limit


def memory_limit() -> None:
    """Asked where the device reports no memory statistics: JAX's CPU; the original knows TPUs only.

    There the cache gets what vLLM's own CPU backend takes the number of gibibytes from, or a
    quarter of what is available, with what files take that could go: a CPU is shared with other
    programs. GPUs report theirs (XLA's pool, XLA_PYTHON_CLIENT_MEM_FRACTION of the device).
    """
    _replace("tpu_inference.utils", "get_device_hbm_limit", "", _memory_of_this_machine)
    if _IS_0_31:
        _replace("tpu_inference.utils", "hbm_usage_bytes", "devices", _usage_by_live_arrays)


def _usage_by_live_arrays(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def usage(devices: Any) -> Any:
        if any(device.memory_stats() is None for device in devices):
            return importlib.import_module("tpu_inference.utils").pathways_hbm_usage_gb(devices)
        return original(devices)

    return usage


def _put_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    def copied(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    @functools.wraps(original)
    def put(tensor: Any, sharding: Any, *, layout: Any = None, source_mesh: Any = None) -> Any:
        tensor = jax.tree.map(copied, tensor)
        several_hosts = os.environ.get("TPU_MULTIHOST_BACKEND") == "ray"
        if layout is None and source_mesh is None and not several_hosts:
            return jax.device_put(tensor, sharding)  # all leaves in one call
        return original(tensor, sharding, layout=layout, source_mesh=source_mesh)

    return put


def host_arrays_are_copied() -> None:
    """The runner overwrites its host buffers for the next step while the last one still runs.

    With asynchronous scheduling the step that reads them need not have started: jax.device_put on
    the CPU makes no copy of a numpy array that happens to begin on a 64-byte boundary (a quarter of
    all allocations, so whole server processes are right or wrong by luck), `may_alias=False` or
    not, and on a GPU the transfer may run after the call. On TPUs the array is copied in the call.
    """
    parameters = "tensor, sharding, layout, source_mesh"
    _replace("tpu_inference.utils", "general_device_put", parameters, _put_copies)


# ---- Attention -----------------------------------------------------------------------------------

_V3 = (
    "queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution, "
    "use_causal_mask, update_kv_cache, skip_kv_mask, sm_scale, sliding_window, soft_cap, "
    "out_dtype, mask_value, q_scale, k_scale, v_scale, chunk_prefill_size, d_block_sizes, "
    "p_block_sizes, m_block_sizes, vmem_limit_bytes, debug_mode, disable_bounds_checks, "
    "disable_semaphore_checks"
)
_HD64 = (
    "queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution, "
    "attention_sink, sm_scale, sliding_window, soft_cap, mask_value, q_scale, k_scale, v_scale, "
    "chunk_prefill_size, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes, "
    "debug_mode"
)


def attention() -> None:
    """The attention kernels are Pallas programs for the TPU's vector unit.

    Flax and torchax models both reach them through two globals of attention_interface, in which
    ours take their place argument for argument; the layout of the cache stays tpu-inference's.
    """
    from xla_gpu.vllm_xla._attention import ragged_paged_attention, ragged_paged_attention_hd64

    module = "tpu_inference.layers.common.attention_interface"
    _replace(module, "ragged_paged_attention", _V3, lambda _: _named(ragged_paged_attention))
    _replace(
        module, "ragged_paged_attention_hd64", _HD64, lambda _: _named(ragged_paged_attention_hd64)
    )


_FLASH = "q, k, v, ab, segment_ids, causal, sm_scale, block_sizes, vmem_limit_bytes, debug"


def encoder_attention() -> None:
    """Encoders attend by a kernel of their own, for TPUs as well: images' towers, BERT's layers.

    The first module's is called by the towers, the second's by layers that are encoders only.
    """
    from xla_gpu.vllm_xla._encoder import flash_attention

    for module in ("layers.common.attention_interface", "kernels.flash_attention.kernel"):
        _replace(
            f"tpu_inference.{module}", "flash_attention", _FLASH, lambda _: _named(flash_attention)
        )


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


# ---- Mixtures of experts -------------------------------------------------------------------------

_GMM = (
    "lhs, rhs, group_sizes, rhs_scale, rhs_bias, group_offset, lhs_scale, tile_info, "
    "vmem_limit_bytes, precision, preferred_element_type, acc_dtype, maybe_quantize_lhs, "
    "lhs_quant_dtype, rhs_quant_dtype, zero_initialize, fuse_act, transpose_rhs"
)


def experts() -> None:
    """The product of tokens with their experts' weights is tokamax's gmm_v2, for TPUs alone."""
    from xla_gpu.vllm_xla._experts import gmm_v2

    for module in ("fused_moe_gmm", "linear"):
        _replace(f"tpu_inference.layers.common.{module}", "gmm_v2", _GMM, lambda _: _named(gmm_v2))


def _routed_as_the_model_says(original: Callable[..., Any]) -> Callable[..., Any]:
    from torchax.interop import jax_view, torch_view

    @functools.wraps(original)
    def moe_apply(layer: Any, x: Any, gating_output: Any, *args: Any, **kwargs: Any) -> Any:
        route = getattr(layer, "custom_routing_function", None)
        if route is None:
            return original(layer, x, gating_output, *args, **kwargs)
        on_input = layer.apply_router_weight_on_input
        if layer.scoring_func != "softmax" or (on_input and layer.top_k != 1):
            where = "input" if on_input else "output"
            raise UnsupportedError(
                f"xla_gpu.vllm_xla: experts chosen by a function of the model's, {layer.top_k} for "
                f"each token, scores by {layer.scoring_func}, weights on their {where}: "
                "tpu-inference has no form of it"
            )
        tokens, logits = torch_view(x), torch_view(gating_output)
        weights, experts = map(jax_view, route(tokens, logits, layer.top_k, layer.renormalize))
        # Whose softmax over the chosen ones is weights / sum: the products are linear in it.
        rows = jnp.arange(len(weights))[:, None]
        chosen = jnp.full(gating_output.shape, -jnp.inf).at[rows, experts].set(jnp.log(weights))
        total = weights.sum(-1, keepdims=True)
        if on_input:
            return original(layer, (x * total).astype(x.dtype), chosen, *args, **kwargs)
        out = original(layer, x, chosen, *args, **kwargs)
        return (out * total).astype(out.dtype)

    return moe_apply


def routing() -> None:
    """tpu-inference takes the greatest logits, whatever the model's own function says.

    Gemma 4 scales experts in it, Llama 4 takes sigmoids and weights the experts' input.
    """
    _replace(
        "tpu_inference.layers.vllm.interface.moe",
        "moe_apply",
        "layer, x, gating_output, weights, moe_backend, mesh, extra_backend_kwargs",
        _routed_as_the_model_says,
    )


def _sums_of_chosen_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gather_reduce(
        x: Any, indices: Any, topk_weights: Any, valid_rows_mask: Any, reduce_group_size: int
    ) -> Any:
        rows = x[indices] * topk_weights[:, None].astype(jnp.float32)
        rows = jnp.where(valid_rows_mask[:, None], rows, 0)
        return rows.reshape(-1, reduce_group_size, x.shape[-1]).sum(1).astype(x.dtype)

    return gather_reduce


def sums_of_experts() -> None:
    """Each device's sum of its experts is rounded to bfloat16, float32 too, before they are added.

    The TPU's kernel, and the sums where each device has a part of every expert, keep x's type.
    """
    _replace(
        "tpu_inference.kernels.sparse_core.ragged_gather_reduce_v2",
        "_fallback_implementation",
        "x, indices, topk_weights, valid_rows_mask, reduce_group_size",
        _sums_of_chosen_rows,
    )


def mxfp4() -> None:
    """tpu-inference rounds mxfp4 weights a second time, to blocks of 512.

    vLLM writes zeros where they will be loaded: of all layers, before the first is.
    """
    from xla_gpu.vllm_xla import _mxfp4

    method = "tpu_inference.layers.vllm.quantization.mxfp4:VllmMxfp4MoEMethod"
    _replace(method, "process_weights_after_loading", "self, layer", _mxfp4.loaded)
    _replace(
        method,
        "create_weights",
        "self, layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype, "
        "extra_weight_attrs",
        _mxfp4.room_untouched,
    )


def no_sparse_core(device_kind: str) -> None:
    """Gathers of tokens and of their experts' results ask JAX what TPU this is.

    Where it has no SparseCore (as v4i) they have their own roads of plain JAX. JAX keeps a table
    for devices that it does not know.
    """
    v4i = pltpu.ChipVersion.TPU_V4I
    tpu_info.registry[device_kind] = lambda: pltpu.get_tpu_info_for_chip(v4i, 1)


# ---- Draft models --------------------------------------------------------------------------------


_STATIC = ("self", "num_speculative_tokens", "layer_name_to_kvcache_index")


def _compiled_plainly(original: Any) -> Callable[..., Any]:
    names = inspect.signature(original).parameters
    propose = jax.jit(
        original.__wrapped__,
        donate_argnames="kv_caches",
        static_argnames=[name for name in _STATIC if name in names],
    )

    @functools.wraps(original.__wrapped__)
    def call(*args: Any, **kwargs: Any) -> Any:
        return propose(*args, **kwargs)

    return call


def draft_model() -> None:
    """The draft model's step names its compiler options itself, and they are the TPU's."""
    proposers, first = "tpu_inference.spec_decode.jax", "self, state_leaves, kv_caches, input_ids"
    _replace(
        f"{proposers}.eagle3:Eagle3Proposer",
        "_propose",
        f"{first}, attn_metadata, last_token_indices, target_hidden_states, "
        "num_speculative_tokens, layer_name_to_kvcache_index",
        _compiled_plainly,
    )
    _replace(
        f"{proposers}.dflash:DFlashProposer",
        "_propose",
        f"{first}, attn_metadata, target_hidden_states",
        _compiled_plainly,
    )


# ---- Loading torchax models ----------------------------------------------------------------------


def _torchax_if_quantized(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def resolve(vllm_config: Any, is_draft_model: bool) -> str:
        if vllm_config.model_config.quantization is not None and not is_draft_model:
            return "vllm"
        return original(vllm_config, is_draft_model)

    return resolve


def quantized_models_are_torchax() -> None:
    """tpu-inference's own models read few of the quantized checkpoints that vLLM's read.

    Llama reads none (safetensors' numpy road has no fp8), Qwen3 some of compressed-tensors.
    """
    module = "tpu_inference.models.common.model_loader"
    _replace(
        module,
        "resolve_model_architecture",
        "vllm_config, is_draft_model",
        _torchax_if_quantized,
    )


def _blocks_keep_their_scales(original: Callable[..., None]) -> Callable[..., None]:
    name = "DISABLE_WEIGHT_REQUANTIZATION"  # read in the call

    @functools.wraps(original)
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        before = os.environ.get(name)
        os.environ[name] = "1"
        try:
            original(self, layer)
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before

    return process_weights_after_loading


def nvfp4() -> None:
    """Unless told otherwise, tpu-inference gives 4-bit experts one scale a channel for many."""
    _replace(
        "tpu_inference.layers.vllm.quantization.nvfp4:VllmNvfp4MoEMethod",
        "process_weights_after_loading",
        "self, layer",
        _blocks_keep_their_scales,
    )


def _and_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    bound = not inspect.signature(original).parameters  # to its class

    @functools.wraps(original)
    def get_supported_act_dtypes(*self: Any) -> list[torch.dtype]:
        return [*(original() if bound else original(*self)), torch.float32]

    return get_supported_act_dtypes


def float32_beside_4_bits() -> None:
    """Weights of 4 bits are taken with other types alone: no product here needs them."""
    module, name = "tpu_inference.layers.vllm.quantization", "get_supported_act_dtypes"
    _replace(f"{module}.mxfp4:VllmMxfp4Config", name, "", _and_float32)
    _replace(f"{module}.awq:VllmAWQConfig", name, "self", _and_float32)
    _replace(f"{module}.nvfp4:VllmNvfp4Config", name, "self", _and_float32)


def _equal_types_are_not_promoted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute_dtype(self: Any, x: Any) -> Any:
        same = self.weight is not None and self.weight.dtype == x.dtype
        return x.dtype if same else original(self, x)

    return compute_dtype


def layer_norms() -> None:
    """Torchax takes torch.promote_types for an operator on tensors, and has none of that name."""
    _replace(
        "vllm.model_executor.layers.layernorm:LayerNorm",
        "_compute_dtype",
        "self, x",
        _equal_types_are_not_promoted,
    )


# ---- Preemption ----------------------------------------------------------------------------------


def _with_their_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_states(self: Any, scheduler_output: Any, get_mrope_input_positions_fn: Any) -> Any:
        for request, tokens in scheduler_output.scheduled_cached_reqs.all_token_ids.items():
            state = self.requests[request]
            known = tokens[state.num_prompt_tokens :]
            state.output_token_ids[: len(known)] = known
        return original(self, scheduler_output, get_mrope_input_positions_fn)

    return update_states


def resumed_requests_get_their_tokens() -> None:
    """With asynchronous scheduling a preempted request loses the last token it had made.

    The runner notes 0 for it and puts the token there a step later, unless the request has left the
    batch by then. vLLM therefore sends the tokens of every request that comes back, and its other
    runners take them; tpu-inference's does not, and goes on after the 0 (on TPUs too).
    """
    _replace(
        "tpu_inference.runner.persistent_batch_manager:PersistentBatchManager",
        "update_states",
        "self, scheduler_output, get_mrope_input_positions_fn",
        _with_their_tokens,
    )


# ---- All of them ---------------------------------------------------------------------------------


def before_the_platform() -> None:
    """What must be in place before other modules of tpu-inference are imported, which read it."""
    compiler_options()
    device_mesh()
    memory_limit()
    host_arrays_are_copied()


def before_the_model() -> None:
    """What the modules of models, layers and the runner hold."""
    from xla_gpu.vllm_xla import _inputs, _linear, _scheduler, _start, _step, _weights

    _start.models_are_looked_at_here()
    _start.programs_side_by_side()
    _inputs.inputs_in_one_transfer()
    _step.logits_in_one_call()
    _step.tokens_in_short_calls()
    _scheduler.requests_with_room_take_no_time()
    attention()
    encoder_attention()
    experts()
    routing()
    sums_of_experts()
    mxfp4()
    nvfp4()
    draft_model()
    resumed_requests_get_their_tokens()
    quantized_models_are_torchax()
    float32_beside_4_bits()
    _weights.loaded_onto_the_device()
    _weights.fp8_products_take_weights_as_they_are()
    _linear.few_rows_are_not_quantized()
    if not _IS_0_31:
        layer_norms()
