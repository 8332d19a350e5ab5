// Where the elements of each cache layout lie: the strides against the layout's definition.
#include "src/ops/paged_cache/cache_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace xla_gpu::paged_cache {
namespace {

using ::testing::HasSubstr;

StatusOr<CacheShape> Packed(DType dtype, std::vector<int64_t> shape, PackedLayout layout,
                            int64_t kv_heads, int64_t head_dim) {
  return ParsePackedCacheShape("op", {nullptr, dtype, shape}, layout, kv_heads, head_dim);
}

// Row-major position of an element of a rank-5 tensor.
int64_t Flat(const std::vector<int64_t>& shape, const std::vector<int64_t>& index) {
  int64_t at = 0;
  for (size_t i = 0; i < shape.size(); ++i) at = at * shape[i] + index[i];
  return at;
}

TEST(PackedCacheShape, InterleavedIsTheTpuLayout) {
  struct Case {
    DType dtype;
    int64_t packing, kv_heads, head_dim;
    std::vector<int64_t> shape;
  };
  for (const Case& c : {Case{DType::kF32, 1, 3, 128, {5, 16, 6, 1, 128}},
                        Case{DType::kBF16, 2, 3, 80, {5, 16, 3, 2, 128}},
                        Case{DType::kF8E4M3FN, 4, 3, 64, {5, 16, 2, 4, 128}},
                        Case{DType::kF8E5M2, 4, 1, 256, {5, 16, 1, 4, 256}}}) {
    const auto got = Packed(c.dtype, c.shape, PackedLayout::kInterleaved, c.kv_heads, c.head_dim);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(got->kv_heads, c.kv_heads);
    EXPECT_EQ(got->head_dim, c.head_dim);
    EXPECT_EQ(got->num_pages, 5);
    EXPECT_EQ(got->page_size, 16);
    EXPECT_FALSE(got->separate_v);
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      const int64_t k = 2 * head, v = 2 * head + 1, p = c.packing;
      EXPECT_EQ(got->k.At(3, 7, head), Flat(c.shape, {3, 7, k / p, k % p, 0}));
      EXPECT_EQ(got->v.At(3, 7, head), Flat(c.shape, {3, 7, v / p, v % p, 0}));
    }
  }
}

TEST(PackedCacheShape, SideBySideHoldsKAndVInTheHalvesOfARow) {
  const std::vector<int64_t> shape = {5, 16, 2, 2, 128};
  const auto got = Packed(DType::kBF16, shape, PackedLayout::kSideBySide, 3, 64);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  for (int64_t head = 0; head < 3; ++head) {
    EXPECT_EQ(got->k.At(4, 15, head), Flat(shape, {4, 15, head / 2, head % 2, 0}));
    EXPECT_EQ(got->v.At(4, 15, head), Flat(shape, {4, 15, head / 2, head % 2, 64}));
  }
}

TEST(PackedCacheShape, NoTwoElementsShareAPlace) {
  const auto got = Packed(DType::kBF16, {2, 3, 3, 2, 128}, PackedLayout::kInterleaved, 3, 80);
  ASSERT_TRUE(got.ok());
  std::set<int64_t> rows;
  for (int64_t page = 0; page < 2; ++page) {
    for (int64_t token = 0; token < 3; ++token) {
      for (int64_t head = 0; head < 3; ++head) {
        rows.insert(got->k.At(page, token, head));
        rows.insert(got->v.At(page, token, head));
      }
    }
  }
  EXPECT_EQ(rows.size(), 2u * 3 * 3 * 2);
  EXPECT_LE(*rows.rbegin() + 128, 2 * 3 * 3 * 2 * 128);
}

TEST(PackedCacheShape, ErrorsSayTheShapeThatFits) {
  struct Case {
    DType dtype;
    std::vector<int64_t> shape;
    const char* message;
  };
  for (const Case& c : {Case{DType::kBF16, {5, 16, 6, 128}, "[pages, page_size, 3, 2, 128]"},
                        Case{DType::kBF16, {5, 16, 6, 1, 128}, "[pages, page_size, 3, 2, 128]"},
                        Case{DType::kBF16, {5, 16, 3, 2, 80}, "[pages, page_size, 3, 2, 128]"},
                        Case{DType::kF32, {5, 16, 3, 2, 128}, "[pages, page_size, 6, 1, 128]"},
                        Case{DType::kBF16, {5, 0, 3, 2, 128}, "page_size must be 1 to 2^31-1"}}) {
    const auto got = Packed(c.dtype, c.shape, PackedLayout::kInterleaved, 3, 80);
    ASSERT_FALSE(got.ok()) << c.message;
    EXPECT_THAT(got.status().message(), HasSubstr(c.message));
    EXPECT_THAT(got.status().message(), HasSubstr("op: kv_cache is "));
  }
}

}  // namespace
}  // namespace xla_gpu::paged_cache
