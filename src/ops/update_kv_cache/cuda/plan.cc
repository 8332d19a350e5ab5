// update_kv_cache on CUDA.
#include <memory>
#include <utility>

#include "src/cuda/device.h"
#include "src/cuda/kernel_specs.h"
#include "src/ops/update_kv_cache/cuda/config.h"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu {
namespace update_kv_cache {
namespace {

XLA_GPU_REGISTER_KERNEL_SPECS("update_kv_cache", CompileCheckSpecs);

class CudaPlan final : public Plan {
 public:
  CudaPlan(const Problem& problem, int num_sms, std::shared_ptr<const cuda::Kernel> update,
           std::shared_ptr<const cuda::Kernel> copy)
      : problem_(problem),
        num_sms_(num_sms),
        params_(PlanParams(problem, num_sms)),
        update_(std::move(update)),
        copy_(std::move(copy)) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    const Buffers b = BuffersFromCall(problem_, call);
    for (const auto& [pointer, name] : {std::pair<const void*, const char*>{b.key, "key"},
                                        {b.value, "value"},
                                        {b.k_cache_in, "kv_cache"},
                                        {b.v_cache_in, "v_cache"},
                                        {b.k_cache_out, "the result kv_cache"},
                                        {b.v_cache_out, "the result v_cache"}}) {
      XLA_GPU_RETURN_IF_ERROR(cuda::CheckAligned("update_kv_cache", pointer, name));
    }
    XLA_GPU_RETURN_IF_ERROR(Copy(b.k_cache_in, b.k_cache_out, b.cache_bytes, context.stream));
    if (problem_.cache.separate_v) {
      XLA_GPU_RETURN_IF_ERROR(Copy(b.v_cache_in, b.v_cache_out, b.cache_bytes, context.stream));
    }
    if (problem_.tokens == 0) return OkStatus();

    Params p = params_;
    SetTensors(problem_, b, p);
    void* const arguments[] = {&p};
    return update_->Launch(UpdateLaunch(p), arguments, context.stream);
  }

 private:
  Status Copy(const void* from, void* to, int64_t bytes, void* stream) const {
    if (from == to || bytes == 0) return OkStatus();
    void* const arguments[] = {&from, &to, &bytes};
    return copy_->Launch(CopyLaunch(bytes, num_sms_), arguments, stream);
  }

  const Problem problem_;
  const int num_sms_;
  const Params params_;  // without tensors
  const std::shared_ptr<const cuda::Kernel> update_;
  const std::shared_ptr<const cuda::Kernel> copy_;
};

}  // namespace
}  // namespace update_kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheCudaPlan(const Call& call, int device_ordinal) {
  using namespace update_kv_cache;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(CheckDevice(*device));
  XLA_GPU_ASSIGN_OR_RETURN(auto update, cuda::GetKernel(UpdateSpec(problem), device_ordinal,
                                                        /*max_dynamic_shared_bytes=*/0));
  XLA_GPU_ASSIGN_OR_RETURN(auto copy, cuda::GetKernel(CopySpec(problem), device_ordinal,
                                                      /*max_dynamic_shared_bytes=*/0));
  return std::unique_ptr<Plan>(
      std::make_unique<CudaPlan>(problem, device->num_sms, std::move(update), std::move(copy)));
}

}  // namespace xla_gpu
