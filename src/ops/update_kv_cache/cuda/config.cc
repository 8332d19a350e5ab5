#include "src/ops/update_kv_cache/cuda/config.h"

#include <algorithm>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu::update_kv_cache {
namespace {

constexpr char kSource[] = "src/ops/update_kv_cache/cuda/update_kv_cache.cu";

}  // namespace

std::vector<std::string> WriteDefines(const Problem& problem, bool aligned) {
  const DType cache = problem.cache_dtype;
  const int vector = VectorElements(problem.input_dtype, cache, problem.head_dim);
  std::vector<std::string> defines = {StrCat("INPUT_TYPE=", InfoOf(problem.input_dtype).device),
                                      StrCat("CACHE_TYPE=", InfoOf(cache).device),
                                      StrCat("HEAD_DIM=", problem.head_dim),
                                      StrCat("VECTOR=", aligned ? vector : 1)};
  if (!aligned) defines.push_back("UNALIGNED");
  return defines;
}

cuda::KernelSpec UpdateSpec(const Problem& problem, bool aligned) {
  std::vector<std::string> defines = WriteDefines(problem, aligned);
  if (problem.slot_dtype == DType::kI64) defines.push_back("SLOT_TYPE_64");
  return {kSource, "update_kv_cache", std::move(defines)};
}

Params PlanParams(const Problem& problem, int num_sms) {
  Params p{};
  p.k.scale_step = problem.k_scale_size == 1 ? 0 : 1;
  p.v.scale_step = problem.v_scale_size == 1 ? 0 : 1;
  p.k.token_step = problem.k_token_scales ? static_cast<int>(problem.kv_heads) : 0;
  p.v.token_step = problem.v_token_scales ? static_cast<int>(problem.kv_heads) : 0;
  p.page_stride = problem.k.page_stride;
  p.token_stride = problem.k.token_stride;
  p.head_stride = problem.k.head_stride;
  p.tokens = problem.tokens;
  p.num_slots = problem.num_slots();
  p.page_size = problem.page_size;
  p.kv_heads = static_cast<int>(problem.kv_heads);
  p.tokens_per_block = TokensPerBlock(problem.tokens, num_sms);
  return p;
}

void SetTensors(const Problem& problem, const Buffers& buffers, Params& params) {
  const int64_t element = DTypeSize(problem.cache_dtype);
  params.k.base = static_cast<char*>(buffers.k_cache_out) + problem.k.offset * element;
  params.k.input = buffers.key;
  params.k.scale = buffers.k_scale;
  params.v.base = static_cast<char*>(buffers.v_cache_out) + problem.v.offset * element;
  params.v.input = buffers.value;
  params.v.scale = buffers.v_scale;
  params.slot_mapping = buffers.slot_mapping;
}

cuda::LaunchConfig UpdateLaunch(const Params& params) {
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<uint32_t>((params.tokens + params.tokens_per_block - 1) /
                                         params.tokens_per_block);
  launch.block[0] = kUpdateThreads;
  return launch;
}

StatusOr<CacheCopy> CacheCopy::Load(const Problem& problem, const cuda::DeviceInfo& device,
                                    bool aligned) {
  CacheCopy copy;
  copy.num_sms_ = device.num_sms;
  XLA_GPU_ASSIGN_OR_RETURN(copy.kernel_,
                           cuda::GetKernel({kSource, "copy_cache", WriteDefines(problem, aligned)},
                                           device.ordinal, /*max_dynamic_shared_bytes=*/0));
  return copy;
}

Status CacheCopy::Launch(const void* from, void* to, int64_t bytes, void* stream) const {
  if (from == to || bytes == 0) return OkStatus();
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<uint32_t>(
      std::clamp<int64_t>(bytes / (int64_t{16} * kUpdateThreads), 1, int64_t{16} * num_sms_));
  launch.block[0] = kUpdateThreads;
  void* const arguments[] = {&from, &to, &bytes};
  return kernel_->Launch(launch, arguments, stream);
}

int VectorElements(DType input, DType cache, int64_t head_dim) {
  const int64_t most = 16 / std::max(DTypeSize(input), DTypeSize(cache));
  int vector = 1;
  for (int next = 2; next <= most && head_dim % next == 0; next *= 2) vector = next;
  return vector;
}

int TokensPerBlock(int64_t tokens, int num_sms) {
  return static_cast<int>(
      std::clamp<int64_t>(tokens / (int64_t{3} * std::max(num_sms, 1)), 1, kMaxTokensPerBlock));
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  struct Case {
    DType input, cache, slot;
    int64_t head_dim;
  };
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;
  for (const Case& c :
       {Case{kBF16, kBF16, DType::kI32, 128}, Case{kBF16, DType::kF8E4M3FN, DType::kI32, 128},
        Case{kF32, DType::kF8E5M2, DType::kI64, 3}, Case{kF16, kF32, DType::kI64, 80}}) {
    Problem problem;
    problem.input_dtype = c.input;
    problem.slot_dtype = c.slot;
    problem.cache_dtype = c.cache;
    problem.head_dim = c.head_dim;
    specs.push_back(UpdateSpec(problem));
  }
  Problem bf16;
  bf16.input_dtype = bf16.cache_dtype = kBF16;
  bf16.slot_dtype = DType::kI32;
  bf16.head_dim = 128;
  specs.push_back(UpdateSpec(bf16, /*aligned=*/false));
  return specs;
}

}  // namespace xla_gpu::update_kv_cache
