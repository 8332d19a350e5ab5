// ragged_paged_attention_v3 on a GPU: the cache bit for bit, out against the fp64 reference over
// it; skipped where there is no GPU. XLA_GPU_TEST_CASES and XLA_GPU_TEST_GUARDS as in
// paged_attention_gpu_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "src/cuda/gpu_call_testing.h"
#include "src/ops/paged_attention/reference.h"
#include "src/ops/ragged_paged_attention_v3/random_case.h"

namespace xla_gpu::ragged_paged_attention_v3 {
namespace {

// What decides which kernels are compiled; everything else of a problem is random.
struct Kind {
  DType query, cache;
  int64_t head_dim;
  bool side_by_side;
};

constexpr Kind kKinds[] = {
    {DType::kBF16, DType::kBF16, 128, false},   {DType::kBF16, DType::kBF16, 80, false},
    {DType::kBF16, DType::kBF16, 256, false},   {DType::kBF16, DType::kBF16, 64, true},
    {DType::kBF16, DType::kF8E4M3FN, 64, true}, {DType::kBF16, DType::kF8E4M3FN, 128, false},
    {DType::kBF16, DType::kF8E5M2, 64, false},  {DType::kF16, DType::kF16, 64, true},
    {DType::kF32, DType::kF32, 128, false},     {DType::kF32, DType::kF32, 64, true},
    {DType::kF32, DType::kBF16, 5, false},      {DType::kBF16, DType::kBF16, 512, false}};

CaseSpec SpecOf(const Kind& kind, std::mt19937_64& rng) {
  CaseSpec spec = paged_attention::RandomSpec(rng);
  spec.query_dtype = kind.query;
  spec.cache_dtype = kind.cache;
  spec.head_dim = kind.head_dim;
  spec.out_dtype = "";
  spec.soft_cap = 0;
  return spec;
}

Case RandomCase(const Kind& kind, std::mt19937_64& rng) {
  CaseSpec spec = SpecOf(kind, rng);
  const bool update = rng() % 6 != 0;
  return Case(std::move(spec), kind.side_by_side, update, rng);
}

double Tolerance(const Kind& kind) { return kind.query == DType::kF32 ? 5e-5 : 3e-2; }

class RaggedPagedAttentionV3GpuTest : public cuda::GpuTest {
 protected:
  void ExpectRight(const Kind& kind, Case& c, bool in_place, const std::string& what,
                   std::mt19937_64* shifts = nullptr) {
    const Op& op = **OpRegistry::Global().Get(kName);
    const std::vector<int> aliases = in_place ? std::vector<int>{-1, 3} : std::vector<int>{};
    const auto got = cuda::RunOnGpu(op, c.call(), aliases, nullptr, shifts);
    ASSERT_TRUE(got.ok()) << got.status().ToString() << "\n" << what;
    ASSERT_EQ((*got)[1], c.ExpectedCache()) << what;

    const Problem problem = c.problem();
    paged_attention::Buffers buffers = BuffersFromCall(problem, c.call()).attention;
    buffers.k_cache = buffers.v_cache = (*got)[1].data();
    std::vector<double> expected(static_cast<size_t>(c.out.size()));
    paged_attention::PagedAttentionReference(problem.attention, buffers, expected.data(), nullptr);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value =
          LoadAsDouble((*got)[0].data(), problem.attention.out_dtype, static_cast<int64_t>(i));
      if (paged_attention::SameNonFinite(expected[i], value)) continue;
      const double allowed = Tolerance(kind) * std::max(1.0, std::fabs(expected[i]));
      ASSERT_LE(std::fabs(value - expected[i]), allowed)
          << what << ": out[" << i << "] is " << value << ", expected " << expected[i];
    }
  }
};

TEST_F(RaggedPagedAttentionV3GpuTest, WritesAndAttendsOnRandomProblems) {
  int cases = 0;
  for (const Kind& kind : kKinds) {
    for (int i = 0; i < cuda::CasesPerKind(); ++i, ++cases) {
      std::mt19937_64 rng(static_cast<uint64_t>(i) + 1);
      Case c = RandomCase(kind, rng);
      ExpectRight(kind, c, i % 2 == 0, StrCat("seed ", i + 1, ": ", c.ToString()));
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%d problems\n", cases);
}

TEST_F(RaggedPagedAttentionV3GpuTest, ServedSteps) {
  for (const Kind& kind : {kKinds[0], kKinds[2], kKinds[3], kKinds[5], kKinds[11]}) {
    for (int i = 0; i < cuda::CasesPerKind(); ++i) {
      std::mt19937_64 rng(static_cast<uint64_t>(i) + 1);
      CaseSpec spec = SpecOf(kind, rng);
      paged_attention::MakeServedStep(spec, i % 5 == 0 ? 1000 : 200, paged_cache::IntegersOf(rng));
      Case c(std::move(spec), kind.side_by_side, rng() % 6 != 0, rng);
      if (i % 4 == 0) PutWrong(c, rng);
      ExpectRight(kind, c, i % 2 == 0, StrCat("seed ", i + 1, ": ", c.ToString()));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RaggedPagedAttentionV3GpuTest, TensorsMayStartAnywhere) {
  for (const Kind& kind : {kKinds[0], kKinds[3], kKinds[5], kKinds[8], kKinds[10]}) {
    for (int i = 0; i < std::max(cuda::CasesPerKind() / 4, 2); ++i) {
      std::mt19937_64 rng(static_cast<uint64_t>(i) + 1);
      Case c = RandomCase(kind, rng);
      ExpectRight(kind, c, i % 2 == 0, StrCat("seed ", i + 1, ": ", c.ToString()), &rng);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RaggedPagedAttentionV3GpuTest, WrongIndicesAreNeverFollowed) {
  for (int i = 0; i < 4 * cuda::CasesPerKind(); ++i) {
    const Kind& kind = kKinds[i % 4];
    std::mt19937_64 rng(static_cast<uint64_t>(i) + 1);
    Case c = RandomCase(kind, rng);
    PutWrong(c, rng);
    ExpectRight(kind, c, i % 2 == 0, StrCat("seed ", i + 1, ": ", c.ToString()));
    if (HasFatalFailure()) return;
  }
}

// A captured graph replays with the lengths that lie on the device then.
TEST_F(RaggedPagedAttentionV3GpuTest, AGraphReplaysWithNewLengths) {
  std::mt19937_64 rng(3);
  CaseSpec spec;
  spec.query_dtype = spec.cache_dtype = DType::kBF16;
  spec.head_dim = 128;
  spec.query_lens = {1, 1, 1};
  spec.context_lens = {40, 100, 7};
  spec.padding_rows = 0;
  Case c(spec, false, true, rng);
  const Op& op = **OpRegistry::Global().Get(kName);
  const Call host = c.call();
  const auto results = *InferTypes(op, Platform::kCuda, {host.args, {}, host.attributes});
  std::vector<std::unique_ptr<cuda::DeviceBuffer<char>>> memory;
  std::vector<TensorView> arg_views, result_views;
  for (const TensorView& arg : host.args) {
    memory.push_back(std::make_unique<cuda::DeviceBuffer<char>>(cuda::HostBytes(arg)));
    arg_views.push_back({memory.back()->data(), arg.dtype, arg.shape});
  }
  for (size_t i = 0; i < results.size(); ++i) {
    TensorView view{arg_views[3].data, results[i].dtype, results[i].shape};
    if (i != 1) {
      memory.push_back(
          std::make_unique<cuda::DeviceBuffer<char>>(static_cast<size_t>(view.size_bytes())));
      view.data = memory.back()->data();
    }
    result_views.push_back(view);
  }
  cuda::Stream stream;
  ExecutionContext context;
  context.stream = stream.get();
  const auto run = [&] {
    const Status status =
        RunOp(op, Platform::kCuda, {arg_views, result_views, host.attributes}, context);
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  run();  // compiles and loads
  stream.Synchronize();
  cuda::Graph graph(stream, run);
  memory[3]->CopyFrom(cuda::HostBytes(c.kv_cache.view()));
  for (int step = 0; step < 3; ++step) {
    const std::vector<char> expected = c.ExpectedCache();
    memory[4]->CopyFrom(cuda::HostBytes(c.kv_lens.view()));
    graph.Launch(stream);
    stream.Synchronize();
    const std::vector<char> cache = memory[3]->ToHost();
    ASSERT_EQ(cache, expected) << "step " << step;
    std::memcpy(c.kv_cache.data.get(), cache.data(), cache.size());
    for (int s = 0; s < 3; ++s) ++c.kv_lens.ints()[s];
  }
}

}  // namespace
}  // namespace xla_gpu::ragged_paged_attention_v3
