"""What of tpu-inference runs on TPUs alone, and what stands in its place on CPUs and NVIDIA GPUs.

One function each, with the reason. Before anything is replaced it is looked at: another signature
or content than that of the known release is an UnsupportedError, not a guess.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import torch
from jax._src.pallas.mosaic import tpu_info
from jax.experimental.pallas import tpu as pltpu

from xla_gpu.vllm_xla._names import replace, unexpected

# ---- Compiler options ----------------------------------------------------------------------------


def _without_options(original: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    # Read, not called: it would start JAX, in the server process too, to ask a TPU for its memory.
    options = set(re.findall(r'"(xla_\w+)"', inspect.getsource(original)))
    others = sorted(name for name in options if not name.startswith("xla_tpu_"))
    if others or not options:
        raise unexpected(
            f"{original.__module__}.{original.__name__} should name options of TPUs (xla_tpu_*) "
            f"only but names {others or 'none'}"
        )

    @functools.wraps(original)
    def no_options() -> dict[str, Any]:
        return {}

    return no_options


def compiler_options() -> None:
    """XLA:CPU and XLA:GPU refuse a program compiled with options they do not know (xla_tpu_*)."""
    replace("compiler_options.get_step_fn_compiler_options", _without_options)
    replace("compiler_options.get_sampling_compiler_options", _without_options)


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
    replace("utils.make_optimized_mesh", _plain_mesh)


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
    replace("utils.get_device_hbm_limit", _memory_of_this_machine)
    replace("utils.hbm_usage_bytes", _usage_by_live_arrays)


def _usage_by_live_arrays(original: Callable[..., Any]) -> Callable[..., Any]:
    from xla_gpu.vllm_xla._names import pathways_hbm_usage_gb

    @functools.wraps(original)
    def usage(devices: Any) -> Any:
        if any(device.memory_stats() is None for device in devices):
            return pathways_hbm_usage_gb(devices)
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
    replace("utils.general_device_put", _put_copies)


# ---- Attention -----------------------------------------------------------------------------------


def attention() -> None:
    """The attention kernels are Pallas programs for the TPU's vector unit.

    Flax and torchax models both reach them through two globals of attention_interface, in which
    ours take their place argument for argument; the layout of the cache stays tpu-inference's.
    """
    from xla_gpu.vllm_xla._attention import ragged_paged_attention, ragged_paged_attention_hd64

    module = "attention_interface"
    replace(f"{module}.ragged_paged_attention", _instead(ragged_paged_attention))
    replace(f"{module}.ragged_paged_attention_hd64", _instead(ragged_paged_attention_hd64))


def _with_its_soft_cap(original: Callable[..., Any]) -> Callable[..., Any]:
    from xla_gpu.vllm_xla._attention import soft_cap

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with soft_cap(float(self.logits_soft_cap or 0)):
            return original(self, *args, **kwargs)

    return forward


def soft_caps() -> None:
    """tpu-inference's layers of torchax models keep the soft cap of their logits to themselves."""
    replace("PallasAttentionBackendImpl.forward", _with_its_soft_cap)


def encoder_attention() -> None:
    """Encoders attend by a kernel of their own, for TPUs as well: images' towers, BERT's layers.

    The first module's is called by the towers, the second's by layers that are encoders only.
    """
    from xla_gpu.vllm_xla._encoder import flash_attention

    for module in ("attention_interface", "kernel"):
        replace(f"{module}.flash_attention", _instead(flash_attention))


def _angles_in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def angles(self: Any, seqlen: int) -> jax.Array:
        exponents = jnp.arange(0, self.dim, 2, dtype=jnp.float32) / self.dim
        return jnp.outer(jnp.arange(seqlen, dtype=jnp.float32), 1 / self.theta**exponents)

    return angles


def _rotated_in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def rotate(x: jax.Array, rotary_pos_emb: jax.Array) -> Any:
        return original(x.astype(jnp.float32), rotary_pos_emb).astype(x.dtype)

    return rotate


_gelu = functools.partial(jax.nn.gelu, approximate=False)


def _merged_by_gelu(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.mlp_act = _gelu

    return init


def images_of_qwen2_5_vl() -> None:
    """Its tower rounds the angles of positions to bfloat16, and has tanh's approximation of gelu.

    Whatever the model's type: in bfloat16 angles of position 100 are wrong by up to 1/8. Both are
    float32 in transformers, whose gelu is the exact one. On TPUs too.
    """
    replace("Qwen2_5_VisionRotaryEmbedding.__call__", _angles_in_float32)
    replace("qwen2_5_vl.apply_rotary_pos_emb_vision", _rotated_in_float32)
    replace("Qwen2_5_VisionPatchMerger.__init__", _merged_by_gelu)


def _instead(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return lambda _: call


# ---- Mixtures of experts -------------------------------------------------------------------------


def experts() -> None:
    """The product of tokens with their experts' weights is tokamax's gmm_v2, for TPUs alone."""
    from xla_gpu.vllm_xla._experts import gmm_v2

    for module in ("fused_moe_gmm", "linear"):
        replace(f"{module}.gmm_v2", _instead(gmm_v2))


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
    replace("ragged_gather_reduce_v2._fallback_implementation", _sums_of_chosen_rows)


def mxfp4() -> None:
    """tpu-inference rounds mxfp4 weights a second time, to blocks of 512.

    vLLM writes zeros where they will be loaded: of all layers, before the first is.
    """
    from xla_gpu.vllm_xla import _mxfp4

    replace("VllmMxfp4MoEMethod.process_weights_after_loading", _mxfp4.loaded)
    replace("VllmMxfp4MoEMethod.create_weights", _mxfp4.room_untouched)


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
    replace("Eagle3Proposer._propose", _compiled_plainly)
    replace("DFlashProposer._propose", _compiled_plainly)


# ---- Loading torchax models ----------------------------------------------------------------------


# Dense decoders of both. A layer's products with its input are one in vLLM's: of queries, keys and
# values, and of gate and up. 5% of a step of 16 requests on an H200, 9% of one of 64. Qwen 2's own,
# where embeddings are not tied, ends in an AttributeError.
_FEWER_PRODUCTS = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def _is_dense_of_both(vllm_config: Any) -> bool:
    architectures = vllm_config.model_config.hf_config.architectures or ()
    return not _FEWER_PRODUCTS.isdisjoint(architectures)


def _is_better_in_torchax(vllm_config: Any) -> bool:
    """Drafts need tpu-inference's own."""
    speculative = vllm_config.speculative_config
    faster = speculative is None or speculative.method == "ngram"
    quantized = vllm_config.model_config.quantization is not None
    return quantized or (faster and _is_dense_of_both(vllm_config))


def otherwise_in_flax(vllm_config: Any) -> list[str]:
    """What of a dense decoder tpu-inference's own computes otherwise without a word, if it runs."""
    impl = os.environ.get("MODEL_IMPL_TYPE", "auto")
    torchax = impl == "vllm" or (impl == "auto" and _is_better_in_torchax(vllm_config))
    if torchax or not _is_dense_of_both(vllm_config):
        return []
    config, found = vllm_config.model_config.hf_config, []
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind not in ("default", "llama3"):
        found.append(f"rope_type is {kind!r}, which its own models take for 'llama3'")
    if getattr(config, "use_sliding_window", False):
        found.append("use_sliding_window is True, and its own models have no windows")
    return found


def _torchax_if_quantized_or_faster(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def resolve(vllm_config: Any, is_draft_model: bool) -> str:
        if not is_draft_model and _is_better_in_torchax(vllm_config):
            return "vllm"
        return original(vllm_config, is_draft_model)

    return resolve


def some_models_are_torchax() -> None:
    """tpu-inference's own models read few of the quantized checkpoints that vLLM's read.

    Llama reads none (safetensors' numpy road has no fp8), Qwen3 some of compressed-tensors.
    """
    replace("model_loader.resolve_model_architecture", _torchax_if_quantized_or_faster)


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
    replace("VllmNvfp4MoEMethod.process_weights_after_loading", _blocks_keep_their_scales)


def _and_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    bound = not inspect.signature(original).parameters  # to its class

    @functools.wraps(original)
    def get_supported_act_dtypes(*self: Any) -> list[torch.dtype]:
        return [*(original() if bound else original(*self)), torch.float32]

    return get_supported_act_dtypes


def float32_beside_4_bits() -> None:
    """Weights of 4 bits are taken with other types alone: no product here needs them."""
    for config in ("VllmMxfp4Config", "VllmAWQConfig", "VllmNvfp4Config"):
        replace(f"{config}.get_supported_act_dtypes", _and_float32)


def _is_ignored(config: Any, prefix: str) -> bool:
    from xla_gpu.vllm_xla._names import is_layer_skipped

    mode = getattr(config, "ignored_layers_match_mode", None)  # not in 0.31
    how = {"match_mode": mode} if mode else {}
    ignored: bool = is_layer_skipped(
        prefix, config.ignored_layers, config.packed_modules_mapping, **how
    )
    return ignored


def _has_a_part_not_to_convert(config: Any, prefix: str) -> bool:
    module, _, own = prefix.rpartition(".")
    merged = config.packed_modules_mapping.get(own, [own])
    names = config.modules_to_not_convert
    return all(any(name in f"{module}.{one}" for name in names) for one in merged)


# By configuration, whether the checkpoint has a layer of that name as floats.
_IS_PLAIN: dict[str, Callable[[Any, str], bool]] = {
    "VllmFp8Config": _is_ignored,
    "VllmAWQConfig": _has_a_part_not_to_convert,
    "VllmNvfp4Config": lambda config, prefix: config.is_layer_excluded(prefix),
}


def _plain_where_it_is(
    is_plain: Callable[[Any, str], bool], original: Callable[..., Any]
) -> Callable[..., Any]:
    from xla_gpu.vllm_xla._names import LinearBase, RoutedExperts, VllmUnquantizedConfig

    @functools.wraps(original)
    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        if isinstance(layer, LinearBase | RoutedExperts) and is_plain(self, prefix):
            return VllmUnquantizedConfig.get_quant_method(self, layer, prefix)
        return original(self, layer, prefix)

    return get_quant_method


def layers_that_are_not_quantized() -> None:
    """Experts that a checkpoint has as floats ended in a TypeError: their method lacks the mesh.

    AWQ's names are parts of names, as "visual", and of projections that vLLM merges.
    """
    for config, is_plain in _IS_PLAIN.items():
        replace(f"{config}.get_quant_method", functools.partial(_plain_where_it_is, is_plain))


def _equal_types_are_not_promoted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute_dtype(self: Any, x: Any) -> Any:
        same = self.weight is not None and self.weight.dtype == x.dtype
        return x.dtype if same else original(self, x)

    return compute_dtype


def layer_norms() -> None:
    """Torchax takes torch.promote_types for an operator on tensors, and has none of that name."""
    replace("LayerNorm._compute_dtype", _equal_types_are_not_promoted)


# ---- All of them ---------------------------------------------------------------------------------


def before_the_platform() -> None:
    """What must be in place before other modules of tpu-inference are imported, which read it."""
    compiler_options()
    device_mesh()
    memory_limit()
    host_arrays_are_copied()


def before_the_model() -> None:
    """What the modules of models, layers and the runner hold."""
    from xla_gpu.vllm_xla import (
        _inputs,
        _linear,
        _rotary,
        _routing,
        _sampling,
        _scheduler,
        _start,
        _step,
        _sums,
        _weights,
    )

    _start.models_are_looked_at_here()
    _start.programs_side_by_side()
    _inputs.inputs_in_one_transfer()
    _step.tokens_in_short_calls()
    _sampling.logprobs_of_the_token_alone()
    _sampling.masks_of_grammars_by_request()
    _scheduler.requests_with_room_take_no_time()
    attention()
    soft_caps()
    encoder_attention()
    images_of_qwen2_5_vl()
    experts()
    _routing.as_the_model_says()
    sums_of_experts()
    mxfp4()
    nvfp4()
    draft_model()
    some_models_are_torchax()
    float32_beside_4_bits()
    layers_that_are_not_quantized()
    _weights.loaded_onto_the_device()
    _weights.fp8_products_take_weights_as_they_are()
    _linear.rows_are_quantized_in_one_kernel()
    _rotary.queries_and_keys_are_turned_in_one_kernel()
    _sums.sums_of_a_step_are_all_reduce()
    layer_norms()
