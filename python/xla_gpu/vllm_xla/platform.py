"""The vLLM platform: tpu-inference's, on devices that are no TPU."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from xla_gpu import vllm_xla
from xla_gpu.vllm_xla import _names, _replace, _sampling

_names.check()
vllm_xla.prepare_environment()
_replace.before_the_platform()

# After the replacements, which its modules would otherwise miss.
from xla_gpu.vllm_xla._names import TpuPlatform  # noqa: E402


class XlaPlatform(TpuPlatform):  # type: ignore[misc]
    """vLLM's JAX backend on XLA:CPU and XLA:GPU.

    It keeps the names of the TPU platform (device_name "tpu" and so on): vLLM asks for them to find
    its JAX backend.
    """

    # Parameters of requests that do not go with what is served, and with what of it.
    _beside: ClassVar[dict[str, str]] = {}

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """A name for logs. The device itself is not asked: that would start JAX in the server."""
        return "XLA"

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Raises UnsupportedError for what tpu-inference has no class for: GPTQ and others."""
        if quant not in cls.supported_quantization:
            raise _names.UnsupportedError(
                f"xla_gpu.vllm_xla: quantization {quant!r} has no class in tpu-inference "
                "(get_tpu_quantization_config); there are "
                f"{', '.join(cls.supported_quantization)}"
            )

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """tpu-inference's, after a refusal of what its sampler does not read.

        Raises:
          VLLMValidationError: for such a parameter, by name; over HTTP it is a bad request.
        """
        for name in _sampling.not_sampled(params):
            raise _names.VLLMValidationError(
                f"xla_gpu.vllm_xla: {name} is {getattr(params, name)!r}, which tpu-inference's "
                "sampler does not read; allowed is None",
                parameter=name,
            )
        for name, what in cls._beside.items():
            if _sampling.asked(params, name):
                raise _names.VLLMValidationError(
                    f"xla_gpu.vllm_xla: {name} came; there is none beside {what}",
                    parameter=name,
                )
        super().validate_request(processed_inputs, params)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """tpu-inference's, after a refusal of what only its TPU kernels can run.

        Raises:
          UnsupportedError: for such a configuration, by name.
        """
        if vllm_config.use_v2_model_runner:
            raise _names.UnsupportedError(
                "xla_gpu.vllm_xla: VLLM_USE_V2_MODEL_RUNNER is "
                f"{os.environ.get('VLLM_USE_V2_MODEL_RUNNER')!r}; tpu-inference's runner is of the "
                "first kind: unset the variable or set it to 0"
            )
        for what in _unsupported(vllm_config):
            raise _names.UnsupportedError(
                f"xla_gpu.vllm_xla: {what}; on CPUs and GPUs run it with vLLM's own backend for "
                "them (docs/vllm.md)"
            )
        model = vllm_config.model_config
        if model is not None and model.max_logprobs == -1:  # all words', of which so many are taken
            model.max_logprobs = model.get_vocab_size()
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.worker_cls = "xla_gpu.vllm_xla.worker.XlaWorker"
        if model is not None:
            cls._beside = _sampling.not_beside(vllm_config)
            _sampling.drop_defaults(model, cls._beside)


def _unsupported(vllm_config: Any) -> list[str]:
    """What of a configuration would reach a TPU kernel that has no stand-in here, or an error."""
    model, found = vllm_config.model_config, []
    if model is not None:
        for name in ("logits_processors", "enable_prompt_embeds"):
            if getattr(model, name, None):
                found.append(f"{name} came, which tpu-inference does not read")
        if model.logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
            found.append(
                f"logprobs_mode is {model.logprobs_mode!r}; tpu-inference has raw_logprobs and "
                "processed_logprobs, and would give the first"
            )
        if model.use_mla:
            found.append(
                "multi-head latent attention (MLA) is a TPU kernel (mla_ragged_paged_attention), "
                "whose keys are 576 wide; this library's end at 512"
            )
        elif model.is_hybrid or model.is_attention_free:
            found.append(
                "of state-space and linear-attention layers tpu-inference has gated delta nets, a "
                "TPU kernel (fused_conv1d_gdn)"
            )
        if model.attention_chunk_size and model.attention_chunk_size < model.max_model_len:
            found.append(
                f"attention in chunks of {model.attention_chunk_size} tokens is unknown to "
                f"tpu-inference; --max-model-len {model.attention_chunk_size} has one chunk alone"
            )
        if model.is_mm_prefix_lm:
            found.append(
                "words of an image that see each other are unknown to tpu-inference; "
                "--limit-mm-per-prompt '{\"image\": 0}' serves the model for text"
            )
        quantized = model.model_arch_config.quantization_config
        if model.quantization and not quantized:
            found.append(
                f"quantization {model.quantization!r} of a checkpoint that is not quantized ends "
                "in tpu-inference's VllmVocabParallelEmbedding with \"'OnlineQuantizationConfig' "
                "object has no attribute 'mesh'\""
            )
        elif not model.is_moe and any(
            (group.get("weights") or {}).get("type") == "int" and not group.get("input_activations")
            for group in (quantized or {}).get("config_groups", {}).values()
        ):
            found.append(
                "compressed-tensors with integer weights and activations of 16 bits have no scheme "
                "in tpu-inference (VllmCompressedTensorsConfig.get_scheme)"
            )
        found += (
            f"{what} in tpu-inference; MODEL_IMPL_TYPE=vllm serves it"
            for what in _replace.otherwise_in_flax(vllm_config)
        )
    for kind in ("decode", "prefill"):
        name = f"{kind}_context_parallel_size"
        if (size := getattr(vllm_config.parallel_config, name)) > 1:
            found.append(
                f"{name} is {size}: parallelism over the context is TPU kernels "
                "(rpa_v3_cp); allowed is 1"
            )
    several = vllm_config.additional_config.get("enable_continue_decode")
    if several and vllm_config.scheduler_config.async_scheduling:
        found.append(
            "several decode steps in one program (enable_continue_decode) give wrong tokens with "
            "asynchronous scheduling; --no-async-scheduling serves them"
        )
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method == "dflash":
        torchax = os.environ.get("MODEL_IMPL_TYPE") == "vllm" or model.quantization
        if torchax or not model.hf_config.tie_word_embeddings:
            found.append(
                "speculation 'dflash' needs tied embeddings and a flax model: DFlashProposer takes "
                "a matrix of logits for an array, torchax models give it no hidden states"
            )
    elif speculative is not None and speculative.method not in ("ngram", "eagle3", "mtp"):
        found.append(
            f"speculation {speculative.method!r} is not known to tpu-inference, or not here; "
            "ngram, eagle3, mtp and dflash are"
        )
    return found
