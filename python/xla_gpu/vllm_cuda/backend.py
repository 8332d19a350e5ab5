"""vLLM's attention backend CUSTOM: what a layer of a decoder does, by paged_attention.

A layer's cache is, as vLLM sees it, [blocks, kv_heads, block_size, 2 * head_size]; in memory
block_size stands before kv_heads, so its bytes are the [pages, page_size, 2 * kv_heads, head_dim]
of our ops, K on even and V on odd heads, and nothing is copied.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, ClassVar

import torch
import vllm
from vllm import envs
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from xla_gpu._errors import InvalidArgumentError, UnimplementedError
from xla_gpu.torch import update_kv_cache_
from xla_gpu.torch._kernels import INPUTS
from xla_gpu.torch._schema import describe
from xla_gpu.vllm_cuda import KNOWN

_attention = INPUTS["paged_attention"]
_MAX_HEAD_SIZE = 512
_MOST_QUERIES = 32  # the rows of the widest tile of decode
_FP8 = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
# Of CommonAttentionMetadata: what changes who sees whom, in ways that the op does not have.
_OTHER_MASKS = ("mm_req_doc_ranges", "rswa_prefix_lens", "dcp_local_seq_lens")


class XlaGpuBackend(AttentionBackend):  # type: ignore[misc]
    """The backend as vLLM selects it: what it takes, its cache, and the classes that work."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", *_FP8]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        """The name in AttentionBackendEnum."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[XlaGpuImpl]:
        """The class of a layer's attention."""
        return XlaGpuImpl

    @staticmethod
    def get_builder_cls() -> type[XlaGpuMetadataBuilder]:
        """The class that describes a batch."""
        return XlaGpuMetadataBuilder

    # ---- The cache -------------------------------------------------------------------------------

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """The shape of a layer's cache, for vLLM 0.26."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Its order in memory, for vLLM 0.26; all layers in one tensor is refused."""
        if include_num_layers_dimension:
            raise NotImplementedError
        return 0, 2, 1, 3

    @classmethod
    def get_required_kv_cache_layout(cls) -> str:
        """The same for vLLM 0.26's connectors, which ask for the name of the order."""
        return "NHD"

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """The order in memory, for vLLM 0.32."""
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return (KVCacheLayout.LBNHC,)

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[MultipleOf]:
        """Multiples of 16. The op has all sizes, but layers with a window get the smallest here."""
        return [MultipleOf(16)]

    # ---- What it takes ---------------------------------------------------------------------------

    @classmethod
    def validate_configuration(cls, *args: Any, **kwargs: Any) -> list[str]:
        """Why a layer cannot have this backend: vLLM's reasons, then what is allowed here."""
        reasons: list[str] = super().validate_configuration(*args, **kwargs)
        if reasons:
            reasons.append(
                f"xla_gpu has paged decoder attention, head_size 1 to {_MAX_HEAD_SIZE}, dtypes "
                f"{', '.join(str(d).removeprefix('torch.') for d in cls.supported_dtypes)}, "
                f"kv_cache_dtype {', '.join(cls.supported_kv_cache_dtypes)}, compute capability "
                f"8.0 and newer; came {args or ''}{kwargs}"
            )
        if ".".join(vllm.__version__.split(".")[:2]) not in KNOWN:
            reasons.append(
                f"xla_gpu.vllm_cuda knows vLLM {KNOWN[0]} to {KNOWN[-1]}, not {vllm.__version__}, "
                "and does not guess at others (docs/vllm.md)"
            )
        return reasons

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Every size that the op has."""
        return 1 <= head_size <= _MAX_HEAD_SIZE

    @classmethod
    def supports_sink(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Yes, but for layers with a window."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        """Yes: a scale for each kv head."""
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """8.0 and newer."""
        return bool(capability.major >= 8)


@dataclasses.dataclass
class XlaGpuMetadata:
    """A batch as the op takes it; every tensor i32 and on the device.

    Attributes:
      query_start_loc: [seqs + 1].
      seq_lens: [seqs], tokens in the cache, the new ones included.
      block_table: [seqs, max_blocks].
      num_seqs: [1], always all of them: those that pad a CUDA graph's batch have no rows.
      max_query_len: of a sequence at most, of a CUDA graph in each of its replays; 0 where that is
        too many for the op to choose other kernels.
      causal: False where queries see later keys too.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    num_seqs: torch.Tensor
    max_query_len: int
    causal: bool


@functools.cache
def _count(number: int, device: torch.device) -> torch.Tensor:
    """i32 [1] on the device, made once: CUDA graphs read it for as long as they live."""
    return torch.full((1,), number, dtype=torch.int32, device=device)


class XlaGpuMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Batches for the op. It copies nothing, so a CUDA graph reads what vLLM writes for each step.

    The op plans by shapes and max_query_len, and reads starts, lengths and tables on the device: a
    graph serves every batch of its shapes, decode, prefill or both. vLLM captures those of uniform
    decode with the queries of each, and others with all of a batch's tokens, as max_query_len.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> XlaGpuMetadata:
        """The batch; a common prefix needs no treatment, since the tables have its blocks too.

        Raises:
          UnimplementedError: for masks that are not the op's, by the name of the field.
        """
        common = common_attn_metadata
        for field in _OTHER_MASKS:
            if getattr(common, field, None) is not None:
                raise UnimplementedError(
                    f"xla_gpu.vllm_cuda: the batch has {field}; allowed are causal batches, with "
                    "or without a window, and those where all queries see all keys: select "
                    "another attention backend"
                )
        if not isinstance(common.causal, bool):
            raise UnimplementedError(
                "xla_gpu.vllm_cuda: causal is one value a sequence; allowed is one for the batch"
            )
        seqs = common.num_reqs
        return XlaGpuMetadata(
            query_start_loc=common.query_start_loc[: seqs + 1],
            seq_lens=common.seq_lens[:seqs],
            block_table=common.block_table_tensor[:seqs],
            num_seqs=_count(seqs, common.seq_lens.device),
            max_query_len=common.max_query_len if common.max_query_len <= _MOST_QUERIES else 0,
            causal=common.causal,
        )

    def update_block_table(
        self, metadata: XlaGpuMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> XlaGpuMetadata:
        """The same batch over another group's blocks."""
        other = copy.copy(metadata)
        other.block_table = blk_table[: len(metadata.seq_lens)]
        return other


class XlaGpuImpl(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer.

    Raises:
      UnimplementedError: for what the op does not have: ALiBi, attention of other kinds than a
        decoder's own, decode or prefill context parallelism.
    """

    supports_dcp: bool = False
    supports_pcp: bool = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None:
            raise _refused("alibi_slopes came", "none")
        if attn_type != AttentionType.DECODER:
            raise _refused(f"attn_type is {attn_type!r}", f"{AttentionType.DECODER.value!r}")
        for kind in ("dcp", "pcp"):
            if (size := getattr(self, f"{kind}_world_size", 1)) > 1:
                raise _refused(f"{kind}_world_size is {size}", "1")
        if kv_cache_dtype not in XlaGpuBackend.supported_kv_cache_dtypes:
            allowed = ", ".join(XlaGpuBackend.supported_kv_cache_dtypes)
            raise _refused(f"kv_cache_dtype is {kv_cache_dtype!r}", allowed)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.soft_cap = float(logits_soft_cap) if logits_soft_cap else None
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.batch_invariant = bool(envs.VLLM_BATCH_INVARIANT) or None
        self._loaded_sinks = sinks
        self.sinks: torch.Tensor | None = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Has the sinks in f32, as the op reads them; again after weights were loaded anew."""
        if self._loaded_sinks is None:
            return
        if self.sinks is None:
            self.sinks = torch.empty_like(self._loaded_sinks.detach(), dtype=torch.float32)
        self.sinks.copy_(self._loaded_sinks.detach())

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: XlaGpuMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of the new tokens over the cache, which has their keys and values already.

        Args:
          query: f32, bf16 or f16 [tokens, heads, head_size]; rows behind the batch's are padding.
          key: not read, as value: do_kv_cache_update has written both.
          kv_cache: [blocks, kv_heads, block_size, 2 * head_size] of kv_cache_dtype, in the order
            of this backend; of fp8 with the scales layer._k_scale and layer._v_scale, of one
            element or one a kv head.
          attn_metadata: None while vLLM measures memory; the output is 0 then.
          output: as query, and contiguous; written. Padding becomes 0.

        Raises:
          UnimplementedError: for a quantized output, and for a window where causal is False.
          InvalidArgumentError: for an output or a cache of another shape, dtype or order.
        """
        if output_scale is not None or output_block_scale is not None:
            raise _refused("output_scale came", "an output of the query's dtype")
        if attn_metadata is None:
            return output.zero_()
        if not attn_metadata.causal and self.sliding_window is not None:
            raise _refused(
                f"causal is False with sliding_window {self.sliding_window}", "one of them"
            )
        if self._loaded_sinks is not None and self.sinks is None:
            self.process_weights_after_loading(query.dtype)
        if (output.shape, output.dtype) != (query.shape, query.dtype) or (
            not output.is_contiguous()
        ):
            raise InvalidArgumentError(
                f"xla_gpu.vllm_cuda: output is {describe(output)} with strides {output.stride()}; "
                f"it must be as query, {describe(query)}, and contiguous"
            )
        k_scale, v_scale = self._scales(layer)
        run, tensors, options = _attention(
            query.contiguous(),
            self._cache(kv_cache),
            attn_metadata.seq_lens,
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.num_seqs,
            self.scale,
            self.sliding_window,
            self.soft_cap,
            sinks=self.sinks,
            k_scale=k_scale,
            v_scale=v_scale,
            causal=attn_metadata.causal,
            max_query_len=attn_metadata.max_query_len,
            batch_invariant=self.batch_invariant,
        )
        run(tensors, options, output)
        return output

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes keys and values [tokens, kv_heads, head_size] into their slots.

        A negative slot is padding, as are tokens behind the last of slot_mapping.
        """
        tokens = len(slot_mapping)
        k_scale, v_scale = self._scales(layer)
        update_kv_cache_(
            key[:tokens].contiguous(),
            value[:tokens].contiguous(),
            self._cache(kv_cache),
            slot_mapping,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def _scales(self, layer: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.kv_cache_dtype not in _FP8:
            return None, None
        return layer._k_scale.view(-1), layer._v_scale.view(-1)

    def _cache(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """The view [pages, page_size, 2 * kv_heads, head_dim] of a layer's cache."""
        blocks, heads, size, content = kv_cache.shape
        in_memory = kv_cache.transpose(1, 2)
        if (heads, content) != (self.num_kv_heads, 2 * self.head_size) or (
            not in_memory.is_contiguous()
        ):
            raise InvalidArgumentError(
                f"xla_gpu.vllm_cuda: kv_cache is {list(kv_cache.shape)} with strides "
                f"{kv_cache.stride()}; allowed is [blocks, {self.num_kv_heads}, block_size, "
                f"{2 * self.head_size}] with block_size before kv_heads in memory and no gaps: "
                "caches that layers of other kinds pad, or that other backends order, do not go "
                "with this one"
            )
        if (fp8 := _FP8.get(self.kv_cache_dtype)) is not None:
            in_memory = in_memory.view(fp8)
        return in_memory.view(blocks, size, 2 * heads, content // 2)


def _refused(came: str, allowed: str) -> UnimplementedError:
    return UnimplementedError(
        f"xla_gpu.vllm_cuda: {came}; allowed is {allowed}: select another attention backend"
    )
