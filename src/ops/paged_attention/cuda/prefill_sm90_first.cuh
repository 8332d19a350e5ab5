// The first piece of each block of the Hopper prefill kernel, which a warp finds by itself, from
// the lengths, while the schedule still runs: it comes to the same list, whose first pieces the
// blocks have. For problems with room for few sequences, a lane each.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_FIRST_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_FIRST_CUH_

#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"
#include "src/ops/paged_attention/cuda/splits.cuh"

namespace xla_gpu::paged_attention::sm90 {

// The sum, or the greatest, of the lanes up to this one.
template <typename Combine>
__device__ __forceinline__ int Scan(int x, Combine combine) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x = combine(x, other);
  }
  return x;
}

// Which item, and which of its kv heads, is piece number `taken` of the list: items of so many
// heads come before those of others.
struct ItemHead {
  unsigned item, head;
};
__device__ __forceinline__ ItemHead ItemHeadOf(unsigned taken, unsigned items, unsigned heads) {
  const unsigned group = taken / (items * heads), in_group = taken - group * items * heads;
  return {in_group / heads, group * heads + in_group % heads};
}

// Puts it into the first slot; false if the block has none, or none that is known without the
// schedule. All lanes of a warp.
__device__ __forceinline__ bool FindFirst(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const auto add = [](int a, int b) { return a + b; };
  // What the sequences ask for.
  const Lengths lengths = ReadLengths(p, lane);  // beside num_seqs, not after it
  const int num_seqs = Min(Max(p.num_seqs[0], 0), p.max_seqs);
  const bool valid = lane < num_seqs && IsValid(p, lengths);
  const int last_end = Scan(valid ? lengths.end : 0, [](int a, int b) { return Max(a, b); });
  const int before = __shfl_up_sync(kAllLanes, last_end, 1);  // none of lane 0
  const bool contested = valid && lane > 0 && lengths.begin < lengths.end && before > lengths.begin;
  if (__any_sync(kAllLanes, contested)) return false;
  SequenceInfo info = {};
  if (valid) info = {lengths.begin, lengths.end - lengths.begin, lengths.context, 0};
  const Shape shape = ShapeOf(p, info);
  const bool has_items = valid && !shape.decode && shape.tiles > 0;
  Work work = {};
  if (has_items) AddShape(p, info, shape, work);
  work = {WarpSum(work.tokens), WarpSum(work.tiles), WarpMax(work.max_keys)};
  const int decode_tiles = WarpSum(valid && shape.decode ? shape.tiles : 0);

  // How they are split.
  const auto count = [&](int split_tokens, int& items, int& partial_rows) {
#pragma unroll 1
    for (int s = 0; s < num_seqs; ++s) {
      const SequenceInfo other = {0, __shfl_sync(kAllLanes, info.query_len, s),
                                  __shfl_sync(kAllLanes, info.context_len, s), 0};
      if (!IsDecode(p, other)) AddItems(p, other, split_tokens, items, partial_rows);
    }
  };
  const Split chosen = ChooseSplit<false>(p, work, PrefillRoom(p, decode_tiles), count);
  const int splits = has_items ? SplitsOf(p, shape, chosen.tokens) : 1;
  // Where partial results lie depends on decode's.
  if (chosen.partial_rows > 0 && decode_tiles > 0) return false;

  // Whose item it is.
  const int ends = Scan(has_items ? shape.tiles * splits : 0, add);
  const int own_partials = splits > 1 ? shape.rows * p.kv_heads * splits : 0;
  const int partial_begin = Scan(own_partials, add) - own_partials;
  const auto items = static_cast<unsigned>(chosen.items);
  if (blockIdx.x >= items * static_cast<unsigned>(p.kv_heads)) return false;
  const ItemHead piece = ItemHeadOf(blockIdx.x, items, HeadsTogether(p, work.max_keys));
  const unsigned behind = __ballot_sync(kAllLanes, ends > static_cast<int>(piece.item));
  const int owner = __ffs(static_cast<int>(behind)) - 1;
  Slot& slot = shared.slots[0];
  if (lane == owner) {
    static_cast<WorkItem&>(slot.tile) =
        MakeItem(p, lane, info, ends - 1 - static_cast<int>(piece.item), splits, partial_begin);
    slot.tile.head = static_cast<int>(piece.head);
    slot.piece = piece.item * static_cast<unsigned>(p.kv_heads) + piece.head;
    slot.redo = slot.zeroed = 0;
    slot.stop = 0;
  }
  Arrive(SharedAddress(&shared.slot_full[0]));
  return true;
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PREFILL_SM90_FIRST_CUH_
