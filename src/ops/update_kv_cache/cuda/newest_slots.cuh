// Which of a block's tokens are the newest of their slot, and where those go.
//
// A block writes tokens_per_block tokens. Where two tokens name one slot the later one must stay,
// whatever the order in which blocks run: so a token that a later one overwrites is not written.
//
// Defines: SLOT_TYPE_64 for i64 slots.
#ifndef XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_NEWEST_SLOTS_CUH_
#define XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_NEWEST_SLOTS_CUH_

#include "src/ops/update_kv_cache/cuda/params.cuh"

namespace xla_gpu::update_kv_cache {

#ifdef SLOT_TYPE_64
using Slot = long long;
#else
using Slot = int;
#endif

// A block's slots, and a hash table of them without removal, at most a quarter full, which has each
// slot's newest token.
template <int kTokens>
struct SlotTable {
  static constexpr int kEntries = 4 * kTokens;
  static constexpr int kEmpty = -1;

  long long slots[kTokens];  // -1: none
  int newest[kEntries];
  bool overwritten[kTokens];  // by a later block's token

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kEntries; i += kTokens) newest[i + threadIdx.x] = kEmpty;
    overwritten[threadIdx.x] = false;
  }

  static __device__ int FirstEntry(long long slot) {
    return static_cast<int>((static_cast<unsigned>(slot) * 0x9e3779b1u) >> 16) % kEntries;
  }

  // Of a token whose slot is in `slots`, as are those of all others.
  __device__ int Insert(int token) {
    for (int entry = FirstEntry(slots[token]);; entry = (entry + 1) % kEntries) {
      const int found = atomicCAS(&newest[entry], kEmpty, token);
      if (found == kEmpty) return entry;
      if (slots[found] != slots[token]) continue;
      atomicMax(&newest[entry], token);
      return entry;
    }
  }

  // A token of a later block has this slot.
  __device__ void Overwrite(Slot slot) {
    if (slot < 0) return;
    for (int entry = FirstEntry(slot);; entry = (entry + 1) % kEntries) {
      const int found = newest[entry];
      if (found == kEmpty) return;
      if (slots[found] != slot) continue;
      overwritten[found] = true;
      return;
    }
  }
};

// The slots of tokens [begin, end), a thread's share at a time, which is loaded before it is asked
// for: 16 bytes a load, and those beside whole ones with the first.
template <int kThreads>
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
    if (next_ == threadIdx.x && edge_ != kNone) take(edge_);
#pragma unroll
    for (const Load& load : share_) {
#pragma unroll
      for (const Slot slot : load.x) take(slot);
    }
  }

  __device__ bool Next() {
    next_ += kShare * kThreads;
    if (next_ >= loads_) return false;
    Fetch();
    return true;
  }

 private:
  static constexpr Slot kNone = -1;
  static constexpr int kPerLoad = 16 / sizeof(Slot), kShare = 4;
  struct alignas(16) Load {
    Slot x[kPerLoad];
  };

  __device__ void Fetch() {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const long long at = next_ + i * kThreads;
      if (at < loads_) {
        share_[i] = from_[at];
      } else {
#pragma unroll
        for (Slot& slot : share_[i].x) slot = kNone;
      }
    }
  }

  const Load* from_;
  long long loads_;
  long long next_ = threadIdx.x;
  Slot edge_ = kNone;
  Load share_[kShare];
};

// Of a block of kThreads threads, one for each of its tokens. Made, it has the first slots under
// way.
template <int kThreads>
class NewestSlots {
 public:
  __device__ NewestSlots(const Params& p, long long first, SlotTable<kThreads>& table)
      : table_(table),
        later_(static_cast<const Slot*>(p.slot_mapping), first + p.tokens_per_block, p.tokens) {
    const int token = threadIdx.x;
    Slot slot = -1;
    if (token < p.tokens_per_block && first + token < p.tokens) {
      slot = static_cast<const Slot*>(p.slot_mapping)[first + token];
    }
    slot_ = slot < p.num_slots ? slot : -1;
  }

  // Leaves in the table's `slots` those of the tokens to write, for the whole block; else -1.
  __device__ void Find() {
    table_.Clear();
    table_.slots[threadIdx.x] = slot_;
    __syncthreads();
    const int entry = slot_ >= 0 ? table_.Insert(threadIdx.x) : 0;
    __syncthreads();
    do {
      later_.ForEach([&](Slot slot) { table_.Overwrite(slot); });
    } while (later_.Next());
    __syncthreads();
    const int token = threadIdx.x;
    if (table_.newest[entry] != token || table_.overwritten[token]) table_.slots[token] = -1;
    __syncthreads();
  }

 private:
  SlotTable<kThreads>& table_;
  LaterSlots<kThreads> later_;
  Slot slot_;
};

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_NEWEST_SLOTS_CUH_
