// update_kv_cache on CUDA.
#include <algorithm>
#include <memory>
#include <utility>

#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel_specs.h"
#include "src/ops/kv_cache/cuda/config.h"
#include "src/ops/kv_cache/update_kv_cache.h"

namespace xla_gpu {
namespace kv_cache {
namespace {

XLA_GPU_REGISTER_KERNEL_SPECS("update_kv_cache", CompileCheckSpecs);

Status CheckAligned(const void* pointer, const char* name) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) return OkStatus();
  return InvalidArgument(StrCat("update_kv_cache: ", name, " lies at address ", pointer,
                                "; on CUDA it must be a multiple of 16: pass a whole tensor, or "
                                "copy the slice"));
}

CacheParams MakeCacheParams(const paged_attention::CacheLayout& layout, int64_t element_bytes,
                            void* cache, const void* input, const float* scale,
                            int64_t scale_size) {
  CacheParams p{};
  p.base = static_cast<char*>(cache) + layout.offset * element_bytes;
  p.page_stride = layout.page_stride;
  p.token_stride = layout.token_stride;
  p.head_stride = layout.head_stride;
  p.input = input;
  p.scale = scale;
  p.scale_step = scale_size > 1 ? 1 : 0;
  return p;
}

class CudaPlan final : public Plan {
 public:
  CudaPlan(const UpdateProblem& problem, int num_sms, std::shared_ptr<const cuda::Kernel> update,
           std::shared_ptr<const cuda::Kernel> copy)
      : problem_(problem), num_sms_(num_sms), update_(std::move(update)), copy_(std::move(copy)) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    const UpdateBuffers b = UpdateBuffersFromCall(problem_, call);
    for (const auto& [pointer, name] : {std::pair<const void*, const char*>{b.key, "key"},
                                        {b.value, "value"},
                                        {b.k_cache_in, "kv_cache"},
                                        {b.v_cache_in, "v_cache"},
                                        {b.k_cache_out, "the result kv_cache"},
                                        {b.v_cache_out, "the result v_cache"}}) {
      XLA_GPU_RETURN_IF_ERROR(CheckAligned(pointer, name));
    }
    XLA_GPU_RETURN_IF_ERROR(Copy(b.k_cache_in, b.k_cache_out, b.cache_bytes, context.stream));
    if (problem_.cache.separate_v) {
      XLA_GPU_RETURN_IF_ERROR(Copy(b.v_cache_in, b.v_cache_out, b.cache_bytes, context.stream));
    }
    if (problem_.tokens == 0) return OkStatus();

    const CacheShape& cache = problem_.cache;
    const int64_t element = DTypeSize(cache.dtype);
    UpdateParams p{};
    p.k = MakeCacheParams(cache.k, element, b.k_cache_out, b.key, b.k_scale, problem_.k_scale_size);
    p.v =
        MakeCacheParams(cache.v, element, b.v_cache_out, b.value, b.v_scale, problem_.v_scale_size);
    p.slot_mapping = b.slot_mapping;
    p.tokens = problem_.tokens;
    p.num_slots = problem_.num_slots();
    p.page_size = cache.page_size;
    p.kv_heads = static_cast<int>(cache.kv_heads);
    p.tokens_per_block = TokensPerBlock(problem_.tokens, num_sms_);
    cuda::LaunchConfig launch;
    launch.grid[0] =
        static_cast<uint32_t>((problem_.tokens + p.tokens_per_block - 1) / p.tokens_per_block);
    launch.block[0] = kUpdateThreads;
    void* const arguments[] = {&p};
    return update_->Launch(launch, arguments, context.stream);
  }

 private:
  Status Copy(const void* from, void* to, int64_t bytes, void* stream) const {
    if (from == to || bytes == 0) return OkStatus();
    cuda::LaunchConfig launch;
    launch.grid[0] = static_cast<uint32_t>(
        std::clamp<int64_t>(bytes / (int64_t{16} * kUpdateThreads), 1, int64_t{16} * num_sms_));
    launch.block[0] = kUpdateThreads;
    void* const arguments[] = {&from, &to, &bytes};
    return copy_->Launch(launch, arguments, stream);
  }

  const UpdateProblem problem_;
  const int num_sms_;
  const std::shared_ptr<const cuda::Kernel> update_;
  const std::shared_ptr<const cuda::Kernel> copy_;
};

}  // namespace
}  // namespace kv_cache

StatusOr<std::unique_ptr<Plan>> MakeUpdateKvCacheCudaPlan(const Call& call, int device_ordinal) {
  using namespace kv_cache;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const UpdateProblem problem, UpdateProblemFromCall(call));
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
