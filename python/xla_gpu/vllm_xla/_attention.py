"""Our kernels under the names and with the arguments of tpu-inference's."""

from xla_gpu.jax import ragged_paged_attention_hd64, ragged_paged_attention_v3

ragged_paged_attention = ragged_paged_attention_v3

__all__ = ["ragged_paged_attention", "ragged_paged_attention_hd64"]
