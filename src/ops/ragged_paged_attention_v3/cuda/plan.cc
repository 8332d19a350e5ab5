// ragged_paged_attention_v3 on CUDA: one launch appends the new tokens and makes paged attention's
// schedule, if that needs one, then those of paged attention attend.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_attention/cuda/launch.h"
#include "src/ops/paged_attention/cuda/tuning.h"
#include "src/ops/ragged_paged_attention_v3/cuda/params.cuh"
#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"
#include "src/ops/update_kv_cache/cuda/config.h"

namespace xla_gpu {
namespace ragged_paged_attention_v3 {
namespace {

// `schedule`: that of paged attention alone; `alone`: there is none.
cuda::KernelSpec AppendSpec(const update_kv_cache::Problem& problem,
                            const cuda::KernelSpec& schedule, bool alone, bool aligned) {
  std::vector<std::string> defines = update_kv_cache::WriteDefines(problem, aligned);
  defines.insert(defines.end(), schedule.defines.begin(), schedule.defines.end());
  if (alone) defines.push_back("APPEND_ALONE");
  return {"src/ops/ragged_paged_attention_v3/cuda/append.cu", "append_and_schedule",
          std::move(defines)};
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  struct Case {
    DType cache;
    int64_t head_dim;
  };
  for (const Case& c : {Case{DType::kBF16, 128}, Case{DType::kF8E4M3FN, 64},
                        Case{DType::kF8E5M2, 3}, Case{DType::kF32, 80}}) {
    update_kv_cache::Problem problem;
    problem.input_dtype = problem.cache_dtype = c.cache;
    problem.head_dim = c.head_dim;
    for (const bool aligned : {true, false}) {
      if (!aligned && c.head_dim != 128) continue;
      const cuda::KernelSpec schedule = {"", "", {"SCHEDULE_THREADS=128", "LINE_ONLY=0"}};
      specs.push_back(AppendSpec(problem, schedule, false, aligned));
      if (c.head_dim != 128 || !aligned) continue;
      specs.push_back(AppendSpec(problem, schedule, true, aligned));
    }
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

// The launch that stands before attention's: its schedule, the appending, or both.
struct FirstLaunch {
  AppendParams append;                         // without tensors
  cuda::LaunchConfig config;                   // without blocks that append
  std::shared_ptr<const cuda::Kernel> kernel;  // null: there is neither

  Status Enqueue(const Problem& problem, const Buffers& b, paged_attention::Params& attention,
                 void* stream) const {
    if (kernel == nullptr) return OkStatus();
    if (!problem.update_kv_cache) {
      void* const arguments[] = {&attention};
      return kernel->Launch(config, arguments, stream);
    }
    AppendParams params = append;
    update_kv_cache::SetTensors(problem.update, b.update, params.update);
    params.context_lens = b.attention.context_lens;
    params.block_tables = b.attention.block_tables;
    params.query_start_loc = b.attention.query_start_loc;
    params.num_seqs = b.attention.num_seqs;
    cuda::LaunchConfig launch = config;
    launch.grid[0] += update_kv_cache::UpdateBlocks(params.update);
    void* const arguments[] = {&params, &attention};
    return kernel->Launch(launch, arguments, stream);
  }
};

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, int device_ordinal,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned) {
  const bool aligned = unaligned != nullptr;
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_ASSIGN_OR_RETURN(const paged_attention::Config config,
                           aligned
                               ? paged_attention::TunedConfig(problem.attention, *device)
                               : paged_attention::ChooseConfig(problem.attention, *device, false));
  auto [spec, launch, pairs] = paged_attention::MakeLaunches(problem.attention, config).schedule;
  const bool alone = config.decode_cluster > 0;
  if (problem.update_kv_cache) spec = AppendSpec(problem.update, spec, alone, aligned);
  if (alone) launch.grid[0] = 0;
  FirstLaunch first{PlanAppend(problem, device->num_sms), launch, nullptr};
  if (problem.update_kv_cache || !alone) {
    XLA_GPU_ASSIGN_OR_RETURN(first.kernel, cuda::GetKernel(spec, device_ordinal,
                                                           /*max_dynamic_shared_bytes=*/0));
  }
  XLA_GPU_ASSIGN_OR_RETURN(const auto copy,
                           update_kv_cache::CacheCopy::Load(problem.update, *device, aligned));
  XLA_GPU_ASSIGN_OR_RETURN(
      auto attention, paged_attention::Attention::Load(problem.attention, config, device_ordinal));
  return MakePlan([problem, unaligned, first, copy, attention = std::move(attention)](
                      const Call& call, const ExecutionContext& context) -> Status {
    const Buffers b = BuffersFromCall(problem, call);
    const cuda::Place found = cuda::FirstUnaligned({{b.attention.query, "queries"},
                                                    {b.update.key, "keys"},
                                                    {b.update.value, "values"},
                                                    {b.update.k_cache_in, "kv_cache"},
                                                    {b.update.k_cache_out, "the result kv_cache"},
                                                    {b.attention.out, "out"}});
    if (found && unaligned != nullptr) return unaligned->Run(found, call, context);
    XLA_GPU_RETURN_IF_ERROR(copy.Launch(b.update.k_cache_in, b.update.k_cache_out,
                                        b.update.cache_bytes, context.stream));
    if (problem.attention.tokens == 0) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(paged_attention::Params params, attention.ParamsOf(b.attention));
    params.appended = problem.update_kv_cache ? 1 : 0;
    XLA_GPU_RETURN_IF_ERROR(first.Enqueue(problem, b, params, context.stream));
    return attention.Launch(params, context.stream);
  });
}

}  // namespace
}  // namespace ragged_paged_attention_v3

StatusOr<std::unique_ptr<Plan>> MakeRaggedPagedAttentionV3CudaPlan(const Call& call,
                                                                   int device_ordinal) {
  using namespace ragged_paged_attention_v3;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return cuda::MakePlanOfAnyAlignment(kName, [problem, device_ordinal](const auto& unaligned) {
    return MakeCudaPlan(problem, device_ordinal, unaligned);
  });
}

}  // namespace xla_gpu
