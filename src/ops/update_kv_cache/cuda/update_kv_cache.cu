// update_kv_cache: scatters the keys and values of new tokens into their slots.
//
// Defines: INPUT_TYPE (float, BF16, F16), CACHE_TYPE (those, E4M3, E5M2), SLOT_TYPE_64 for i64
// slots, HEAD_DIM, VECTOR: elements that a thread moves at a time; UNALIGNED (numeric.cuh) or not.
#include "src/ops/update_kv_cache/cuda/newest_slots.cuh"
#include "src/ops/update_kv_cache/cuda/write_tokens.cuh"

namespace xla_gpu::update_kv_cache {

extern "C" __global__ void __launch_bounds__(kUpdateThreads)
    update_kv_cache(const __grid_constant__ Params p) {
  __shared__ SlotTable<kUpdateThreads> table;
  const long long first = static_cast<long long>(blockIdx.x) * p.tokens_per_block;
  TokenWriter writer(p, first);
  NewestSlots<kUpdateThreads> newest(p, first, table);
  newest.Find();
  writer.Write(table.slots);
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
