// paged_attention, last launch: what no work item could write alone. Merges the partial results of
// split sequences; writes NaN to the rows of invalid sequences, and zeros to the rows of none.
//
// Defines: OUT_TYPE (float, BF16, F16).
#include "src/cuda/numeric.cuh"
#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kMaxHeadDim = 256;

// The sequence that owns the row of query `token`, or -1.
__device__ int FindOwner(const Params& p, int num_seqs, int token) {
  int low = 0, high = num_seqs;
  while (low < high) {  // the first sequence whose end lies behind the token
    const int middle = (low + high) / 2;
    if (p.owner_end[middle] > token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == num_seqs || p.sequences[low].query_begin > token) return -1;
  return low;
}

// Whether some invalid sequence claims the row.
__device__ bool IsClaimed(const Params& p, int num_seqs, int token) {
  bool claimed = false;
  for (int s = threadIdx.x; s < num_seqs; s += blockDim.x) {
    claimed |= p.state[s] == kInvalid && p.query_start_loc[s] <= token &&
               token < p.query_start_loc[s + 1];
  }
  return __syncthreads_or(claimed);
}

__device__ void Fill(const Params& p, int token, float out, float lse) {
  using Out = OUT_TYPE;
  Out* row = static_cast<Out*>(p.out) + static_cast<long long>(token) * p.q_heads * p.head_dim;
  const long long count = static_cast<long long>(p.q_heads) * p.head_dim;
  for (long long i = threadIdx.x; i < count; i += blockDim.x) row[i] = FromFloat<Out>(out);
  if (p.lse == nullptr) return;
  for (int head = threadIdx.x; head < p.q_heads; head += blockDim.x) {
    p.lse[static_cast<long long>(token) * p.q_heads + head] = lse;
  }
}

// One warp merges one (token, query head).
__device__ void Merge(const Params& p, const SequenceInfo& info, int token, int q_head) {
  using Out = OUT_TYPE;
  const int lane = threadIdx.x % 32;
  const int head = q_head / p.group_size;
  const int rows = info.query_len * p.group_size;
  const int row = (token - info.query_begin) * p.group_size + q_head % p.group_size;
  const long long first = info.partial_begin +
                          static_cast<long long>(head) * info.splits * rows + row;
  const float kNone = -__int_as_float(0x7f800000);
  float max = p.sinks == nullptr ? kNone : p.sinks[q_head];
  for (int i = lane; i < info.splits; i += 32) {
    max = fmaxf(max, p.partial_max[first + static_cast<long long>(i) * rows]);
  }
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  if (max == kNone) max = 0.0f;  // sees nothing

  float keys_sum = 0.0f;
  float values[kMaxHeadDim / 32] = {};
  for (int base = 0; base < info.splits; base += 32) {
    float weight = 0.0f;
    if (base + lane < info.splits) {
      const long long index = first + static_cast<long long>(base + lane) * rows;
      weight = expf(p.partial_max[index] - max);
      keys_sum += p.partial_sum[index] * weight;
    }
    const int count = min(32, info.splits - base);
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float w = __shfl_sync(kAll, weight, i);
      const float* from =
          p.partial_out + (first + static_cast<long long>(base + i) * rows) * p.head_dim;
#pragma unroll
      for (int j = 0; j < kMaxHeadDim / 32; ++j) {
        if (j * 32 + lane < p.head_dim) values[j] += from[j * 32 + lane] * w;
      }
    }
  }
  for (int step = 16; step > 0; step /= 2) keys_sum += __shfl_xor_sync(kAll, keys_sum, step);
  const float sum = keys_sum + (p.sinks == nullptr ? 0.0f : expf(p.sinks[q_head] - max));
  const float v_scale = p.v_scale == nullptr ? 1.0f : p.v_scale[head * p.v_scale_step];
  const bool sees_nothing = keys_sum == 0.0f;
  const float factor = v_scale / sum;

  const long long out_row = static_cast<long long>(token) * p.q_heads + q_head;
  Out* out = static_cast<Out*>(p.out) + out_row * p.head_dim;
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) {
    if (j * 32 + lane < p.head_dim) {
      out[j * 32 + lane] = FromFloat<Out>(sees_nothing ? 0.0f : values[j] * factor);
    }
  }
  if (p.lse != nullptr && lane == 0) p.lse[out_row] = sees_nothing ? kNone : max + logf(sum);
}

}  // namespace

// Grid: (blocks over tokens, blocks over q_heads). Each block takes whole tokens.
extern "C" __global__ void __launch_bounds__(128)
    paged_attention_finish(const __grid_constant__ Params p) {
  const int num_seqs = static_cast<int>(p.header->num_seqs);
  for (int token = blockIdx.x; token < p.tokens; token += gridDim.x) {
    const int owner = FindOwner(p, num_seqs, token);
    if (owner < 0) {
      const bool nan = p.header->any_invalid != 0 && IsClaimed(p, num_seqs, token);
      const float quiet_nan = __int_as_float(0x7fc00000);
      if (blockIdx.y == 0) {
        Fill(p, token, nan ? quiet_nan : 0.0f, nan ? quiet_nan : -__int_as_float(0x7f800000));
      }
      continue;
    }
    if (p.state[owner] == kInvalid) {  // an attend item met a bad page
      const float quiet_nan = __int_as_float(0x7fc00000);
      if (blockIdx.y == 0) Fill(p, token, quiet_nan, quiet_nan);
      continue;
    }
    const SequenceInfo info = p.sequences[owner];
    if (info.splits == 1) continue;
    const int warps = blockDim.x / 32;
    for (int head = blockIdx.y * warps + threadIdx.x / 32; head < p.q_heads;
         head += gridDim.y * warps) {
      Merge(p, info, token, head);
    }
  }
}

}  // namespace xla_gpu::paged_attention
