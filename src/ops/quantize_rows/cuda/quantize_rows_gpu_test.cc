// quantize_rows on a GPU against f64; skipped where there is none. XLA_GPU_TEST_CASES and
// XLA_GPU_TEST_GUARDS as in paged_attention_gpu_test.cc.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "src/core/op_registry.h"
#include "src/cuda/gpu_call_testing.h"
#include "src/ops/quantize_rows/random_case.h"

namespace xla_gpu::quantize_rows {
namespace {

class QuantizeRowsGpuTest : public cuda::GpuTest {};

TEST_F(QuantizeRowsGpuTest, IsRightOnRandomProblems) {
  const Op& op = **OpRegistry::Global().Get("quantize_rows");
  int cases = 0;
  for (const Kind& kind : kKinds) {
    for (const uint64_t seed : cuda::Seeds(cuda::CasesPerKind())) {
      ++cases;
      std::mt19937_64 rng(seed);
      const Case c(kind, rng);
      const std::string what = StrCat("seed ", seed, ": ", c.ToString());
      const auto got = cuda::RunOnGpu(op, c.call(), {}, nullptr, seed % 4 == 0 ? &rng : nullptr);
      ASSERT_TRUE(got.ok()) << got.status().ToString() << "\n" << what;
      OwnedTensor out(c.out.dtype, c.out.shape), scale(c.scale.dtype, c.scale.shape);
      std::memcpy(out.data.get(), (*got)[0].data(), (*got)[0].size());
      std::memcpy(scale.data.get(), (*got)[1].data(), (*got)[1].size());
      c.ExpectRight(out, scale, what);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%d problems\n", cases);
}

}  // namespace
}  // namespace xla_gpu::quantize_rows
