// What every attend kernel is around its arithmetic: taking work until none is left.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_

#include "src/ops/paged_attention/cuda/finish.cuh"

namespace xla_gpu::paged_attention {

// The pieces of work, (item, kv head) pairs: all of the list, or, behind a prefill launch, those
// that it has left, the prefill items that are not its own, and what comes after those that are.
struct Pieces {
  unsigned total;
  unsigned redo;     // the first so many are named one by one
  unsigned before;   // then so many from the list's beginning on
  unsigned skipped;  // behind which so many are done
};

template <bool kBehindPrefill>
__device__ __forceinline__ Pieces PiecesOf(const Params& p) {
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  const unsigned all = p.header->num_items * kv_heads;
  if constexpr (!kBehindPrefill) return {all, 0, 0, 0};
  const unsigned redo = p.header->num_redo;
  const unsigned prefill = p.header->num_prefill_items;
  const unsigned done = p.copied_only != 0 ? p.header->num_copied : prefill;
  return {all - done * kv_heads + redo, redo, (prefill - done) * kv_heads, done * kv_heads};
}

// `run(tile, fetch_next)`, called by all threads of the block, computes a tile: it writes the rows,
// or, if the tile is one of several splits, their partial results. Once its first loads are under
// way it calls `fetch_next()`, so that the next tile is there when this one is done.
template <typename Out, int kHeadDim, bool kBehindPrefill = false, typename RunTile>
__device__ __forceinline__ void Attend(const Params& p, RunTile run) {
  __shared__ struct Next {
    WorkItem item;
    unsigned work;
    int head;
    int again;
  } next[2];  // while one is read the other may be written: one barrier an item is enough
  if (kBehindPrefill) TouchParams(p);
  WaitForLaunchesBefore();
  LetNextLaunchBegin();
  const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
  Pieces pieces = {};
  // Where there is nothing to do no block can meet a bad page.
  const auto nothing_to_do = [&] { return (pieces.total | p.header->any_bad_page) == 0; };
  if (kBehindPrefill) {
    pieces = PiecesOf<kBehindPrefill>(p);
    const unsigned merges = p.header->num_merges;  // beside the others, not after them
    if (nothing_to_do() && merges == 0) return;
  }
  const auto piece_of = [&](unsigned work) {
    if (work < pieces.redo) return p.redo[work];
    const unsigned piece = work - pieces.redo;
    return piece < pieces.before ? piece : piece + pieces.skipped;
  };
  // Also past the last: see WriteReadAhead.
  const auto item_of = [&](unsigned piece) {
    return p.items + min(piece / kv_heads, static_cast<unsigned>(p.item_capacity) - 1u);
  };
  unsigned work = blockIdx.x;
  const unsigned first = piece_of(work);
  Tile tile{*item_of(first), static_cast<int>(first % kv_heads), work < pieces.redo};
  if (!kBehindPrefill) pieces = PiecesOf<kBehindPrefill>(p);  // beside the item, not before it
  for (int turn = 0; work < pieces.total; turn ^= 1) {
    unsigned taken = 0;
    if (threadIdx.x == 0) taken = atomicAdd(&p.header->next_item, 1u);
    const auto fetch_next = [&] {
      if (threadIdx.x != 0) return;
      const unsigned piece = piece_of(taken);
      const char* from = reinterpret_cast<const char*>(item_of(piece));
      const unsigned to = SharedAddress(&next[turn].item);
#pragma unroll
      for (unsigned i = 0; i < sizeof(WorkItem); i += 16) CopyAsync<16>(to + i, from + i, true);
      next[turn].work = taken;
      next[turn].head = static_cast<int>(piece % kv_heads);
      next[turn].again = taken < pieces.redo;
    };
    if (tile.kind == kFillItem) {
      fetch_next();
      FillUnowned<Out, kHeadDim>(p, tile.first_row, tile.head);
    } else {
      run(tile, fetch_next);
      if (tile.splits > 1) {
        unsigned* const arrivals = p.arrivals + PartialRow(p, tile, 0, 0);
        if (kBehindPrefill && tile.again != 0 ? ArriveLastAgain(arrivals)
                                              : ArriveLast(arrivals, tile.splits)) {
          MergeSplits<Out, kHeadDim>(p, tile, threadIdx.x / 32, kAttendWarps);
        }
      }
    }
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();  // also: nobody still reads the shared memory of the item
    work = next[turn].work;
    tile = Tile{next[turn].item, next[turn].head, next[turn].again};
  }
  if (kBehindPrefill) {
    MergePrefill<Out, kHeadDim>(p);
    if (nothing_to_do()) return;
  }
  OverwriteBadPages<Out, kHeadDim>(p);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_ATTEND_CUH_
