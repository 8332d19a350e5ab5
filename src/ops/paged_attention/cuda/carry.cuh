// Sums over very many keys. A register that takes one addend after the other loses bits in
// proportion to their number, and tensor cores truncate (but see kRoundedDecode in mma_tile.cuh).
// So after every kCarryKeys keys, or so, a tile's sums are added to others in the workspace, which
// keep what each addition loses, and start again from zero: the error does not grow with the
// context.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CARRY_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CARRY_CUH_

#include "src/ops/paged_attention/cuda/tile.cuh"

namespace xla_gpu::paged_attention {

// What a thread carries: float e of it lies at `at + e * threads`. Of each sum there are two, the
// sum and what its additions lost.
struct Carry {
  float* at;
  int threads;

  __device__ __forceinline__ float& operator[](int e) const {
    return at[static_cast<long long>(e) * threads];
  }
};

// The carry of this thread; `floats` a thread has. Made where it is used: no compiler moves this
// out of a loop, where it would keep registers.
__device__ __forceinline__ Carry MakeCarry(const Params& p, int threads, int floats) {
  asm volatile("" : "+r"(floats));
  const long long block = static_cast<long long>(blockIdx.x) * threads * floats;
  return {p.carry + block + threadIdx.x, threads};
}

// Adds `x` to the sum at float `e`, first multiplied by `rescale`; `first`: there is nothing yet.
__device__ __forceinline__ void PutCarry(const Carry& carry, int e, bool first, float rescale,
                                         float x) {
  const float old = first ? 0.0f : carry[e] * rescale;
  const float lost = first ? 0.0f : carry[e + 1] * rescale;
  const float sum = old + x;
  const float added = sum - old;
  carry[e] = sum;
  carry[e + 1] = lost + ((old - (sum - added)) + (x - added));
}

__device__ __forceinline__ float TakeCarry(const Carry& carry, int e) {
  const float sum = carry[e];
  return fabsf(sum) < Infinity() ? sum + carry[e + 1] : sum;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CARRY_CUH_
