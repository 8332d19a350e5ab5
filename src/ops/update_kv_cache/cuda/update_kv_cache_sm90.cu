// update_kv_cache on Hopper, for so many tokens that their bytes count: two blocks a
// multiprocessor, whose keys and values come by the copy engine through a ring in shared memory. It
// is full before the block knows which of its tokens it writes.
//
// Defines: those of update_kv_cache.cu, without UNALIGNED.
#include "src/cuda/ptx_sm90.cuh"
#include "src/ops/update_kv_cache/cuda/newest_slots.cuh"
#include "src/ops/update_kv_cache/cuda/write_tokens.cuh"

namespace xla_gpu::update_kv_cache::sm90 {
namespace {

struct Stage {
  char k[kStageBytes], v[kStageBytes];
};
static_assert(kStages * sizeof(Stage) == kRingBytes);

// The keys and values of the block's tokens, which lie side by side, a stage at a time.
class Ring {
 public:
  __device__ Ring(const Params& p, long long first, int tokens, Stage* stages,
                  unsigned long long* filled)
      : stages_(stages), filled_(SharedAddress(filled)) {
    const long long token_bytes = static_cast<long long>(p.kv_heads) * HEAD_DIM * sizeof(Input);
    k_ = static_cast<const char*>(p.k.input) + first * token_bytes;
    v_ = static_cast<const char*>(p.v.input) + first * token_bytes;
    bytes_ = tokens * token_bytes;
    pieces_ = static_cast<int>((bytes_ + kStageBytes - 1) / kStageBytes);
    if (threadIdx.x < kStages) {
      InitBarrier(Filled(threadIdx.x), 1);
      FenceBarrierInit();
      Fetch(threadIdx.x);
    }
  }

  __device__ int pieces() const { return pieces_; }

  // Waits for a piece. The whole block has passed a barrier since the ring was made.
  __device__ const Stage& Get(int piece) const {
    Wait(Filled(piece % kStages), piece / kStages % 2);
    return stages_[piece % kStages];
  }

  // The whole block has done with a piece: another takes its place.
  __device__ void Release(int piece) const {
    __syncthreads();
    if (threadIdx.x == 0) Fetch(piece + kStages);
  }

 private:
  __device__ unsigned Filled(int stage) const {
    return filled_ + stage * static_cast<int>(sizeof(unsigned long long));
  }

  // By one thread.
  __device__ void Fetch(int piece) const {
    if (piece >= pieces_) return;
    const int stage = piece % kStages;
    const long long from = static_cast<long long>(piece) * kStageBytes;
    const int bytes = static_cast<int>(min(bytes_ - from, 0LL + kStageBytes));
    ArriveExpecting(Filled(stage), 2 * bytes);
    CopyBytes(SharedAddress(stages_[stage].k), k_ + from, bytes, Filled(stage));
    CopyBytes(SharedAddress(stages_[stage].v), v_ + from, bytes, Filled(stage));
  }

  Stage* const stages_;
  const unsigned filled_;
  const char *k_, *v_;
  long long bytes_;  // of keys, and of values
  int pieces_;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    update_kv_cache_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) Stage stages[];
  __shared__ unsigned long long filled[kStages];
  __shared__ SlotTable<kThreads> table;
  const long long first = static_cast<long long>(blockIdx.x) * p.tokens_per_block;
  const int tokens = TokensOfBlock(p, first);
  const Ring ring(p, first, tokens, stages, filled);
  NewestSlots<kThreads> newest(p, first, table);
  newest.Find();
  FindPlaces(p, tokens, table.slots);

  constexpr int kVectors = kStageBytes / sizeof(InputVector);
  static_assert(kVectors % kThreads == 0);
  Position at(p);
  for (int piece = 0; piece < ring.pieces(); ++piece) {
    const Stage& stage = ring.Get(piece);
#pragma unroll
    for (int i = threadIdx.x; i < kVectors; i += kThreads, at.Next()) {
      const long long place = at.token() < tokens ? table.slots[at.token()] : -1;
      if (place < 0) continue;
      const InputVector k = reinterpret_cast<const InputVector*>(stage.k)[i];
      const InputVector v = reinterpret_cast<const InputVector*>(stage.v)[i];
      Store(p, p.k, place, at.head(), at.element(), k);
      Store(p, p.v, place, at.head(), at.element(), v);
    }
    ring.Release(piece);
  }
}

}  // namespace xla_gpu::update_kv_cache::sm90
