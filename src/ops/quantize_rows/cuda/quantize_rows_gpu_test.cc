// quantize_rows on a GPU against f64; skipped where there is none.
#include "src/ops/paged_cache/gpu_cases_testing.h"
#include "src/ops/quantize_rows/random_case.h"

namespace xla_gpu::quantize_rows {
namespace {

class QuantizeRowsGpuTest : public cuda::GpuTest {};

TEST_F(QuantizeRowsGpuTest, IsRightOnRandomProblems) {
  paged_cache::ExpectOnGpu<Case>(
      "quantize_rows", kKinds, [](const Case& c, const auto& got, const std::string& what) {
        c.ExpectRight(got[0], got[1], got.size() > 2 ? &got[2] : nullptr, what);
      });
}

}  // namespace
}  // namespace xla_gpu::quantize_rows
