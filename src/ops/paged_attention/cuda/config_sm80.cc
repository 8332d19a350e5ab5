// Tensor cores by `mma.sync`, from sm_80 on: attend_sm80.cu.
#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/family.h"

namespace xla_gpu::paged_attention {
namespace {

// Of the widest tiles as many keys with which as many blocks as registers allow fit an SM.
Share Take(const Problem& problem, const cuda::DeviceInfo& device, const Choice& choice,
           Config& config) {
  if (!choice.aligned || !TensorCoresTake(problem)) return Share::kNone;
  MmaShared shared = MmaOf(problem, MmaOf(problem).widest_tile());
  const int step = shared.fragment_keys();
  const int64_t per_sm = SharedBytesOfSm(device);
  for (const int blocks : {2, 1}) {
    for (shared.tile_keys = 64; shared.tile_keys >= (shared.parts() == 1 ? 2 * step : step);
         shared.tile_keys -= step) {
      // Of heads that one warp computes decode is to fit what prefill has.
      const bool decodes =
          shared.parts() > 1 || shared.prefill_bytes() >= shared.least_decode_bytes();
      if (!decodes || blocks * (shared.bytes() + kReservedSharedBytes) > per_sm) continue;
      config.tile_rows = shared.tile_rows;
      config.tile_keys = shared.tile_keys;
      config.blocks_per_sm = blocks;
      config.shared_bytes = shared.bytes();
      return Share::kRest;
    }
  }
  return Share::kNone;
}

void Launch(const Problem& problem, const Config& config, std::vector<KernelLaunch>& launches) {
  std::vector<std::string> defines = {StrCat("TILE_ROWS=", config.tile_rows),
                                      StrCat("TILE_KEYS=", config.tile_keys),
                                      StrCat("MIN_BLOCKS=", config.blocks_per_sm),
                                      StrCat("BEHIND_PREFILL=", config.prefill_launch ? 1 : 0),
                                      StrCat("BEHIND_DECODE=", config.decode_launch ? 1 : 0)};
  if (config.prefill_launch && !IsSplit(problem)) defines.push_back("REDO_ONLY");
  AddAttend(problem, config, "attend_sm80.cu", defines, launches);
}

}  // namespace

extern const Family kSm80 = {Take, Launch};

}  // namespace xla_gpu::paged_attention
