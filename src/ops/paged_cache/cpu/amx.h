// Products of bf16 by AMX: tiles of 16 rows of 64 bytes, a product of two of them an instruction.
//
// The instructions are asked for by name, as in bf16-inl.h. Words are two bf16; sums are f32, those
// of 32 products from zero and then added to what is there; subnormal bf16 count as 0.
#ifndef XLA_GPU_OPS_PAGED_CACHE_CPU_AMX_H_
#define XLA_GPU_OPS_PAGED_CACHE_CPU_AMX_H_

#include <atomic>
#include <cstdint>

namespace xla_gpu::paged_cache {

constexpr int64_t kAmxRows = 16;   // of a tile
constexpr int64_t kAmxWords = 16;  // of a row of a tile

// c[i][j] = (adds ? c[i][j] : 0) + the products of both halves of a[i][k] and b[k][j], summed over
// k: i < rows, j < cols, k < depth. Rows lie lda, ldb, ldc words apart.
struct AmxProduct {
  const float* a;  // words
  int64_t lda;
  const float* b;  // words
  int64_t ldb;
  int64_t depth;  // a multiple of kAmxWords
  float* c;
  int64_t ldc;
  int64_t rows;  // kAmxRows, 2 * kAmxRows or, if it adds, `few`
  bool adds;
  int64_t cols = 2 * kAmxWords;  // or, of 2 * kAmxRows rows, if it does not add, `few`
};

// What computes them. A thread calls `begin` before its products and `end` after them. Either all
// have `few` rows or columns, less than kAmxRows, or it is 0 and none has.
struct AmxUnit {
  bool (*may_use)();
  void (*begin)(int64_t few);
  void (*multiply)(const AmxProduct&);
  void (*end)();
};

// The processor's, or a test's in its place.
extern const AmxUnit kProcessorsAmx;
inline std::atomic<const AmxUnit*> amx_in_use{&kProcessorsAmx};

// The unit if it may be used now, else null.
const AmxUnit* UsableAmx();

// Whether to compute in products of bf16 at all. Processors with AMX take two cycles for one by
// vdpbf16ps: where they may not use AMX, f32 is faster.
bool UsesBF16Products();

}  // namespace xla_gpu::paged_cache

#endif  // XLA_GPU_OPS_PAGED_CACHE_CPU_AMX_H_
