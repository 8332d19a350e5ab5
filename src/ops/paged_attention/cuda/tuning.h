// What `xla-gpu tune` has measured: a table of choices that stands before the model of config.h.
//
// It lies in the file that XLA_GPU_TUNING names, or in the cache of kernels where that is unset;
// empty, there is none. Every choice in it gives right results, so a wrong table costs time alone.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TUNING_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TUNING_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/op.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/paged_attention/cuda/config.h"

namespace xla_gpu::paged_attention {

// By device and problem (Describe) the launches to take (NameOf).
class TuningTable {
 public:
  // {"xla_gpu": "0.1.0", "choices": [{"device": "...", "problem": "...", "launches": "..."}, ...]}.
  // FAILED_PRECONDITION where another version of the library made it: its kernels were others.
  static StatusOr<TuningTable> Parse(std::string_view json);
  std::string ToJson() const;

  // Where it lies, for people; empty where there is to be none.
  static std::string Place();
  // Empty where there is none yet.
  static StatusOr<TuningTable> Read();
  Status Write() const;

  using Choices = std::map<std::pair<std::string, std::string>, std::string>;
  Choices choices;
};

// "NVIDIA H200, sm_90a, 132 multiprocessors".
std::string Describe(const cuda::DeviceInfo& device);

// The table's choice, where it has one that the device can run; else ChooseConfig's.
StatusOr<Config> TunedConfig(const Problem& problem, const cuda::DeviceInfo& device,
                             const TuningTable& table);
// By the user's table, which is read once a process. What is wrong with it is a warning.
StatusOr<Config> TunedConfig(const Problem& problem, const cuda::DeviceInfo& device);

// A plan of paged_attention that runs as `config` says; where that is for aligned tensors,
// `unaligned` takes calls that have others, which are an error without it.
StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, const Config& config, int device_ordinal,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned = nullptr);

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_TUNING_H_
