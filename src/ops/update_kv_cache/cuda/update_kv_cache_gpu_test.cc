// update_kv_cache on a GPU against the Host, bit for bit; skipped where there is no GPU.
// XLA_GPU_TEST_CASES and XLA_GPU_TEST_GUARDS as in paged_attention_gpu_test.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/core/op_registry.h"
#include "src/core/thread_pool.h"
#include "src/cuda/gpu_call_testing.h"
#include "src/ops/paged_cache/owned_tensor.h"

namespace xla_gpu::update_kv_cache {
namespace {

using cuda::CasesPerKind;
using paged_cache::IntegersOf;
using paged_cache::OwnedTensor;

// The rest of a problem is random.
struct Kind {
  DType input, cache;
  int64_t heads, dim;
};

void ExpectRight(const Kind& kind, int64_t tokens, int64_t pages, int64_t page_size, bool shifted,
                 std::mt19937_64& rng) {
  const Op& op = **OpRegistry::Global().Get("update_kv_cache");
  const auto in = IntegersOf(rng);
  const auto [input, cache, heads, dim] = kind;
  const int layout = static_cast<int>(in(0, 2));
  std::vector<OwnedTensor> args;
  for (int i = 0; i < 2; ++i) args.emplace_back(input, std::vector<int64_t>{tokens, heads, dim});
  const std::vector<int64_t> shapes[] = {{pages, page_size, 2 * heads, dim},
                                         {pages, page_size, heads, dim},
                                         {2, pages, page_size, heads, dim}};
  args.emplace_back(cache, shapes[layout]);
  args.emplace_back(in(0, 1) == 0 ? DType::kI32 : DType::kI64, std::vector<int64_t>{tokens});
  std::string optional;
  if (layout == 1) {
    args.emplace_back(cache, shapes[layout]);
    optional = "v_cache";
  }
  if (in(0, 1) == 0) {
    const std::vector<int64_t> scales[] = {{1}, {heads}, {pages, page_size, heads}};
    args.emplace_back(DType::kF32, scales[in(0, 2)]);
    optional += optional.empty() ? "k_scale" : ",k_scale";
  }
  std::normal_distribution<double> normal(0, 100);
  std::vector<double> numbers(1 << 14);
  for (double& number : numbers) number = normal(rng);
  for (OwnedTensor& arg : args) {
    for (int64_t i = 0; i < arg.size(); ++i) arg.Set(i, numbers[rng() % numbers.size()]);
  }
  if (optional.ends_with("k_scale")) {
    for (int64_t i = 0; i < args.back().size(); ++i) args.back().Set(i, 0.3 + 0.2 * double(i));
  }
  // Some slots several times, of which the last stays, and some wrong ones.
  for (int64_t i = 0; i < tokens; ++i) {
    int64_t slot = in(0, pages * page_size - 1);
    if (in(0, 9) == 0) slot = in(0, 1) == 0 ? -in(1, 1 << 30) : pages * page_size + in(0, 1 << 30);
    if (args[3].dtype == DType::kI32) {
      args[3].ints()[i] = static_cast<int32_t>(slot);
    } else {
      reinterpret_cast<int64_t*>(args[3].data.get())[i] = slot;
    }
  }
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("optional_args", std::string_view(optional)).ok());
  std::vector<TensorView> views;
  for (const OwnedTensor& arg : args) views.push_back(arg.view());
  const bool in_place = in(0, 1) == 0;
  const auto got = cuda::RunOnGpu(op, {views, {}, &attributes},
                                  in_place ? std::vector<int>{2, 4} : std::vector<int>{}, nullptr,
                                  shifted ? &rng : nullptr);
  ASSERT_TRUE(got.ok()) << got.status().ToString();

  std::vector<TensorView> results = {views[2]};
  if (layout == 1) results.push_back(views[4]);
  ExecutionContext context;
  context.thread_pool = &DefaultThreadPool();
  const Status host = RunOp(op, Platform::kHost, {views, results, &attributes}, context);
  ASSERT_TRUE(host.ok()) << host.ToString();
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_TRUE((*got)[i] == cuda::HostBytes(results[i]))
        << views[0].ToString() << " into " << views[2].ToString() << " optional '" << optional
        << "'";
  }
}

class UpdateKvCacheGpuTest : public cuda::GpuTest {};

TEST_F(UpdateKvCacheGpuTest, EqualsTheHost) {
  const DType inputs[] = {DType::kF32, DType::kBF16, DType::kF16};
  const DType caches[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN, DType::kF8E5M2};
  for (int seed = 0; seed < 3 * CasesPerKind(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    const auto in = IntegersOf(rng);
    const DType input = inputs[in(0, 2)], cache = caches[in(0, 4)];
    const int64_t tokens = in(0, in(0, 9) == 0 ? 3000 : 70), heads = in(1, 5), dim = in(1, 140),
                  pages = in(1, 9), page_size = in(1, 20);
    ExpectRight({input, cache, heads, dim}, tokens, pages, page_size, seed % 3 == 0, rng);
    if (HasFatalFailure()) return;
  }
}

// So many that Hopper has a kernel for them, but for tokens that are no multiple of 16 bytes: rows
// of a few elements, of which blocks take many tokens, and such that a piece of the ring is less
// than a token or ends within a head; in slots of which most, some or few come again.
TEST_F(UpdateKvCacheGpuTest, ManyTokensEqualTheHost) {
  const Kind kinds[] = {
      {DType::kBF16, DType::kBF16, 8, 128},   {DType::kF16, DType::kF16, 3, 5},
      {DType::kBF16, DType::kBF16, 1, 8},     {DType::kF16, DType::kF16, 16, 3},
      {DType::kF32, DType::kF8E4M3FN, 2, 96}, {DType::kF32, DType::kF32, 40, 512},
      {DType::kBF16, DType::kF8E5M2, 5, 80},  {DType::kF16, DType::kF32, 1, 24},
  };
  for (int seed = 0; seed < std::max(1, CasesPerKind() / 10); ++seed) {
    for (const Kind& kind : kinds) {
      SCOPED_TRACE(seed);
      std::mt19937_64 rng(seed);
      const auto in = IntegersOf(rng);
      const int64_t token_bytes = 2 * kind.heads * kind.dim * DTypeSize(kind.input);
      const int64_t tokens = (int64_t{8} << 20) / token_bytes * in(100, 130) / 100 + in(1, 9);
      const int64_t page_size = in(1, 20), pages = tokens * in(2, 40) / (10 * page_size) + 1;
      ExpectRight(kind, tokens, pages, page_size, seed % 4 == 3, rng);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace xla_gpu::update_kv_cache
