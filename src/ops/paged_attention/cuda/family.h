// Families of kernels, each of an architecture and those after it that run its instructions: what
// it takes of a problem, its part of the Config, its launches. A new one is a config_NAME.cc,
// kernels of that name, and a place in kFamilies.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_FAMILY_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_FAMILY_H_

#include <optional>
#include <string>
#include <vector>

#include "src/ops/paged_attention/cuda/config_parts.h"

namespace xla_gpu::paged_attention {

// Which of the launches that may stand in a call do, where a family has them.
struct Choice {
  bool prefill = true;
  bool decode = true;
  // Config::decode_cluster, or 0 where that cannot be; without one what the model chooses.
  std::optional<int> cluster = {};
  bool aligned = true;
};

// Of the work that is left: none, launches of its own for some of it, or all.
enum class Share { kNone, kSome, kRest };

struct Family {
  // What it takes of the work that the families before it leave, and how: fields of `config`, of
  // which it touches no others. What has launches of its own for decode or prefill says why not.
  Share (*take)(const Problem& problem, const cuda::DeviceInfo& device, const Choice& choice,
                Config& config);
  // Adds the launches of that part.
  void (*launch)(const Problem& problem, const Config& config, std::vector<KernelLaunch>& launches);
};

extern const Family kSm90, kSm80, kSimt;

// Asked in this order until one takes the rest.
inline constexpr const Family* kFamilies[] = {&kSm90, &kSm80, &kSimt};

inline constexpr char kFolder[] = "src/ops/paged_attention/cuda/";

// The defines that every kernel takes which attends.
std::vector<std::string> TypeDefines(const Problem& problem, const Config& config);

// The launch of a kernel that takes the rest, from the list of items; none where decode takes all.
void AddAttend(const Problem& problem, const Config& config, const char* source,
               const std::vector<std::string>& own_defines, std::vector<KernelLaunch>& launches);

// What a multiprocessor has of shared memory, and what of it the runtime takes for each block and
// the static part of an attend kernel.
inline int64_t SharedBytesOfSm(const cuda::DeviceInfo& device) {
  return device.max_shared_memory_per_block + 1024;
}
inline constexpr int64_t kReservedSharedBytes = 1024 + 2560;

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_FAMILY_H_
