// What every attend kernel is around its arithmetic: taking work until none is left.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"

namespace xla_gpu::paged_attention {

// `run(kind, tile)`, called by all threads of the block, computes a tile: it writes the rows, or,
// if the tile is one of several splits, their partial results.
template <typename Out, int kHeadDim, typename RunTile>
__device__ __forceinline__ void Attend(const Params& p, RunTile run) {
  __shared__ unsigned shared_next;
  const unsigned total = p.header->num_items * static_cast<unsigned>(p.kv_heads);
  unsigned work = blockIdx.x;
  // Read beside the total, not after it; it may be no item at all.
  WorkItem item = p.items[min(work / p.kv_heads, p.item_capacity - 1u)];
  while (work < total) {
    unsigned next = 0;
    if (threadIdx.x == 0) next = atomicAdd(&p.header->next_item, 1u);  // its answer comes in time
    const int head = static_cast<int>(work % p.kv_heads);
    if (item.kind == kFillItem) {
      FillUnowned<Out, kHeadDim>(p, item.first_row, head);
    } else {
      const Tile tile = MakeTile(p, item, head);
      run(item.kind, tile);
      if (tile.splits > 1 && ArriveLast(p.arrivals + PartialRow(p, tile, 0, 0), tile.splits)) {
        MergeSplits<Out, kHeadDim>(p, tile);
      }
    }
    if (threadIdx.x == 0) shared_next = next;
    __syncthreads();  // also: nobody still reads the shared memory of the item
    work = shared_next;
    item = p.items[min(work / p.kv_heads, p.item_capacity - 1u)];
    __syncthreads();
  }
  OverwriteBadPages<Out, kHeadDim>(p);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_
