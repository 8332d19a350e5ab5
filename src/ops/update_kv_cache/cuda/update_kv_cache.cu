// update_kv_cache: scatters the keys and values of new tokens into their slots.
//
// Defines: INPUT_TYPE (float, BF16, F16), CACHE_TYPE (those, E4M3, E5M2), SLOT_TYPE_64 for i64
// slots, HEAD_DIM, VECTOR: elements that a thread moves at a time; UNALIGNED (numeric.cuh) or not.
#include "src/ops/update_kv_cache/cuda/write_tokens.cuh"

namespace xla_gpu::update_kv_cache {
namespace {

#ifdef SLOT_TYPE_64
using Slot = long long;
using SlotBits = unsigned long long;  // what atomicCAS takes
#else
using Slot = int;
using SlotBits = unsigned;
#endif

// The slots of a block's tokens, each with its newest token: a hash table without removal, at most
// a quarter full.
struct SlotTable {
  static constexpr int kEntries = 4 * kMaxTokensPerBlock;
  static constexpr Slot kEmpty = -1;
  static constexpr int kInLaterBlock = 0x7fffffff;

  Slot slots[kEntries];
  int newest[kEntries];  // token of the block, or kInLaterBlock

  __device__ void Clear() {
    for (int i = threadIdx.x; i < kEntries; i += kUpdateThreads) slots[i] = kEmpty, newest[i] = -1;
  }

  static __device__ int FirstEntry(Slot slot) {
    return static_cast<int>((static_cast<unsigned>(slot) * 0x9e3779b1u) >> 16) % kEntries;
  }

  __device__ int Insert(Slot slot, int token) {
    int entry = FirstEntry(slot);
    for (;; entry = (entry + 1) % kEntries) {
      const Slot found =
          static_cast<Slot>(atomicCAS(reinterpret_cast<SlotBits*>(&slots[entry]),
                                      static_cast<SlotBits>(kEmpty), static_cast<SlotBits>(slot)));
      if (found == kEmpty || found == slot) break;
    }
    atomicMax(&newest[entry], token);
    return entry;
  }

  // A token of a later block has this slot.
  __device__ void Overwrite(Slot slot) {
    if (slot < 0) return;
    for (int entry = FirstEntry(slot);; entry = (entry + 1) % kEntries) {
      const Slot found = slots[entry];
      if (found == kEmpty) return;
      if (found == slot) {
        newest[entry] = kInLaterBlock;
        return;
      }
    }
  }
};

// The slots of tokens [begin, end), a thread's share at a time, which is loaded before it is asked
// for: 16 bytes a load, and those beside whole ones with the first.
class LaterSlots {
 public:
  __device__ LaterSlots(const Slot* mapping, long long begin, long long end) {
    begin = min(begin, end);
    const auto misplaced =
        reinterpret_cast<unsigned long long>(mapping + begin) % 16 / sizeof(Slot);
    const long long aligned = min(end, begin + (misplaced == 0 ? 0 : kPerLoad - misplaced));
    loads_ = (end - aligned) / kPerLoad;
    from_ = reinterpret_cast<const Load*>(mapping + aligned);
    const int i = static_cast<int>(threadIdx.x) % 32;
    const long long edge = threadIdx.x < 32 ? begin + i : aligned + loads_ * kPerLoad + i;
    if (threadIdx.x < 64 && edge < (threadIdx.x < 32 ? aligned : end)) edge_ = mapping[edge];
    Fetch();
  }

  template <typename Take>
  __device__ void ForEach(Take take) const {
    if (next_ == threadIdx.x && edge_ != SlotTable::kEmpty) take(edge_);
#pragma unroll
    for (const Load& load : share_) {
#pragma unroll
      for (const Slot slot : load.x) take(slot);
    }
  }

  __device__ bool Next() {
    next_ += kShare * kUpdateThreads;
    if (next_ >= loads_) return false;
    Fetch();
    return true;
  }

 private:
  static constexpr int kPerLoad = 16 / sizeof(Slot), kShare = 4;
  struct alignas(16) Load {
    Slot x[kPerLoad];
  };

  __device__ void Fetch() {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const long long at = next_ + i * kUpdateThreads;
      if (at < loads_) {
        share_[i] = from_[at];
      } else {
#pragma unroll
        for (Slot& slot : share_[i].x) slot = SlotTable::kEmpty;
      }
    }
  }

  const Load* from_;
  long long loads_;
  long long next_ = threadIdx.x;
  Slot edge_ = SlotTable::kEmpty;
  Load share_[kShare];
};

}  // namespace

// A block writes tokens_per_block tokens. Where two tokens name one slot the later one must stay,
// whatever the order in which blocks run: so a token that a later one overwrites is not written.
extern "C" __global__ void __launch_bounds__(kUpdateThreads)
    update_kv_cache(const __grid_constant__ Params p) {
  __shared__ SlotTable table;
  __shared__ long long slots[kMaxTokensPerBlock];
  const Slot* mapping = static_cast<const Slot*>(p.slot_mapping);
  const long long first = static_cast<long long>(blockIdx.x) * p.tokens_per_block;
  const int token = threadIdx.x;  // of the block
  Slot slot = -1;
  if (token < p.tokens_per_block && first + token < p.tokens) slot = mapping[first + token];
  const bool in_cache = slot >= 0 && slot < p.num_slots;
  TokenWriter writer(p, first);
  LaterSlots later(mapping, first + p.tokens_per_block, p.tokens);
  table.Clear();
  __syncthreads();
  const int entry = in_cache ? table.Insert(slot, token) : 0;
  __syncthreads();
  do {
    later.ForEach([&](Slot overwritten) { table.Overwrite(overwritten); });
  } while (later.Next());
  __syncthreads();
  slots[token] = in_cache && table.newest[entry] == token ? slot : -1;
  __syncthreads();

  writer.Write(slots);
}

// to = from, for a cache that is not updated in place: 16 bytes, or elements, at a time.
extern "C" __global__ void __launch_bounds__(kUpdateThreads)
    copy_cache(const char* from, char* to, long long bytes) {
  const long long step = static_cast<long long>(gridDim.x) * kUpdateThreads;
  const long long begin = static_cast<long long>(blockIdx.x) * kUpdateThreads + threadIdx.x;
#ifdef UNALIGNED
  using Piece = Cache;
#else
  using Piece = uint4;
#endif
  constexpr long long kPiece = sizeof(Piece);
  const long long pieces = bytes / kPiece;
#pragma unroll 4
  for (long long i = begin; i < pieces; i += step) {
    reinterpret_cast<Piece*>(to)[i] = reinterpret_cast<const Piece*>(from)[i];
  }
  for (long long i = pieces * kPiece + begin; i < bytes; i += step) to[i] = from[i];
}

}  // namespace xla_gpu::update_kv_cache
