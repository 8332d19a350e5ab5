// Plain f32 arithmetic, for what no other family takes: attend_simt.cu.
#include <algorithm>

#include "src/ops/paged_attention/cuda/family.h"

namespace xla_gpu::paged_attention {
namespace {

Share Take(const Problem& problem, const cuda::DeviceInfo& device, const Choice&, Config& config) {
  config.exact_tanh = true;
  config.tile_rows = kDecodeTileRows;
  config.shared_bytes = SimtOf(problem).bytes();
  config.blocks_per_sm = static_cast<int>(
      std::clamp<int64_t>(SharedBytesOfSm(device) / (config.shared_bytes + kReservedSharedBytes), 1,
                          problem.head_dim > 256 ? 2 : 4));  // as registers allow
  return Share::kRest;
}

void Launch(const Problem& problem, const Config& config, std::vector<KernelLaunch>& launches) {
  AddAttend(problem, config, "attend_simt.cu", {}, launches);
}

}  // namespace

extern const Family kSimt = {Take, Launch};

}  // namespace xla_gpu::paged_attention
