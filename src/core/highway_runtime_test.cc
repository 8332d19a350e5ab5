#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <cstdint>

namespace xla_gpu {
namespace {

TEST(HighwayRuntime, WhatTheBuildAssumesIsThere) {
  EXPECT_NE(hwy::SupportedTargets() & HWY_STATIC_TARGET, 0);
  EXPECT_EQ(&hwy::GetChosenTarget(), &hwy::GetChosenTarget());
}

#if defined(__x86_64__)
TEST(HighwayRuntime, AgreesWithTheCompiler) {
  __builtin_cpu_init();
  const int64_t targets = hwy::SupportedTargets();
  EXPECT_EQ((targets & HWY_AVX2) != 0, __builtin_cpu_supports("avx2") &&
                                           __builtin_cpu_supports("fma") &&
                                           __builtin_cpu_supports("bmi2"));
  EXPECT_EQ((targets & HWY_AVX3) != 0,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
}
#endif

TEST(HighwayRuntime, MemoryIsAligned) {
  for (size_t n : {1, 127, 128, 1000}) {
    const auto memory = hwy::AllocateAligned<uint8_t>(n);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % HWY_ALIGNMENT, 0);
    memory[n - 1] = 1;
  }
}

}  // namespace
}  // namespace xla_gpu
