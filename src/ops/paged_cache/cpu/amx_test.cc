// Products of tiles against f64, by the processor's AMX where it has it, and as tests emulate it.
#include "src/ops/paged_cache/cpu/amx.h"

#include <cstdio>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "src/core/float_types.h"
#include "src/ops/paged_cache/cpu/amx_emulated.h"

namespace xla_gpu::paged_cache {
namespace {

// Words of two random bf16, the halves of which `values` has as numbers.
struct Words {
  Words(int64_t rows, int64_t stride, std::mt19937_64& rng)
      : bits(static_cast<size_t>(2 * rows * stride)) {
    std::normal_distribution<float> normal;
    for (uint16_t& half : bits) half = FloatToBF16(normal(rng));
  }
  const float* words() const { return reinterpret_cast<const float*>(bits.data()); }
  double At(int64_t word, int64_t half) const {
    return BF16ToFloat(bits[static_cast<size_t>(2 * word + half)]);
  }
  std::vector<uint16_t> bits;
};

void ExpectRightProducts(const AmxUnit& unit, int64_t rows, int64_t cols, bool adds) {
  std::mt19937_64 rng(1);
  for (const int64_t depth : {kAmxWords, 4 * kAmxWords}) {
    const int64_t lda = depth + 16, ldb = 48, ldc = 40;
    const Words a(rows, lda, rng), b(depth, ldb, rng);
    std::vector<float> c(static_cast<size_t>(rows * ldc), 3.0f);
    unit.multiply({a.words(), lda, b.words(), ldb, depth, c.data(), ldc, rows, adds, cols});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < ldc; ++j) {
        double want = adds || j >= cols ? 3 : 0;
        for (int64_t k = 0; j < cols && k < depth; ++k) {
          for (int half = 0; half < 2; ++half) {
            want += a.At(i * lda + k, half) * b.At(k * ldb + j, half);
          }
        }
        ASSERT_NEAR(c[static_cast<size_t>(i * ldc + j)], want, 2e-5)
            << rows << " rows, " << cols << " columns, depth " << depth << ", " << i << ", " << j;
      }
    }
  }
}

void ExpectRightProducts(const AmxUnit& unit) {
  unit.begin(0);
  for (const int64_t rows : {kAmxRows, 2 * kAmxRows}) {
    for (const bool adds : {false, true}) ExpectRightProducts(unit, rows, 2 * kAmxWords, adds);
  }
  unit.end();
  for (const int64_t few : {1, 4, 8, 15}) {
    unit.begin(few);
    ExpectRightProducts(unit, few, 2 * kAmxWords, true);
    ExpectRightProducts(unit, 2 * kAmxRows, few, false);
    unit.end();
  }
}

TEST(Amx, ProductsAreRight) {
  ExpectRightProducts(kEmulatedAmx);
  const AmxUnit* const unit = UsableAmx();
  std::printf("this processor's AMX %s\n", unit != nullptr ? "is used" : "may not be used");
  if (unit != nullptr) ExpectRightProducts(*unit);
}

// Subnormal elements count as 0, as in vdpbf16ps.
TEST(Amx, SubnormalElementsAreZero) {
  for (const AmxUnit* unit : {&kEmulatedAmx, UsableAmx()}) {
    if (unit == nullptr) continue;
    std::vector<uint16_t> a(2 * kAmxRows * kAmxWords, 1), b(4 * kAmxWords * kAmxWords, 0x7f00);
    std::vector<float> c(kAmxRows * 2 * kAmxWords, 1.0f);
    unit->begin(0);
    unit->multiply({reinterpret_cast<const float*>(a.data()), kAmxWords,
                    reinterpret_cast<const float*>(b.data()), 2 * kAmxWords, kAmxWords, c.data(),
                    2 * kAmxWords, kAmxRows, true});
    unit->end();
    for (const float x : c) ASSERT_EQ(x, 1.0f);
  }
}

}  // namespace
}  // namespace xla_gpu::paged_cache
