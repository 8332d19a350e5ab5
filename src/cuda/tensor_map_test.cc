// What the copy engine takes, by the rules of the driver's documentation.
#include "src/cuda/tensor_map.h"

#include <gtest/gtest.h>

namespace xla_gpu::cuda {
namespace {

TensorMapSpec MakeSpec() {
  return {{64, 8, 32, 2, 4096}, {4096, 128, 32768, 65536}, {64, 8, 2, 2, 1}};
}

TEST(TensorMap, TakesPagesOfACache) { EXPECT_TRUE(IsAccepted(MakeSpec())); }

TEST(TensorMap, StridesAreMultiplesOf16Below2To40) {
  for (const auto& [stride, accepted] : {std::pair{uint64_t{4104}, false},
                                         {uint64_t{4112}, true},
                                         {uint64_t{0}, true},
                                         {(uint64_t{1} << 40) - 16, true},
                                         {uint64_t{1} << 40, false}}) {
    TensorMapSpec spec = MakeSpec();
    spec.strides[0] = stride;
    EXPECT_EQ(IsAccepted(spec), accepted) << stride;
  }
}

TEST(TensorMap, DimensionsAreFrom1To2To32) {
  for (const auto& [dim, accepted] : {std::pair{uint64_t{0}, false},
                                      {uint64_t{1} << 32, true},
                                      {(uint64_t{1} << 32) + 1, false}}) {
    TensorMapSpec spec = MakeSpec();
    spec.dims[4] = dim;
    EXPECT_EQ(IsAccepted(spec), accepted) << dim;
  }
}

TEST(TensorMap, BoxesAreSmall) {
  TensorMapSpec spec = MakeSpec();
  spec.box[3] = 256;
  EXPECT_TRUE(IsAccepted(spec));
  spec.box[3] = 257;
  EXPECT_FALSE(IsAccepted(spec));
  spec = MakeSpec();
  spec.box[0] = 128;  // 256 bytes: more than the swizzle spans
  EXPECT_FALSE(IsAccepted(spec));
}

}  // namespace
}  // namespace xla_gpu::cuda
