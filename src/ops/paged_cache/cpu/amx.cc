#include "src/ops/paged_cache/cpu/amx.h"

#include <initializer_list>

#include "src/ops/paged_cache/cpu/instruction_set.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace xla_gpu::paged_cache {
namespace {

#if defined(__x86_64__) && defined(__linux__)

// Linux gives a process the state of tiles when it asks; not if a thread's stack for signals is too
// small for it, nor before Linux 5.16. Asking twice does no harm.
bool MayUseTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  enum : int { kUnknown, kNo, kYes };
  constinit static std::atomic<int> known{kUnknown};
  int answer = known.load(std::memory_order_relaxed);
  if (answer == kUnknown) {
    answer = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? kYes : kNo;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == kYes;
}

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Products of few columns have their sums in tiles 0 and 1, b in 2; those of few rows sums in 3 and
// 4, a in 5. Whole tiles, 6 and 7, are the other operand.
void Begin(int64_t few) {
  TileConfig config;
  if (few != 0) {
    for (const int tile : {0, 1, 2}) config.row_bytes[tile] = static_cast<uint16_t>(4 * few);
    for (const int tile : {3, 4, 5}) config.rows[tile] = static_cast<uint8_t>(few);
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

// A thread that keeps tiles makes each switch to another one longer.
void End() { __asm__ volatile("tilerelease"); }

#define XLA_GPU_TILE_LOAD(tile, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define XLA_GPU_TILE_STORE(tile, to, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(stride) : "memory")
#define XLA_GPU_TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define XLA_GPU_TILE_MULTIPLY(c, a, b) \
  __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

void MultiplyFewColumns(const AmxProduct& p) {
  const int64_t a_stride = p.lda * 4, b_stride = p.ldb * 4, c_stride = p.ldc * 4;
  const float* b = p.b;
  const float* const second_a = kAmxRows * p.lda + p.a;
  XLA_GPU_TILE_ZERO(0);
  XLA_GPU_TILE_ZERO(1);
  for (int64_t k = 0; k < p.depth; k += kAmxWords, b += kAmxWords * p.ldb) {
    XLA_GPU_TILE_LOAD(2, b, b_stride);
    XLA_GPU_TILE_LOAD(6, p.a + k, a_stride);
    XLA_GPU_TILE_MULTIPLY(0, 6, 2);
    XLA_GPU_TILE_LOAD(7, second_a + k, a_stride);
    XLA_GPU_TILE_MULTIPLY(1, 7, 2);
  }
  XLA_GPU_TILE_STORE(0, p.c, c_stride);
  XLA_GPU_TILE_STORE(1, kAmxRows * p.ldc + p.c, c_stride);
}

void MultiplyFewRows(const AmxProduct& p) {
  const int64_t a_stride = p.lda * 4, b_stride = p.ldb * 4, c_stride = p.ldc * 4;
  const float* b = p.b;
  XLA_GPU_TILE_LOAD(3, p.c, c_stride);
  XLA_GPU_TILE_LOAD(4, p.c + kAmxWords, c_stride);
  for (int64_t k = 0; k < p.depth; k += kAmxWords, b += kAmxWords * p.ldb) {
    XLA_GPU_TILE_LOAD(5, p.a + k, a_stride);
    XLA_GPU_TILE_LOAD(6, b, b_stride);
    XLA_GPU_TILE_MULTIPLY(3, 5, 6);
    XLA_GPU_TILE_LOAD(7, b + kAmxWords, b_stride);
    XLA_GPU_TILE_MULTIPLY(4, 5, 7);
  }
  XLA_GPU_TILE_STORE(3, p.c, c_stride);
  XLA_GPU_TILE_STORE(4, p.c + kAmxWords, c_stride);
}

// Sums lie in tiles 0 and 1, of the second 16 rows in 2 and 3; a in 4 and 5, b in 6 and 7.
void Multiply(const AmxProduct& p) {
  if (p.cols < 2 * kAmxWords) return MultiplyFewColumns(p);
  if (p.rows < kAmxRows) return MultiplyFewRows(p);
  const int64_t a_stride = p.lda * 4, b_stride = p.ldb * 4, c_stride = p.ldc * 4;
  const float* a = p.a;
  const float* b = p.b;
  const bool two = p.rows > kAmxRows;
  const float* const second_a = two ? kAmxRows * p.lda + a : a;
  float* const second_c = kAmxRows * p.ldc + p.c;
  if (p.adds) {
    XLA_GPU_TILE_LOAD(0, p.c, c_stride);
    XLA_GPU_TILE_LOAD(1, p.c + kAmxWords, c_stride);
    if (two) {
      XLA_GPU_TILE_LOAD(2, second_c, c_stride);
      XLA_GPU_TILE_LOAD(3, second_c + kAmxWords, c_stride);
    }
  } else {
    XLA_GPU_TILE_ZERO(0);
    XLA_GPU_TILE_ZERO(1);
    XLA_GPU_TILE_ZERO(2);
    XLA_GPU_TILE_ZERO(3);
  }
  for (int64_t k = 0; k < p.depth; k += kAmxWords, b += kAmxWords * p.ldb) {
    XLA_GPU_TILE_LOAD(6, b, b_stride);
    XLA_GPU_TILE_LOAD(4, a + k, a_stride);
    XLA_GPU_TILE_MULTIPLY(0, 4, 6);
    XLA_GPU_TILE_LOAD(7, b + kAmxWords, b_stride);
    XLA_GPU_TILE_MULTIPLY(1, 4, 7);
    if (two) {
      XLA_GPU_TILE_LOAD(5, second_a + k, a_stride);
      XLA_GPU_TILE_MULTIPLY(2, 5, 6);
      XLA_GPU_TILE_MULTIPLY(3, 5, 7);
    }
  }
  XLA_GPU_TILE_STORE(0, p.c, c_stride);
  XLA_GPU_TILE_STORE(1, p.c + kAmxWords, c_stride);
  if (two) {
    XLA_GPU_TILE_STORE(2, second_c, c_stride);
    XLA_GPU_TILE_STORE(3, second_c + kAmxWords, c_stride);
  }
}

#else

bool MayUseTiles() { return false; }
void Begin(int64_t) {}
void Multiply(const AmxProduct&) {}
void End() {}

#endif

}  // namespace

constexpr AmxUnit kProcessorsAmx{&MayUseTiles, &Begin, &Multiply, &End};

const AmxUnit* UsableAmx() {
  if (!MayUse(InstructionSet::kAmx)) return nullptr;
  const AmxUnit* const unit = amx_in_use.load(std::memory_order_relaxed);
  return unit->may_use() ? unit : nullptr;
}

bool UsesBF16Products() {
  return MayUse(InstructionSet::kAmx) ? UsableAmx() != nullptr : MayUse(InstructionSet::kAvx3BF16);
}

}  // namespace xla_gpu::paged_cache
