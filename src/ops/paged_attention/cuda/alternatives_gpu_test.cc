// Every choice that a table may make (tuning.h) gives right results: random problems, each in all
// ways in which its call may run, against the fp64 reference; skipped where there is no GPU.
// XLA_GPU_TEST_CASES and XLA_GPU_TEST_GUARDS as in paged_attention_gpu_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "src/ops/paged_attention/cuda/config_testing.h"
#include "src/ops/paged_attention/cuda/gpu_reference_testing.h"
#include "src/ops/paged_attention/cuda/tuning.h"

namespace xla_gpu::paged_attention {
namespace {

// Decode alone, or with a sequence of more tokens.
CaseSpec DecodeSpec(const Kind& kind, std::mt19937_64& rng) {
  const auto in = IntegersOf(rng);
  CaseSpec spec = SpecOf(kind, rng);
  spec.kv_heads = in(1, 3);
  spec.group_size = in(0, 1) == 0 ? 8 : in(1, 12);
  spec.page_size = PageSize(in);
  spec.k_scale_size = spec.v_scale_size = IsFloat8(kind.cache) ? 1 : 0;
  spec.padding_rows = in(0, 2);
  spec.query_lens.clear();
  spec.context_lens.clear();
  const bool mixed = in(0, 2) == 0;
  const int64_t longest = in(0, 3) == 0 ? 1500 : 250;
  for (int64_t i = mixed ? in(5, 9) : in(0, 7); i > 0; --i) {
    spec.query_lens.push_back(in(0, 3) == 0 ? in(0, 2) : 1);
    spec.context_lens.push_back(in(0, 9) == 0 ? 0 : in(1, longest));
  }
  if (mixed) {
    spec.group_size = 8;
    spec.query_lens.push_back(in(16, 24));
    spec.context_lens.push_back(in(1, longest));
  }
  spec.max_seqs = static_cast<int64_t>(spec.query_lens.size()) + in(mixed ? 0 : 1, 2);
  spec.max_pages = longest / spec.page_size + 1;
  if (!mixed && in(0, 2) == 0) MakeServedStep(spec, longest, in);
  return spec;
}

class AlternativesGpuTest : public cuda::GpuTest, public testing::WithParamInterface<Kind> {};

TEST_P(AlternativesGpuTest, AgreeWithReference) {
  const cuda::DeviceInfo device = **cuda::GetDeviceInfo(0);
  const Kind& kind = GetParam();
  std::map<std::string, int> runs;
  Errors errors;
  for (const uint64_t seed : cuda::Seeds(cuda::CasesPerKind())) {
    std::mt19937_64 rng(seed);
    Case c(DecodeSpec(kind, rng), rng);
    const Problem problem = *ProblemFromCall(c.call());
    std::vector<std::unique_ptr<Plan>> plans;
    std::string names;
    const std::vector<Config> configs = *Alternatives(problem, device);
    for (const Config& config : configs) {
      auto plan = MakeCudaPlan(problem, config, 0);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      plans.push_back(*std::move(plan));
      names += NameOf(config) + " ";
      ++runs[NameOf(config)];
    }
    ExpectReference(kind, c, errors, plans);
    ASSERT_FALSE(HasFailure()) << names << "\nseed " << seed << "\n" << c.spec().ToString();
  }
  for (const auto& [name, count] : runs) std::printf("%s: %d runs\n", name.c_str(), count);
  std::printf("worst error %.2f half ulps\n", errors.worst);
  if (device.Arch() != "sm_90a" || !device.tensor_maps || cuda::CasesPerKind() < 40) return;
  for (const char* name : {"cluster1", "cluster2", "cluster8", "decode", "attend", "attend+decode",
                           "prefill+attend", "prefill+attend+decode"}) {
    const bool fp8 = IsFloat8(kind.cache);  // which has no launch of its own beside others
    EXPECT_TRUE(runs[name] > 0 || fp8 || kind.head_dim > 128) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, AlternativesGpuTest,
                         testing::Values(Kind{DType::kBF16, DType::kBF16, "", 128, false},
                                         Kind{DType::kF16, DType::kF16, "f32", 64, true},
                                         Kind{DType::kBF16, DType::kF8E4M3FN, "", 128, false},
                                         Kind{DType::kBF16, DType::kBF16, "", 256, false},
                                         Kind{DType::kBF16, DType::kBF16, "", 192, false},
                                         Kind{DType::kF16, DType::kF16, "", 96, false}));

// Prefill over fp8 or f32, with copies of all sequences with many rows, of the first of them, and
// of none: all are right, whatever fits.
class CopiesGpuTest : public cuda::GpuTest, public testing::WithParamInterface<Kind> {};

TEST_P(CopiesGpuTest, AgreeWithReference) {
  const cuda::DeviceInfo device = **cuda::GetDeviceInfo(0);
  if (device.Arch() != "sm_90a" || !device.tensor_maps) GTEST_SKIP() << "nothing is copied";
  const Kind& kind = GetParam();
  Errors errors;
  int64_t copied = 0, left_out = 0;
  for (const uint64_t seed : cuda::Seeds(cuda::CasesPerKind())) {
    std::mt19937_64 rng(seed);
    const auto in = IntegersOf(rng);
    CaseSpec spec = SpecOf(kind, rng);
    spec.layout = static_cast<Layout>(in(0, 2));
    spec.kv_heads = in(1, 3);
    spec.group_size = in(1, 8);
    spec.page_size = PageSize(in);
    if (spec.k_scale_size > 1) spec.k_scale_size = spec.kv_heads;
    if (spec.v_scale_size > 1) spec.v_scale_size = spec.kv_heads;
    spec.disorder = in(0, 9) == 0;
    if (in(0, 2) == 0) spec.sliding_window = in(30, 400);
    spec.query_lens.clear();
    spec.context_lens.clear();
    const int64_t longest = in(0, 3) == 0 ? 2000 : 400;
    const int64_t sequences = in(0, 9) == 0 ? in(33, 40) : in(1, 6);
    for (int64_t i = 0; i < sequences; ++i) {
      // Some decode, some have few rows, some are prompts.
      const int64_t queries = in(0, 3) == 0 ? 1 : in(0, 2) == 0 ? in(0, 30) : in(30, 150);
      spec.query_lens.push_back(sequences > 32 ? queries / 3 : queries);
      spec.context_lens.push_back(in(0, 1) == 0 ? spec.query_lens.back() : in(0, longest));
    }
    spec.max_seqs = sequences + in(0, 2);
    spec.max_pages = longest / spec.page_size + 1;
    Case c(spec, rng);
    if (in(0, 4) == 0) c.block_tables.ints()[in(0, spec.max_pages - 1)] = 1 << 20;
    const Problem problem = *ProblemFromCall(c.call());
    Config config = Choose(problem, device);
    std::vector<std::unique_ptr<Plan>> plans;
    const int64_t room = config.copy_tokens;
    for (const int64_t tokens : {room, in(0, room / kCopyTokens / 2) * kCopyTokens, int64_t{0}}) {
      config.copy_tokens = tokens;
      plans.push_back(*MakeCudaPlan(problem, config, 0));
      ++(tokens > 0 ? copied : left_out);
    }
    ExpectReference(kind, c, errors, plans);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << c.spec().ToString();
  }
  std::printf("%d runs with copies, %d without, worst error %.2f half ulps\n",
              static_cast<int>(copied), static_cast<int>(left_out), errors.worst);
  EXPECT_TRUE(copied > 0 || cuda::CasesPerKind() < 10);
}

INSTANTIATE_TEST_SUITE_P(, CopiesGpuTest,
                         testing::Values(Kind{DType::kBF16, DType::kF8E4M3FN, "", 128, false},
                                         Kind{DType::kF16, DType::kF8E5M2, "", 128, true},
                                         Kind{DType::kF16, DType::kF8E4M3FN, "bf16", 64, false},
                                         Kind{DType::kBF16, DType::kF8E5M2, "", 64, true},
                                         Kind{DType::kF32, DType::kF32, "", 128, false},
                                         Kind{DType::kF32, DType::kF32, "", 64, true}));

}  // namespace
}  // namespace xla_gpu::paged_attention
