"""Every name of tpu-inference, vLLM and tokamax that vllm_xla takes or replaces, by release.

No other module imports theirs. A name that is taken is an attribute of this module, looked up when
it is asked for; `replace` puts a function of ours in the place of one of theirs, after a look at
its parameters. scripts/check_vllm_names.py holds the tables against releases that are not
installed; what is read and written of their objects, such as the runner's batch, is not in them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any

# Each pins the other's release.
RELEASES = _0_31, _0_32 = ("0.31.0", "0.32.0")
PACKAGES = ("tpu-inference", "vllm-tpu")

# What the tables say of a name: one string for all releases, or those that have it and its string.
_Row = str | dict[str, str]

# By module, the names that are taken.
TAKEN: dict[str, _Row] = {
    "tokamax._src.ops.experimental.gmm_v2.gmm_v2": "silu_and_mul_with_clamp, swigluoai",
    "tpu_inference.envs": {
        _0_31: "SKIP_JAX_PRECOMPILE",
        _0_32: "SKIP_JAX_PRECOMPILE, TPU_MULTIPROCESS_DP",
    },
    "tpu_inference.layers.common.process_weights.moe_weights": (
        "FusedMoEWeights, process_moe_weights, shard_moe_weights"
    ),
    "tpu_inference.layers.common.sharding": "ShardingAxisName",
    "tpu_inference.layers.vllm.quantization.fp8": "VllmFp8MoEMethod",
    "tpu_inference.layers.vllm.quantization.mxfp4": "VllmMxfp4MoEMethod",
    "tpu_inference.layers.vllm.quantization.unquantized": (
        "VllmUnquantizedConfig, VllmUnquantizedFusedMoEMethod"
    ),
    "tpu_inference.models.jax.utils.weight_utils": "assign_and_shard_param",
    "tpu_inference.platforms.tpu_platform": "TpuPlatform",
    "tpu_inference.runner.tpu_runner": "AsyncPreResults, AsyncTPUModelRunnerOutput, sample",
    "tpu_inference.utils": (
        "device_array, get_mesh_shape_product, pathways_hbm_usage_gb, t2j, to_jax_dtype"
    ),
    "tpu_inference.worker.tpu_worker": "TPUWorker",
    "vllm.exceptions": "VLLMValidationError",
    "vllm.logger": "init_logger",
    "vllm.model_executor.layers.fused_moe": "RoutedExperts",
    "vllm.model_executor.layers.fused_moe.activation": "MoEActivation",
    "vllm.model_executor.layers.layernorm": "RMSNorm",
    "vllm.model_executor.layers.linear": "LinearBase, QKVParallelLinear",
    "vllm.model_executor.layers.quantization.utils.quant_utils": "is_layer_skipped",
    "vllm.model_executor.layers.rotary_embedding": "RotaryEmbedding",
    "vllm.platforms": "current_platform",
    "vllm.v1.core.single_type_kv_cache_manager": "FullAttentionManager",
    "vllm.v1.outputs": "ModelRunnerOutput",
}

_FLASH = "q, k, v, ab, segment_ids, causal, sm_scale, block_sizes, vmem_limit_bytes, debug"
_GMM = (
    "lhs, rhs, group_sizes, rhs_scale, rhs_bias, group_offset, lhs_scale, tile_info, "
    "vmem_limit_bytes, precision, preferred_element_type, acc_dtype, maybe_quantize_lhs, "
    "lhs_quant_dtype, rhs_quant_dtype, zero_initialize, fuse_act, transpose_rhs"
)
_LOAD_AND_SHARD = (
    "vllm_config, params, shardings, metadata_map, mesh, hf_key, hf_weight, "
    "keep_hf_weight_suffix_when_match, keep_original_dtype_keys_regex, pp_missing_layers"
)
_ALLOCATE = (
    "self, request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, "
    "num_lookahead_tokens, num_external_computed_tokens, delay_cache_blocks, "
    "num_encoder_tokens, full_sequence_must_fit, reserved_blocks, has_scheduled_reqs"
)
_SHARDED_QUANTIZED = "x, w_q, w_s, weight_sharding, mesh, defer_all_reduce, maybe_quantize_x"
_W8A8 = "tpu_inference.layers.vllm.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_"
_ATTEND = "self, positions, hidden_states"
_SAMPLE = "rng, mesh, logits, tpu_sampling_metadata, allow_distributed_sampling"
_PROPOSE = "self, state_leaves, kv_caches, input_ids, attn_metadata, "

# By module or module:Class, the functions that are replaced and the names of their parameters.
REPLACED: dict[str, dict[str, _Row]] = {
    "tpu_inference.models.common.compiler_options": {
        "get_step_fn_compiler_options": "",
        "get_sampling_compiler_options": {_0_32: ""},
    },
    "tpu_inference.utils": {
        "make_optimized_mesh": "axis_shapes, axis_names, devices",
        "get_device_hbm_limit": "",
        "hbm_usage_bytes": {_0_31: "devices"},
        "general_device_put": "tensor, sharding, layout, source_mesh",
    },
    "tpu_inference.utils:DeviceBuffer": {"unpack_arrays": "blob, metadata"},
    "tpu_inference.layers.common.attention_interface": {
        "ragged_paged_attention": (
            "queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution, "
            "use_causal_mask, update_kv_cache, skip_kv_mask, sm_scale, sliding_window, soft_cap, "
            "out_dtype, mask_value, q_scale, k_scale, v_scale, chunk_prefill_size, d_block_sizes, "
            "p_block_sizes, m_block_sizes, vmem_limit_bytes, debug_mode, disable_bounds_checks, "
            "disable_semaphore_checks"
        ),
        "ragged_paged_attention_hd64": (
            "queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution, "
            "attention_sink, sm_scale, sliding_window, soft_cap, mask_value, q_scale, k_scale, "
            "v_scale, chunk_prefill_size, num_kv_pages_per_block, num_queries_per_block, "
            "vmem_limit_bytes, debug_mode"
        ),
        "flash_attention": _FLASH,
    },
    "tpu_inference.kernels.flash_attention.kernel": {"flash_attention": _FLASH},
    "tpu_inference.models.jax.qwen2_5_vl": {"apply_rotary_pos_emb_vision": "x, rotary_pos_emb"},
    "tpu_inference.models.jax.qwen2_5_vl:Qwen2_5_VisionRotaryEmbedding": {
        "__call__": "self, seqlen",
    },
    "tpu_inference.models.jax.qwen2_5_vl:Qwen2_5_VisionPatchMerger": {
        "__init__": "self, d_model, context_dim, norm_layer, spatial_merge_size, dtype, rngs",
    },
    "tpu_inference.layers.common.fused_moe_gmm": {"gmm_v2": _GMM},
    "tpu_inference.layers.common.linear": {
        "gmm_v2": _GMM,
        "xla_quantized_matmul": "x, w_q, w_scale, quantize_activation",
    },
    "tpu_inference.layers.vllm.backends.flash_attn:PallasAttentionBackendImpl": {
        "forward": (
            "self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale, "
            "output_block_scale"
        ),
    },
    "tpu_inference.layers.vllm.interface.moe": {
        "moe_apply": "layer, x, gating_output, weights, moe_backend, mesh, extra_backend_kwargs",
    },
    "tpu_inference.kernels.sparse_core.ragged_gather_reduce_v2": {
        "_fallback_implementation": "x, indices, topk_weights, valid_rows_mask, reduce_group_size",
    },
    "tpu_inference.layers.common.quantization.unquantized": {
        "slice_sharded_tensor_for_concatenation": "sharded_tensor, split_sizes, n_shards",
        "sharded_matmul": "x, w, weight_sharding, mesh, defer_all_reduce",
    },
    "tpu_inference.layers.common.quantization.fp8": {
        "sharded_quantized_matmul": _SHARDED_QUANTIZED,
    },
    _W8A8 + "fp8": {"sharded_quantized_matmul": _SHARDED_QUANTIZED},
    _W8A8 + "int8": {"sharded_quantized_matmul": _SHARDED_QUANTIZED},
    "tpu_inference.layers.vllm.custom_ops.fused_moe": {
        "_all_reduce_over_tp": "t, mesh, axis_name",
    },
    "tpu_inference.layers.common.moe": {
        "fused_moe_func": (
            "hidden_states, w1, w2, w1_scale, w2_scale, w1_bias, w2_bias, gating_output, topk, "
            "renormalize, mesh, use_ep, activation, scoring_fn, all_gather_fp8, enable_rs_kernel, "
            "use_gmm_fused_rs_kernel, onehot_moe_permute_threshold, scatter_results, "
            "defer_all_reduce, hash_based_topk_indices, expert_score_correction_bias, "
            "moe_chunk_size, num_valid_tokens"
        ),
    },
    "tpu_inference.layers.vllm.quantization.fp8:VllmFp8LinearMethod": {
        "apply": "self, layer, x, bias",
    },
    _W8A8 + "fp8:VllmCompressedTensorsW8A8Fp8": {"apply_weights": "self, layer, x, bias"},
    "tpu_inference.layers.vllm.quantization.mxfp4:VllmMxfp4MoEMethod": {
        "process_weights_after_loading": "self, layer",
        "create_weights": (
            "self, layer, num_experts, hidden_size, intermediate_size_per_partition, "
            "params_dtype, extra_weight_attrs"
        ),
    },
    "tpu_inference.layers.vllm.quantization.nvfp4": {
        "sharded_quantized_matmul": _SHARDED_QUANTIZED,
    },
    "tpu_inference.layers.vllm.quantization.nvfp4:VllmNvfp4MoEMethod": {
        "process_weights_after_loading": "self, layer",
    },
    "tpu_inference.layers.vllm.quantization.mxfp4:VllmMxfp4Config": {
        "get_supported_act_dtypes": ""
    },
    "tpu_inference.layers.vllm.quantization.awq:VllmAWQConfig": {
        "get_supported_act_dtypes": "self",
        "get_quant_method": "self, layer, prefix",
    },
    "tpu_inference.layers.vllm.quantization.nvfp4:VllmNvfp4Config": {
        "get_supported_act_dtypes": "self",
        "get_quant_method": "self, layer, prefix",
    },
    "tpu_inference.layers.vllm.quantization.fp8:VllmFp8Config": {
        "get_quant_method": "self, layer, prefix",
    },
    "tpu_inference.spec_decode.jax.eagle3:Eagle3Proposer": {
        "_propose": _PROPOSE + "last_token_indices, target_hidden_states, num_speculative_tokens, "
        "layer_name_to_kvcache_index",
    },
    "tpu_inference.spec_decode.jax.dflash:DFlashProposer": {
        "_propose": _PROPOSE + "target_hidden_states",
    },
    "tpu_inference.models.common.model_loader": {
        "resolve_model_architecture": "vllm_config, is_draft_model",
    },
    "tpu_inference.models.jax.utils.weight_utils": {
        "model_weights_single_file_generator": "weights_file, framework, filter_regex",
        "_load_and_shard_weight": {
            _0_31: _LOAD_AND_SHARD,
            _0_32: _LOAD_AND_SHARD + ", num_hidden_layers",
        },
        "load_nnx_param_from_reshaped_torch": (
            "jax_param, torch_weight, _shard_id, reshape_dims, permute_dims, param_name"
        ),
    },
    "tpu_inference.layers.vllm.quantization.unquantized": {
        "_load_weight_for_layer": "layer, param_name, sharding, stage_on_host",
    },
    "tpu_inference.layers.vllm.quantization.fp8": {
        "_load_weight_for_layer": "layer, param_name, sharding, stage_on_host",
    },
    "tpu_inference.layers.vllm.quantization.unquantized:VllmUnquantizedLinearMethod": {
        "_build_linear_weights": "self, layer, weight, bias",
    },
    "tpu_inference.layers.common.process_weights.linear_weights": {
        "general_device_put": "tensor, sharding, layout, source_mesh",
        "reorder_concatenated_tensor_for_sharding": (
            "concatenated_tensor, split_sizes, n_shards, dim"
        ),
    },
    "tpu_inference.layers.jax.sample.sampling": {"sample": _SAMPLE},
    "tpu_inference.layers.jax.sample.sampling_metadata": {
        "device_array": "mesh, args, sharding, kwargs",
    },
    "tpu_inference.layers.jax.sample.sampling_metadata:TPUSupportedSamplingMetadata": {
        "from_input_batch": "mesh, input_batch, padded_num_reqs, req_indices_dp, sharding",
    },
    "tpu_inference.runner.kv_cache": {
        "_get_kv_cache_allocator": "cache_shape, cache_dtype, sharding"
    },
    "tpu_inference.runner.tpu_runner": {
        "device_array": "mesh, args, sharding, kwargs",
        "sample": _SAMPLE,
    },
    "tpu_inference.runner.tpu_runner:TPUModelRunner": {
        "_prepare_inputs": "self, scheduler_output",
        "_apply_async_token_substitution": (
            "self, input, next_tokens_in_tpu, token_in_tpu_cur_input_indices, "
            "token_in_tpu_pre_next_tokens_indices"
        ),
        "_sample_from_logits": (
            "self, scheduler_output, attn_metadata, tpu_sampling_metadata, input_ids, "
            "hidden_states, logits, aux_hidden_states, spec_decode_metadata, kv_connector_output, "
            "logits_indices_selector, padded_num_reqs, expert_indices, full_hidden_states, "
            "full_logits, req_ids_dp, padded_num_scheduled_tokens_per_dp_rank"
        ),
        "_modify_prev_results": "self",
    },
    "tpu_inference.runner.structured_decoding_manager:StructuredDecodingManager": {
        "prepare_structured_decoding_input": "self, logits, grammar_output",
    },
    "tpu_inference.runner.utils": {
        "host_extract_sampled_tokens": (
            "runner, spec_decode_metadata, sampled_output, logits_indices_selector, "
            "discard_sampled_tokens_req_indices, num_reqs"
        ),
    },
    "tpu_inference.runner.compilation_manager": {"sample": _SAMPLE},
    "tpu_inference.runner.compilation_manager:CompilationManager": {
        "_precompile_backbone_text_only": "self",
        "_precompile_select_from_array": "self",
        "_precompile_compute_logits": "self",
        "_precompile_sampling": "self",
        "_precompile_gather_logprobs": "self",
        "_precompile_structured_decoding": "self",
        "_flush_compilations": "self",
        "capture_model": "self",
        "_run_compilation": (
            "self, name, fn, args, call_kwargs, warmup_handler, aot, compile_only, kwargs"
        ),
        "_precompile_substitute_placeholder_token": "self",
        "_create_dummy_tensor": "self, shape, dtype, sharding",
    },
    "vllm.model_executor.layers.activation:SiluAndMul": {"forward_native": "x"},
    "vllm.model_executor.layers.layernorm:LayerNorm": {"_compute_dtype": {_0_32: "self, x"}},
    "vllm.model_executor.layers.layernorm:RMSNorm": {"forward_native": "self, x, residual"},
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader": {
        "load_weights": "self, model, model_config",
    },
    "vllm.model_executor.models.llama:LlamaAttention": {"forward": _ATTEND},
    "vllm.model_executor.models.mistral:MistralAttention": {"forward": _ATTEND},
    "vllm.model_executor.models.qwen2:Qwen2Attention": {"forward": _ATTEND},
    "vllm.model_executor.models.qwen3:Qwen3Attention": {"forward": _ATTEND},
    "vllm.model_executor.models.qwen3_moe:Qwen3MoeAttention": {"forward": _ATTEND},
    "vllm.model_executor.models.registry": {"_run_in_subprocess": "fn"},
    "vllm.v1.core.kv_cache_manager:KVCacheManager": {
        "allocate_slots": {_0_31: _ALLOCATE, _0_32: _ALLOCATE + ", skip_zeroing_group_ids"},
    },
    "vllm.v1.core.kv_cache_manager:KVCacheBlocks": {
        "get_block_ids": "self, allow_none, group_ids",
    },
}

_MARK = "_xla_gpu_replacement"


class UnsupportedError(RuntimeError):
    """What is installed, or what the user asked for, is not what this package can run."""


def unexpected(what: str) -> UnsupportedError:
    """The error of something of theirs that is not as in the release that is installed."""
    versions = " and ".join(f"{name} {installed(name)}" for name in PACKAGES)
    return UnsupportedError(
        f"xla_gpu.vllm_xla: {what}; {versions} are not as pip installed them, or were patched "
        f"(known are {' and '.join(RELEASES)})"
    )


@functools.cache  # asked hundreds of times at a start, 2 ms each
def installed(name: str) -> str | None:
    """The version of a package without its local part, or None."""
    try:
        return metadata.version(name).split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Raises UnsupportedError unless both packages are of one known release."""
    versions = [installed(name) for name in PACKAGES]
    release = versions[0] if versions[0] in RELEASES else RELEASES[-1]
    for name, version in zip(PACKAGES, versions, strict=True):
        if version != release:
            found = f"{name} {version} is installed" if version else f"{name} is not installed"
            raise UnsupportedError(
                f"xla_gpu.vllm_xla: {found}; it knows {' and '.join(RELEASES)}, both packages of "
                f"one. It replaces functions of that release and does not guess at others: pip "
                f"install {name}=={release} (docs/vllm.md)"
            )


def of(release: str | None, row: _Row) -> str | None:
    """What a row of the tables says of a release; None: nothing."""
    return row if isinstance(row, str) else row.get(release or "")


def __getattr__(name: str) -> Any:
    """A name of TAKEN.

    Raises:
      AttributeError: for others, and those of other releases.
      UnsupportedError: if its module has none.
    """
    release = installed(PACKAGES[0])
    for module, row in TAKEN.items():
        if name in (of(release, row) or "").split(", "):
            try:
                return getattr(_imported(module), name)
            except AttributeError as e:
                raise unexpected(f"{module} should have {name} but has nothing") from e
    raise AttributeError(f"{__name__} has no {name} of {PACKAGES[0]} {release}")


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise unexpected(f"{module} should be a module, but {e}") from e


def parameters(function: str) -> tuple[str, str | None]:
    """Where REPLACED has "owner.function", the owner by its last name, and its parameters."""
    owner, _, name = function.rpartition(".")
    (place,) = (
        place
        for place, functions in REPLACED.items()
        if name in functions and re.split("[.:]", place)[-1] == owner
    )
    return place, of(installed(PACKAGES[0]), REPLACED[place][name])


def expect(owner: Any, name: str, parameters: str) -> Any:
    """owner.name, if it is a function of just these parameter names; else UnsupportedError."""
    function = getattr(owner, name, None)
    found = "nothing" if function is None else "something that is no function"
    if callable(function):
        found = f"{name}({', '.join(inspect.signature(function).parameters)})"
    if found != f"{name}({parameters})":
        raise unexpected(f"{owner.__name__} should have {name}({parameters}) but has {found}")
    return function


def replace(function: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts make(original) in the place of a function of REPLACED, once.

    Args:
      function: "module.function" or "Class.method", the module by its last name. Nothing is done
        where the installed release has no place for it in the table.
      make: returns the replacement, of the original.

    Raises:
      UnsupportedError: if the function is not there, or has other parameters.
    """
    place, names = parameters(function)
    name = function.rpartition(".")[2]
    if names is None:
        return
    module, _, class_name = place.partition(":")
    owner: Any = _imported(module)
    if class_name:
        owner = getattr(owner, class_name, owner)
    if hasattr(getattr(owner, name, None), _MARK):
        return
    replacement = make(expect(owner, name, names))
    setattr(replacement, _MARK, True)
    setattr(owner, name, replacement)
