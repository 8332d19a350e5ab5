// Hopper's instructions for warps of different work (sm_90a): barriers in shared memory that count
// bytes, the tensor copy engine, votes of some warps of a block.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PTX_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PTX_SM90_CUH_

#include "src/ops/paged_attention/cuda/ptx.cuh"

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

// Waits for the end of the phase of this parity: the first has 0, the one before it 1.
__device__ __forceinline__ void Wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies a box of a tensor of rank five, at {0, 0, chunk, group, page}, in the background. What
// lies outside of the tensor becomes zeros.
__device__ __forceinline__ void CopyBox(unsigned shared, const void* map, unsigned barrier,
                                        int chunk, int group, int page) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %3, %4, %5, %6}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(0), "r"(chunk), "r"(group), "r"(page)
      : "memory");
}

// The address of a place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ unsigned InBlock(const void* place, int rank) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(SharedAddress(place)), "r"(rank));
  return address;
}

// All threads of all blocks of the cluster; what they wrote to shared memory is seen by all.
__device__ __forceinline__ void SyncCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// Arrives at a barrier of some block of the cluster: what this thread has read may be overwritten.
__device__ __forceinline__ void ArriveInBlock(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Hands a word over to another block of the cluster, which waits by WaitForBlock.
__device__ __forceinline__ void StoreInBlock(unsigned place, unsigned value, unsigned barrier) {
  asm volatile(
      "st.shared::cluster.u32 [%0], %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%2];" ::"r"(place),
      "r"(value), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void WaitForBlock(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// As CopyBox, to the same place in each block of the cluster that is in `blocks`, and tells the
// barrier in the same place there.
__device__ __forceinline__ void CopyBoxToBlocks(unsigned shared, const void* map, unsigned barrier,
                                                int chunk, int group, int page,
                                                unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(0), "r"(chunk), "r"(group), "r"(page), "h"(blocks)
      : "memory");
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

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PTX_SM90_CUH_
