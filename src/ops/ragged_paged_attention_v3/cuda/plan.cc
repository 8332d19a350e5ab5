// ragged_paged_attention_v3 on CUDA: one launch appends the new tokens, then paged attention's own.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/ops/kv_cache/cuda/config.h"
#include "src/ops/ragged_paged_attention_v3/cuda/params.cuh"
#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"

namespace xla_gpu {
namespace ragged_paged_attention_v3 {
namespace {

using paged_attention::Attention;

cuda::KernelSpec AppendSpec(const kv_cache::UpdateProblem& problem) {
  return {"src/ops/ragged_paged_attention_v3/cuda/append.cu", "append_tokens",
          kv_cache::WriteDefines(problem)};
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const std::string& arch) {
  std::vector<cuda::KernelSpec> specs;
  struct Case {
    DType cache;
    int64_t head_dim;
  };
  for (const Case& c : {Case{DType::kBF16, 128}, Case{DType::kF8E4M3FN, 64},
                        Case{DType::kF8E5M2, 3}, Case{DType::kF32, 80}}) {
    kv_cache::UpdateProblem problem;
    problem.input_dtype = problem.cache.dtype = c.cache;
    problem.cache.head_dim = c.head_dim;
    specs.push_back(AppendSpec(problem));
  }
  return specs;
}

XLA_GPU_REGISTER_KERNEL_SPECS("ragged_paged_attention_v3", CompileCheckSpecs);

Status CheckAligned(const void* pointer, const char* name) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) return OkStatus();
  return InvalidArgument(StrCat(kName, ": ", name, " lies at address ", pointer,
                                "; on CUDA it must be a multiple of 16: pass a whole tensor, or "
                                "copy the slice"));
}

class CudaPlan final : public Plan {
 public:
  CudaPlan(const Problem& problem, int num_sms, std::shared_ptr<const cuda::Kernel> append,
           std::shared_ptr<const cuda::Kernel> copy, std::unique_ptr<Attention> attention)
      : problem_(problem),
        num_sms_(num_sms),
        append_(std::move(append)),
        copy_(std::move(copy)),
        attention_(std::move(attention)) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    const Buffers b = BuffersFromCall(problem_, call);
    for (const auto& [pointer, name] :
         {std::pair<const void*, const char*>{b.attention.query, "queries"},
          {b.update.key, "keys"},
          {b.update.value, "values"},
          {b.update.k_cache_in, "kv_cache"},
          {b.update.k_cache_out, "the result kv_cache"},
          {b.attention.out, "out"}}) {
      XLA_GPU_RETURN_IF_ERROR(CheckAligned(pointer, name));
    }
    XLA_GPU_RETURN_IF_ERROR(CopyCache(b.update, context.stream));
    if (problem_.update_kv_cache && problem_.update.tokens > 0) {
      XLA_GPU_RETURN_IF_ERROR(Append(b, context.stream));
    }
    return attention_->Run(b.attention, context);
  }

 private:
  Status CopyCache(const kv_cache::UpdateBuffers& b, void* stream) const {
    if (b.k_cache_in == b.k_cache_out || b.cache_bytes == 0) return OkStatus();
    const void* from = b.k_cache_in;
    void* to = b.k_cache_out;
    int64_t bytes = b.cache_bytes;
    void* const arguments[] = {&from, &to, &bytes};
    return copy_->Launch(kv_cache::CopyLaunch(bytes, num_sms_), arguments, stream);
  }

  Status Append(const Buffers& b, void* stream) const {
    const paged_attention::Problem& p = problem_.attention;
    AppendParams params{};
    params.update = kv_cache::MakeUpdateParams(problem_.update, b.update, num_sms_);
    params.context_lens = b.attention.context_lens;
    params.block_tables = b.attention.block_tables;
    params.query_start_loc = b.attention.query_start_loc;
    params.num_seqs = b.attention.num_seqs;
    params.max_context = p.max_context();
    params.max_pages = p.max_pages_per_seq;
    params.num_pages = p.num_pages;
    params.max_seqs = static_cast<int>(p.max_seqs);
    void* const arguments[] = {&params};
    return append_->Launch(kv_cache::UpdateLaunch(params.update), arguments, stream);
  }

  const Problem problem_;
  const int num_sms_;
  const std::shared_ptr<const cuda::Kernel> append_;
  const std::shared_ptr<const cuda::Kernel> copy_;
  const std::unique_ptr<Attention> attention_;
};

}  // namespace
}  // namespace ragged_paged_attention_v3

StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3CudaPlan(const Call& call,
                                                                   int device_ordinal) {
  namespace v3 = ragged_paged_attention_v3;
  XLA_GPU_ASSIGN_OR_RETURN(const v3::Problem problem, v3::ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(auto attention,
                           paged_attention::MakeCudaAttention(problem.attention, device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(auto append,
                           cuda::GetKernel(v3::AppendSpec(problem.update), device_ordinal,
                                           /*max_dynamic_shared_bytes=*/0));
  XLA_GPU_ASSIGN_OR_RETURN(auto copy,
                           cuda::GetKernel(kv_cache::CopySpec(problem.update), device_ordinal,
                                           /*max_dynamic_shared_bytes=*/0));
  return std::unique_ptr<Plan>(std::make_unique<v3::CudaPlan>(
      problem, device->num_sms, std::move(append), std::move(copy), std::move(attention)));
}

}  // namespace xla_gpu
