// For tests: random problems of an op on a GPU. XLA_GPU_TEST_CASES, XLA_GPU_TEST_SEED and
// XLA_GPU_TEST_GUARDS as in src/cuda/gpu_call_testing.h.
#ifndef XLA_GPU_OPS_PAGED_CACHE_GPU_CASES_TESTING_H_
#define XLA_GPU_OPS_PAGED_CACHE_GPU_CASES_TESTING_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/cuda/gpu_call_testing.h"
#include "src/ops/paged_cache/owned_tensor.h"

namespace xla_gpu::paged_cache {

// Runs Case(kind, rng) of every kind and seed, each fourth with tensors that start anywhere, and
// hands what came to expect(case, results, what), until one fails.
template <typename Case, typename Kinds, typename Expect>
void ExpectOnGpu(const char* op_name, const Kinds& kinds, const Expect& expect) {
  const Op& op = **OpRegistry::Global().Get(op_name);
  int cases = 0;
  for (const auto& kind : kinds) {
    for (const uint64_t seed : cuda::Seeds(cuda::CasesPerKind())) {
      ++cases;
      std::mt19937_64 rng(seed);
      const Case c(kind, rng);
      const std::string what = StrCat("seed ", seed, ": ", c.ToString());
      const auto got = cuda::RunOnGpu(op, c.call(), {}, nullptr, seed % 4 == 0 ? &rng : nullptr);
      ASSERT_TRUE(got.ok()) << got.status().ToString() << "\n" << what;
      std::vector<OwnedTensor> results;
      for (const TensorView& type : c.call().results) {
        const cuda::Bytes& bytes = (*got)[results.size()];
        results.emplace_back(type.dtype, type.spec().shape);
        std::memcpy(results.back().data.get(), bytes.data(), bytes.size());
      }
      expect(c, results, what);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  std::printf("%d problems\n", cases);
}

}  // namespace xla_gpu::paged_cache

#endif  // XLA_GPU_OPS_PAGED_CACHE_GPU_CASES_TESTING_H_
