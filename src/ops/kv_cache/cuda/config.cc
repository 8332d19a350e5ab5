#include "src/ops/kv_cache/cuda/config.h"

#include <algorithm>

#include "src/core/strings.h"
#include "src/cuda/device_types.h"

namespace xla_gpu::kv_cache {
namespace {

constexpr char kSource[] = "src/ops/kv_cache/cuda/update_kv_cache.cu";

std::vector<std::string> Defines(const UpdateProblem& problem) {
  const DType cache = problem.cache.dtype;
  std::vector<std::string> defines = {
      StrCat("INPUT_TYPE=", cuda::DeviceType(problem.input_dtype)),
      StrCat("CACHE_TYPE=", cuda::DeviceType(cache)),
      StrCat("HEAD_DIM=", problem.cache.head_dim),
      StrCat("VECTOR=", VectorElements(problem.input_dtype, cache, problem.cache.head_dim)),
  };
  if (problem.slot_dtype == DType::kI64) defines.push_back("SLOT_TYPE_64");
  return defines;
}

}  // namespace

Status CheckDevice(const cuda::DeviceInfo& device) {
  if (device.compute_major >= 8) return OkStatus();
  return Unimplemented(StrCat("update_kv_cache: ", device.name, " has compute capability ",
                              device.compute_major, ".", device.compute_minor,
                              "; the CUDA kernels need 8.0 or later"));
}

cuda::KernelSpec UpdateSpec(const UpdateProblem& problem) {
  return {kSource, "update_kv_cache", Defines(problem)};
}

cuda::KernelSpec CopySpec(const UpdateProblem& problem) {
  return {kSource, "copy_cache", Defines(problem)};
}

int VectorElements(DType input, DType cache, int64_t head_dim) {
  const int64_t most = 16 / std::max(DTypeSize(input), DTypeSize(cache));
  int vector = 1;
  for (int next = 2; next <= most && head_dim % next == 0; next *= 2) vector = next;
  return vector;
}

int TokensPerBlock(int64_t tokens, int num_sms) {
  return static_cast<int>(
      std::clamp<int64_t>(tokens / (int64_t{8} * std::max(num_sms, 1)), 1, kMaxTokensPerBlock));
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const std::string& arch) {
  std::vector<cuda::KernelSpec> specs;
  struct Case {
    DType input, cache, slot;
    int64_t head_dim;
  };
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;
  for (const Case& c :
       {Case{kBF16, kBF16, DType::kI32, 128}, Case{kBF16, DType::kF8E4M3FN, DType::kI32, 128},
        Case{kF32, DType::kF8E5M2, DType::kI64, 3}, Case{kF16, kF32, DType::kI64, 80}}) {
    UpdateProblem problem;
    problem.input_dtype = c.input;
    problem.slot_dtype = c.slot;
    problem.cache.dtype = c.cache;
    problem.cache.head_dim = c.head_dim;
    specs.push_back(UpdateSpec(problem));
  }
  return specs;
}

}  // namespace xla_gpu::kv_cache
