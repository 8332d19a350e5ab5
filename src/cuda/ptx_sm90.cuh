// Hopper's instructions for warps of different work (sm_90a): barriers in shared memory that count
// bytes, the tensor copy engine, votes of some warps of a block.
#ifndef XLA_GPU_CUDA_PTX_SM90_CUH_
#define XLA_GPU_CUDA_PTX_SM90_CUH_

#include "src/cuda/ptx.cuh"

namespace xla_gpu {

// A barrier's phase ends when `count` threads have arrived and all bytes it expects are there.
__device__ __forceinline__ void InitBarrier(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes the barriers of this block known to the copy engine; then the block synchronises.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void Arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for so many bytes of copies.
__device__ __forceinline__ void ArriveExpecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives once this thread's copies by CopyAsync so far are done.
__device__ __forceinline__ void ArriveCopied(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Nanoseconds for which a warp that waits may sleep, unless what it waits for comes.
inline constexpr int kMostWait = 10'000'000;

// Waits for the end of the phase of this parity: the first has 0, the one before it 1.
__device__ __forceinline__ void Wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity), "n"(kMostWait)
      : "memory");
}

// Copies bytes to shared memory in the background; all three are multiples of 16.
__device__ __forceinline__ void CopyBytes(unsigned shared, const void* global, int bytes,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// Has the copy engine read a tensor map before it is needed.
__device__ __forceinline__ void PrefetchMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies a box of a tensor of rank five in the background. What lies outside of the tensor becomes
// zeros.
__device__ __forceinline__ void CopyBox(unsigned shared, const void* map, unsigned barrier, int x0,
                                        int x1, int x2, int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
      : "memory");
}

// Brings one to the L2.
__device__ __forceinline__ void PrefetchBox(const void* map, int x0, int x1, int x2, int x3,
                                            int x4) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
      "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
      : "memory");
}

// The same as CopyBox, to this place of the shared memory of the cluster's blocks in `mask`; the
// bytes count at the barrier's place in each of them.
__device__ __forceinline__ void CopyBoxToBlocks(unsigned shared, const void* map, unsigned barrier,
                                                unsigned mask, int x0, int x1, int x2, int x3,
                                                int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4),
      "h"(static_cast<unsigned short>(mask))
      : "memory");
}

// The address of a place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ unsigned InBlock(unsigned shared, int rank) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

// All threads of all blocks of the cluster; what they wrote to shared memory is seen by all.
__device__ __forceinline__ void SyncCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// In two halves, and for the barriers of FenceBarrierInit alone: a release of all that was written
// takes longer.
__device__ __forceinline__ void ArriveCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitForCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives at a barrier of another block, by its InBlock address. For what this thread has read
// there: a release for the whole cluster would be a fence.
__device__ __forceinline__ void ArriveInBlock(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void StoreInBlock(unsigned to, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

// Stores words in another block, whose barrier there expects their bytes.
__device__ __forceinline__ void StoreInBlock(unsigned to, unsigned word, unsigned barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(word), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void StoreInBlock(unsigned to, float x, float y, unsigned barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "f"(x), "f"(y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void StoreInBlock(unsigned to, const Vector<float, 4>& words,
                                             unsigned barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(words.x[0]), "f"(words.x[1]), "f"(words.x[2]), "f"(words.x[3]), "r"(barrier)
      : "memory");
}

// Swaps a word of another block.
__device__ __forceinline__ unsigned ExchangeInBlock(unsigned at, unsigned word) {
  unsigned before;
  asm volatile("atom.shared::cluster.exch.b32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(at), "r"(word)
               : "memory");
  return before;
}

// Counts this warp's threads for those that wait in SyncThreads, and goes on.
__device__ __forceinline__ void ArriveThreads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// As SyncThreads; true if some thread's `x` is.
__device__ __forceinline__ bool AnyOfThreads(int id, int threads, bool x) {
  int any;
  asm volatile(
      "{.reg .pred p, q; setp.ne.b32 p, %1, 0; barrier.cta.red.or.pred q, %2, %3, p;\n"
      "selp.b32 %0, 1, 0, q;}"
      : "=r"(any)
      : "r"(static_cast<int>(x)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

// Gives registers of this warpgroup's threads back, or takes more; all its warps call it.
template <int kRegisters>
__device__ __forceinline__ void KeepRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// 16 bytes of shared memory, where the program says: a load that only some lanes need is not put
// off until they do.
__device__ __forceinline__ Vector<unsigned, 4> LoadVector(unsigned shared) {
  Vector<unsigned, 4> y;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(y.x[0]), "=r"(y.x[1]), "=r"(y.x[2]), "=r"(y.x[3])
               : "r"(shared)
               : "memory");
  return y;
}

// Two sums, each plus 0 times an element: 0 as long as all elements are finite, else NaN.
template <typename T>
__device__ __forceinline__ unsigned AddTimesZero(unsigned sums, unsigned elements) {
  unsigned y;
  if constexpr (kSameType<T, BF16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(elements), "r"(0), "r"(sums));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(elements), "r"(0), "r"(sums));
  }
  return y;
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void StoreMatrix4(unsigned shared, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same matrices, each transposed.
__device__ __forceinline__ void StoreMatrix4Transposed(unsigned shared, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CUDA_PTX_SM90_CUH_
