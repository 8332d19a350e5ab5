// A form of the Host kernels that was not compiled in would only make them slow: nothing else
// tells.
#include "src/ops/paged_cache/cpu/targets.h"

#include "gtest/gtest.h"

namespace xla_gpu {
namespace {

#if HWY_ARCH_X86
// Wider targets have lower numbers. A build for a processor with AVX-512 has its form alone.
TEST(Targets, HaveAvx2AndAvx3) {
  EXPECT_TRUE(XLA_GPU_HAS_AVX3 || HWY_STATIC_TARGET <= HWY_AVX3);
  EXPECT_TRUE(XLA_GPU_HAS_AVX2 || HWY_STATIC_TARGET <= HWY_AVX2);
}
#else
TEST(Targets, HaveVectors) {
  EXPECT_NE(HWY_STATIC_TARGET, HWY_SCALAR);
  EXPECT_NE(HWY_STATIC_TARGET, HWY_EMU128);
}
#endif

}  // namespace
}  // namespace xla_gpu
