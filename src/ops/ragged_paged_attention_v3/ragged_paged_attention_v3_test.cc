// The op on the Host against what it is made of: the cache bit for bit, out against the fp64
// reference over the cache that the call leaves. Types and messages are tested through JAX
// (tests/jax/test_ragged_v3.py).
#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/ops/paged_attention/reference.h"
#include "src/ops/ragged_paged_attention_v3/random_case.h"

namespace xla_gpu::ragged_paged_attention_v3 {
namespace {

Case RandomCase(uint64_t seed, std::mt19937_64& rng) {
  CaseSpec spec = paged_attention::RandomSpec(rng);
  const bool side_by_side = seed % 3 == 0;
  if (side_by_side) spec.head_dim = 64;
  return Case(std::move(spec), side_by_side, /*update=*/seed % 5 != 0, rng);
}

std::vector<char> Bytes(const OwnedTensor& tensor) {
  return {tensor.data.get(), tensor.data.get() + tensor.view().size_bytes()};
}

double Tolerance(DType out) { return out == DType::kF32 ? 2e-5 : out == DType::kF16 ? 4e-3 : 3e-2; }

void ExpectRight(Case& c, bool in_place, const std::string& what) {
  const std::vector<char> expected_cache = c.ExpectedCache();
  const std::vector<char> before = Bytes(c.kv_cache);
  const Status status = c.Run(in_place, DefaultThreadPool());
  ASSERT_TRUE(status.ok()) << status.ToString();
  const OwnedTensor& cache = in_place ? c.kv_cache : c.new_cache;
  ASSERT_EQ(Bytes(cache), expected_cache) << what;
  if (!in_place) {
    ASSERT_EQ(Bytes(c.kv_cache), before) << what;
  }

  const Problem problem = c.problem();
  std::vector<double> expected(static_cast<size_t>(c.out.size()));
  paged_attention::PagedAttentionReference(
      problem.attention, BuffersFromCall(problem, c.call()).attention, expected.data(), nullptr);
  for (int64_t i = 0; i < c.out.size(); ++i) {
    const double want = expected[static_cast<size_t>(i)], got = c.out.Get(i);
    if (paged_attention::SameNonFinite(want, got)) continue;
    ASSERT_LE(std::fabs(got - want), Tolerance(c.out.dtype) * std::max(1.0, std::fabs(want)))
        << what << ": out[" << i << "] is " << got << ", expected " << want;
  }
}

TEST(RaggedPagedAttentionV3, WritesAndAttendsOnRandomProblems) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 rng(seed);
    Case c = RandomCase(seed, rng);
    ExpectRight(c, seed % 2 == 0, StrCat("seed ", seed, ": ", c.ToString()));
    if (HasFatalFailure()) return;
  }
}

TEST(RaggedPagedAttentionV3, WrongIndicesAreNeverFollowed) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 rng(seed);
    Case c = RandomCase(seed, rng);
    PutWrong(c, rng);
    ExpectRight(c, seed % 2 == 0, StrCat("seed ", seed, ": ", c.ToString()));
    if (HasFatalFailure()) return;
  }
}

TEST(RaggedPagedAttentionV3, APromiseReachesItsAttention) {
  std::mt19937_64 rng(7);
  CaseSpec spec;
  spec.query_lens = {1, 3};
  spec.context_lens = {4, 40};
  EXPECT_EQ(Case(spec, false, true, rng).problem().attention.max_query_len, 0);
  spec.max_query_len = 3;
  EXPECT_EQ(Case(spec, false, true, rng).problem().attention.max_query_len, 3);
}

TEST(RaggedPagedAttentionV3, PaddingOfHeadsAndHeadDimStaysAsItWas) {
  std::mt19937_64 rng(7);
  CaseSpec spec;
  spec.query_dtype = DType::kBF16;
  spec.cache_dtype = DType::kF8E4M3FN;
  spec.kv_heads = 3;  // of eight packed rows six are used
  spec.head_dim = 80;
  spec.query_lens = {5, 1};
  spec.context_lens = {5, 40};
  Case c(spec, false, true, rng);
  char* cache = c.kv_cache.data.get();
  for (int64_t i = 0; i < c.kv_cache.size(); ++i) {
    if (i % 128 >= 80 || i / 128 % 8 >= 6) cache[i] = static_cast<char>(i * 31);
  }
  ExpectRight(c, true, "padding");
}

TEST(RaggedPagedAttentionV3, ResultTypes) {
  std::mt19937_64 rng(1);
  CaseSpec spec;
  spec.query_lens = {3};
  spec.context_lens = {20};
  spec.out_dtype = "bf16";
  const Case c(spec, false, true, rng);
  const Op& op = **OpRegistry::Global().Get(kName);
  const Call call = c.call();
  const auto host = *InferTypes(op, Platform::kHost, {call.args, {}, call.attributes});
  ASSERT_EQ(host.size(), 2u);
  EXPECT_EQ(host[0], (TensorSpec{DType::kBF16, {6, 8, 64}}));
  EXPECT_EQ(host[1], (TensorSpec{DType::kF32, {35, 16, 4, 1, 128}}));
  const auto cuda = *InferTypes(op, Platform::kCuda, {call.args, {}, call.attributes});
  ASSERT_EQ(cuda.size(), 3u);
  EXPECT_EQ(cuda[2].dtype, DType::kU8);
}

}  // namespace
}  // namespace xla_gpu::ragged_paged_attention_v3
