// What every attend kernel is around its arithmetic: taking work until none is left.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"

namespace xla_gpu::paged_attention {

// `run(tile, fetch_next)`, called by all threads of the block, computes a tile: it writes the rows,
// or, if the tile is one of several splits, their partial results. Once its first loads are under
// way it calls `fetch_next()`, so that the next tile is there when this one is done.
template <typename Out, int kHeadDim, typename RunTile>
__device__ __forceinline__ void Attend(const Params& p, RunTile run) {
  __shared__ struct Next {
    WorkItem item;
    unsigned work;
    int head;
  } next[2];  // while one is read the other may be written: one barrier an item is enough
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  // It may be no item at all if `work` is past the last.
  const auto item_of = [&](unsigned work) {
    return p.items + min(work / kv_heads, static_cast<unsigned>(p.item_capacity) - 1u);
  };
  unsigned work = blockIdx.x;
  Tile tile{*item_of(work), static_cast<int>(work % kv_heads)};  // beside the total, not after it
  const unsigned total = p.header->num_items * kv_heads;
  for (int turn = 0; work < total; turn ^= 1) {
    unsigned taken = 0;
    if (threadIdx.x == 0) taken = atomicAdd(&p.header->next_item, 1u);
    const auto fetch_next = [&] {
      if (threadIdx.x != 0) return;
      const char* from = reinterpret_cast<const char*>(item_of(taken));
      const unsigned to = SharedAddress(&next[turn].item);
#pragma unroll
      for (unsigned i = 0; i < sizeof(WorkItem); i += 16) CopyAsync<16>(to + i, from + i, true);
      next[turn].work = taken;
      next[turn].head = static_cast<int>(taken % kv_heads);
    };
    if (tile.kind == kFillItem) {
      fetch_next();
      FillUnowned<Out, kHeadDim>(p, tile.first_row, tile.head);
    } else {
      run(tile, fetch_next);
      if (tile.splits > 1 && ArriveLast(p.arrivals + PartialRow(p, tile, 0, 0), tile.splits)) {
        MergeSplits<Out, kHeadDim>(p, tile);
      }
    }
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();  // also: nobody still reads the shared memory of the item
    work = next[turn].work;
    tile = Tile{next[turn].item, next[turn].head};
  }
  OverwriteBadPages<Out, kHeadDim>(p);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_
