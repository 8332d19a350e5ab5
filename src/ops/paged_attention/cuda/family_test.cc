// Which families take a problem.
#include "src/ops/paged_attention/cuda/family.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/ops/paged_attention/cuda/config_testing.h"

namespace xla_gpu::paged_attention {
namespace {

TEST(Family, TypesChooseIt) {
  const auto family = [](DType query, DType cache) {
    return Choose(MakeProblem(query, cache), kH200).families.back();
  };
  EXPECT_EQ(family(DType::kF16, DType::kF8E5M2), &kSm80);
  EXPECT_EQ(family(DType::kF32, DType::kF32), &kSm80);
  // Neither bf16 nor f16 holds the other, or f32.
  EXPECT_EQ(family(DType::kF32, DType::kBF16), &kSimt);
  EXPECT_EQ(family(DType::kBF16, DType::kF32), &kSimt);
  EXPECT_EQ(family(DType::kBF16, DType::kF16), &kSimt);
  EXPECT_EQ(family(DType::kF32, DType::kF8E4M3FN), &kSimt);
}

TEST(Family, EachTakesWhatThoseBeforeThemLeave) {
  using Families = std::vector<const Family*>;
  const auto families = [](const Problem& problem, const cuda::DeviceInfo& device,
                           bool aligned = true) {
    return ChooseConfig(problem, device, aligned)->families;
  };
  for (const Problem& problem : {MakeProblem(), MakeChunks(), MakePrefill()}) {
    EXPECT_EQ(families(problem, kH200), (Families{&kSm90, &kSm80}));
    EXPECT_EQ(families(problem, kH200, /*aligned=*/false), Families{&kSimt});
    for (const cuda::DeviceInfo& device : {kA100, kL40, kB200}) {
      EXPECT_EQ(families(problem, device), Families{&kSm80});
    }
  }
  EXPECT_EQ(families(MakePrefill(DType::kBF16, 320), kH200), Families{&kSm80});
  EXPECT_EQ(families(MakeProblem(DType::kF32, DType::kBF16), kH200), Families{&kSimt});
}

}  // namespace
}  // namespace xla_gpu::paged_attention
