// ragged_paged_attention_v3 on CUDA: one launch appends the new tokens and makes paged attention's
// schedule, then those of paged attention attend.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/ragged_paged_attention_v3/cuda/params.cuh"
#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"
#include "src/ops/update_kv_cache/cuda/config.h"

namespace xla_gpu {
namespace ragged_paged_attention_v3 {
namespace {

// `schedule`: that of paged attention alone.
cuda::KernelSpec AppendSpec(const update_kv_cache::Problem& problem,
                            const cuda::KernelSpec& schedule) {
  std::vector<std::string> defines = update_kv_cache::WriteDefines(problem);
  defines.insert(defines.end(), schedule.defines.begin(), schedule.defines.end());
  return {"src/ops/ragged_paged_attention_v3/cuda/append.cu", "append_and_schedule",
          std::move(defines)};
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const std::string& arch) {
  std::vector<cuda::KernelSpec> specs;
  struct Case {
    DType cache;
    int64_t head_dim;
  };
  for (const Case& c : {Case{DType::kBF16, 128}, Case{DType::kF8E4M3FN, 64},
                        Case{DType::kF8E5M2, 3}, Case{DType::kF32, 80}}) {
    update_kv_cache::Problem problem;
    problem.input_dtype = problem.cache.dtype = c.cache;
    problem.cache.head_dim = c.head_dim;
    specs.push_back(AppendSpec(problem, {"", "", {"SCHEDULE_THREADS=128"}}));
  }
  return specs;
}

XLA_GPU_REGISTER_KERNEL_SPECS("ragged_paged_attention_v3", CompileCheckSpecs);

// Without the call's tensors.
AppendParams PlanAppend(const Problem& problem, int num_sms) {
  const paged_attention::Problem& p = problem.attention;
  AppendParams append{};
  append.update = update_kv_cache::PlanParams(problem.update, num_sms);
  append.max_context = p.max_context();
  append.max_pages = p.max_pages_per_seq;
  append.num_pages = p.num_pages;
  append.max_seqs = static_cast<int>(p.max_seqs);
  return append;
}

struct Kernels {
  std::shared_ptr<const cuda::Kernel> schedule;  // with the appending, if the problem has it
  std::shared_ptr<const cuda::Kernel> copy;
};

class CudaPlan final : public Plan {
 public:
  CudaPlan(const Problem& problem, int num_sms, const cuda::LaunchConfig& schedule_launch,
           Kernels kernels, paged_attention::Attention attention)
      : problem_(problem),
        num_sms_(num_sms),
        append_(PlanAppend(problem, num_sms)),
        schedule_launch_(schedule_launch),
        kernels_(std::move(kernels)),
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
      XLA_GPU_RETURN_IF_ERROR(cuda::CheckAligned(kName, pointer, name));
    }
    XLA_GPU_RETURN_IF_ERROR(CopyCache(b.update, context.stream));
    if (problem_.attention.tokens == 0) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(paged_attention::Params params, attention_.ParamsOf(b.attention));
    XLA_GPU_RETURN_IF_ERROR(problem_.update_kv_cache ? AppendAndSchedule(b, params, context.stream)
                                                     : Schedule(params, context.stream));
    return attention_.Launch(params, context.stream);
  }

 private:
  Status CopyCache(const update_kv_cache::Buffers& b, void* stream) const {
    if (b.k_cache_in == b.k_cache_out || b.cache_bytes == 0) return OkStatus();
    const void* from = b.k_cache_in;
    void* to = b.k_cache_out;
    int64_t bytes = b.cache_bytes;
    void* const arguments[] = {&from, &to, &bytes};
    return kernels_.copy->Launch(update_kv_cache::CopyLaunch(bytes, num_sms_), arguments, stream);
  }

  Status Schedule(paged_attention::Params& params, void* stream) const {
    void* const arguments[] = {&params};
    return kernels_.schedule->Launch(schedule_launch_, arguments, stream);
  }

  Status AppendAndSchedule(const Buffers& b, paged_attention::Params& attention,
                           void* stream) const {
    AppendParams append = append_;
    update_kv_cache::SetTensors(problem_.update, b.update, append.update);
    append.context_lens = b.attention.context_lens;
    append.block_tables = b.attention.block_tables;
    append.query_start_loc = b.attention.query_start_loc;
    append.num_seqs = b.attention.num_seqs;
    cuda::LaunchConfig launch = schedule_launch_;
    launch.grid[0] += update_kv_cache::UpdateLaunch(append.update).grid[0];
    void* const arguments[] = {&append, &attention};
    return kernels_.schedule->Launch(launch, arguments, stream);
  }

  const Problem problem_;
  const int num_sms_;
  const AppendParams append_;  // without tensors
  const cuda::LaunchConfig schedule_launch_;
  const Kernels kernels_;
  const paged_attention::Attention attention_;
};

}  // namespace
}  // namespace ragged_paged_attention_v3

StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3CudaPlan(const Call& call,
                                                                   int device_ordinal) {
  namespace v3 = ragged_paged_attention_v3;
  XLA_GPU_ASSIGN_OR_RETURN(const v3::Problem problem, v3::ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(const paged_attention::Config config,
                           paged_attention::ChooseConfig(problem.attention, *device));
  const paged_attention::KernelLaunch schedule =
      paged_attention::MakeLaunches(problem.attention, config).schedule;
  v3::Kernels kernels;
  for (const auto& [kernel, spec] :
       {std::pair{&kernels.schedule, problem.update_kv_cache
                                         ? v3::AppendSpec(problem.update, schedule.spec)
                                         : schedule.spec},
        {&kernels.copy, update_kv_cache::CopySpec(problem.update)}}) {
    XLA_GPU_ASSIGN_OR_RETURN(*kernel, cuda::GetKernel(spec, device_ordinal, 0));
  }
  XLA_GPU_ASSIGN_OR_RETURN(
      auto attention, paged_attention::Attention::Load(problem.attention, config, device_ordinal));
  return std::unique_ptr<Plan>(std::make_unique<v3::CudaPlan>(
      problem, device->num_sms, schedule.config, std::move(kernels), std::move(attention)));
}

}  // namespace xla_gpu
