// rotary_embedding on a GPU against f64; skipped where there is none.
#include "src/ops/paged_cache/gpu_cases_testing.h"
#include "src/ops/rotary_embedding/random_case.h"

namespace xla_gpu::rotary_embedding {
namespace {

class RotaryEmbeddingGpuTest : public cuda::GpuTest {};

TEST_F(RotaryEmbeddingGpuTest, IsRightOnRandomProblems) {
  paged_cache::ExpectOnGpu<Case>(
      "rotary_embedding", kKinds,
      [](const Case& c, const auto& got, const std::string& what) { c.ExpectRight(got, what); });
}

}  // namespace
}  // namespace xla_gpu::rotary_embedding
