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
constexpr int kThreads = 128;
#define XLA_GPU_NONE (-__int_as_float(0x7f800000))  // the maximum of no logits

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
    claimed |=
        p.state[s] == kInvalid && p.query_start_loc[s] <= token && token < p.query_start_loc[s + 1];
  }
  return __syncthreads_or(claimed);
}

// A row of one value, by the blocks of all heads.
__device__ void Fill(const Params& p, int token, float out, float lse) {
  using Out = OUT_TYPE;
  const long long count = static_cast<long long>(p.q_heads) * p.head_dim;
  Out* row = static_cast<Out*>(p.out) + token * count;
  const long long first = static_cast<long long>(blockIdx.y) * kThreads + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.y) * kThreads;
  constexpr int kVector = 16 / sizeof(Out);
  if (count % kVector == 0) {
    struct alignas(16) Vector {
      Out x[kVector];
    } value;
#pragma unroll
    for (int i = 0; i < kVector; ++i) value.x[i] = FromFloat<Out>(out);
    for (long long i = first; i < count / kVector; i += step) {
      reinterpret_cast<Vector*>(row)[i] = value;
    }
  } else {
    for (long long i = first; i < count; i += step) row[i] = FromFloat<Out>(out);
  }
  if (p.lse == nullptr) return;
  for (long long head = first; head < p.q_heads; head += step) {
    p.lse[static_cast<long long>(token) * p.q_heads + head] = lse;
  }
}

// The block merges one (token, query head).
__device__ void Merge(const Params& p, const SequenceInfo& info, int token, int q_head,
                      float* weights) {
  using Out = OUT_TYPE;
  const int tid = threadIdx.x;
  const int head = q_head / p.group_size;
  const int rows = info.query_len * p.group_size;
  const int row = (token - info.query_begin) * p.group_size + q_head % p.group_size;
  const long long first =
      info.partial_begin + static_cast<long long>(head) * info.splits * rows + row;
  // Every warp finds the maximum and the sum for itself.
  float max = p.sinks == nullptr ? XLA_GPU_NONE : p.sinks[q_head];
  for (int i = tid % 32; i < info.splits; i += 32) {
    max = fmaxf(max, p.partial_max[first + static_cast<long long>(i) * rows]);
  }
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  if (max == XLA_GPU_NONE) max = 0.0f;  // sees nothing
  float keys_sum = 0.0f;
  for (int i = tid % 32; i < info.splits; i += 32) {
    const long long index = first + static_cast<long long>(i) * rows;
    keys_sum += p.partial_sum[index] * expf(p.partial_max[index] - max);
  }
  for (int step = 16; step > 0; step /= 2) keys_sum += __shfl_xor_sync(kAll, keys_sum, step);

  // Each thread adds up its head dimensions.
  float values[kMaxHeadDim / kThreads] = {};
  for (int base = 0; base < info.splits; base += kThreads) {
    const int count = min(kThreads, info.splits - base);
    __syncthreads();
    if (tid < count) {
      weights[tid] = expf(p.partial_max[first + static_cast<long long>(base + tid) * rows] - max);
    }
    __syncthreads();
    const float* from = p.partial_out + (first + static_cast<long long>(base) * rows) * p.head_dim;
    const long long step = static_cast<long long>(rows) * p.head_dim;
#pragma unroll
    for (int j = 0; j < kMaxHeadDim / kThreads; ++j) {
      const int d = j * kThreads + tid;
      if (d >= p.head_dim) continue;
#pragma unroll 16
      for (int i = 0; i < count; ++i) values[j] += from[i * step + d] * weights[i];
    }
  }
  const float sum = keys_sum + (p.sinks == nullptr ? 0.0f : expf(p.sinks[q_head] - max));
  const float v_scale = p.v_scale == nullptr ? 1.0f : p.v_scale[head * p.v_scale_step];
  const bool sees_nothing = keys_sum == 0.0f;
  const float factor = v_scale / sum;

  const long long out_row = static_cast<long long>(token) * p.q_heads + q_head;
  Out* out = static_cast<Out*>(p.out) + out_row * p.head_dim;
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / kThreads; ++j) {
    const int d = j * kThreads + tid;
    if (d < p.head_dim) out[d] = FromFloat<Out>(sees_nothing ? 0.0f : values[j] * factor);
  }
  if (p.lse != nullptr && tid == 0) p.lse[out_row] = sees_nothing ? XLA_GPU_NONE : max + logf(sum);
}

}  // namespace

// Grid: (blocks over tokens, blocks over q_heads). A block has a range of tokens, and passes over
// those that attend has written itself.
extern "C" __global__ void __launch_bounds__(kThreads)
    paged_attention_finish(const __grid_constant__ Params p) {
  __shared__ float weights[kThreads];
  const int num_seqs = static_cast<int>(p.header->num_seqs);
  const float nan = __int_as_float(0x7fc00000);
  const int each = (p.tokens + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int end =
      static_cast<int>(min(static_cast<long long>(p.tokens), (blockIdx.x + 1LL) * each));
  for (int token = static_cast<int>(min(blockIdx.x * 1LL * each, static_cast<long long>(end)));
       token < end; ++token) {
    const int owner = FindOwner(p, num_seqs, token);
    if (owner < 0) {
      const bool claimed = p.header->any_invalid != 0 && IsClaimed(p, num_seqs, token);
      Fill(p, token, claimed ? nan : 0.0f, claimed ? nan : XLA_GPU_NONE);
      continue;
    }
    const SequenceInfo info = p.sequences[owner];
    if (p.state[owner] == kInvalid) {  // an attend item met a bad page
      Fill(p, token, nan, nan);
      continue;
    }
    if (info.splits == 1) {
      token = min(end, p.owner_end[owner]) - 1;
      continue;
    }
    for (int head = blockIdx.y; head < p.q_heads; head += gridDim.y) {
      Merge(p, info, token, head, weights);
    }
  }
}

}  // namespace xla_gpu::paged_attention
