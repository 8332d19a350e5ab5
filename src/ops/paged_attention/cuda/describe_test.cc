// What XLA_GPU_LOG=info says of a choice: the launches, and why there are no others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/ops/paged_attention/cuda/config_testing.h"

namespace xla_gpu::paged_attention {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Said(const Problem& problem, const cuda::DeviceInfo& device = kH200) {
  const std::string text = Describe(problem, Choose(problem, device));
  EXPECT_EQ(text.find('\n'), std::string::npos);
  return text;
}

TEST(Describe, NamesTheLaunchesOfDecode) {
  EXPECT_THAT(Said(MakeProblem()),
              AllOf(HasSubstr("bf16[64,32,128], bf16 cache of 8 kv heads, pages of 16, room for 64 "
                              "sequences of 4096 keys: schedule.cu, 1 blocks of 128 threads; "
                              "decode_sm90.cu, 132 blocks of "),
                    HasSubstr(" ranges of decode work; no prefill launch: decode takes all"),
                    Not(HasSubstr("attend"))));
}

TEST(Describe, ClustersHaveNoSchedule) {
  Problem one = MakeProblem();
  one.tokens = one.max_seqs = 1;
  EXPECT_THAT(Said(one), AllOf(HasSubstr("decode_cluster_sm90.cu"), Not(HasSubstr("schedule")),
                               HasSubstr("clusters of 8 share a head")));
}

TEST(Describe, MixedBatchesHaveThreeLaunches) {
  EXPECT_THAT(Said(MakeChunks()), AllOf(HasSubstr("prefill_sm90.cu"), HasSubstr("attend_sm80.cu"),
                                        HasSubstr("decode_sm90.cu"), Not(HasSubstr("no "))));
}

TEST(Describe, SaysWhyNot) {
  const auto expect = [](const Problem& problem, const char* line, const char* prefill,
                         const cuda::DeviceInfo& device = kH200) {
    const std::string text = Said(problem, device);
    EXPECT_THAT(text, HasSubstr(line));
    EXPECT_THAT(text, HasSubstr(prefill));
  };
  const char* const few = "no prefill launch: room for hardly more than decode";
  expect(MakeProblem(), "no decode launch: not on Hopper", few, kA100);
  expect(MakeProblem(DType::kF32, DType::kF32), "no decode launch: dtypes", few);
  expect(MakeProblem(DType::kBF16, DType::kBF16, 80), "no decode launch: head_dim", few);
  expect(MakeProblem(DType::kBF16, DType::kF8E4M3FN, 64), "head_dim of an fp8 cache", few);
  Problem odd = MakeProblem();
  odd.page_size = 12;
  expect(odd, "ranges of decode work; keys by 16 bytes, not by boxes; ",
         "no prefill launch: decode takes all");
  Problem invariant = MakeProblem();
  invariant.batch_invariant = true;
  expect(invariant, "no decode launch: batch_invariant", few);
  Problem prompts = MakePrefill();
  prompts.max_seqs = 4;
  expect(prompts, "no decode launch: room for few sequences", "pairs of blocks share keys");
  expect(MakePrefill(DType::kF32), "copy_terms.cu, 132 blocks",
         "copies of 16-bit terms, up to 65536 keys");
  expect(MakePrefill(DType::kF32, 256), "attend_sm80.cu", "no prefill launch: head_dim");
  Problem f32 = MakePrefill(DType::kF32);
  f32.batch_invariant = true;
  expect(f32, "attend_sm80.cu", "no prefill launch: no copy of f32");
  Problem mixed = MakePrefill();
  mixed.cache_dtype = DType::kF32;
  expect(mixed, "attend_simt.cu", "no prefill launch: dtypes");
  Problem gathered = MakePrefill();
  gathered.page_size = 12;
  expect(gathered, "prefill_sm90.cu", "keys by 16 bytes, not by boxes");
  Problem scaled = MakePrefill();
  scaled.k_token_scales = true;
  expect(scaled, "no decode launch: scales of tokens", "no prefill launch: scales of tokens");
}

TEST(Describe, TensorsThatStartAnywhere) {
  const Problem problem = MakePrefill();
  EXPECT_THAT(Describe(problem, *ChooseConfig(problem, kH200, /*aligned=*/false)),
              HasSubstr("attend_simt.cu, 320 blocks of 128 threads, 42 KiB; no decode launch: "
                        "unaligned tensors; no prefill launch: unaligned tensors"));
}

// Each launch that is missing has its reason, and no other.
TEST(Describe, ReasonsAreThereWhereLaunchesAreNot) {
  for (const cuda::DeviceInfo& device : {kA100, kL40, kH200, kB200}) {
    for (const int64_t tokens : {1, 64, 128, 4096}) {
      for (const DType cache : {DType::kBF16, DType::kF8E4M3FN, DType::kF32}) {
        Problem problem = MakeProblem(cache == DType::kF32 ? cache : DType::kBF16, cache);
        problem.tokens = tokens;
        const Config config = Choose(problem, device);
        EXPECT_EQ(config.decode_launch, config.why_not_line == nullptr);
        EXPECT_EQ(config.prefill_launch, config.why_not_prefill == nullptr);
      }
    }
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention
