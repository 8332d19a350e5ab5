// rotary_embedding on CUDA.
#include <algorithm>
#include <bit>
#include <memory>

#include "src/core/ceil_div.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace xla_gpu {
namespace rotary_embedding {
namespace {

constexpr char kName[] = "rotary_embedding";
constexpr int64_t kMostThreads = 128;  // a block: those of one token are several

struct Config {
  cuda::KernelSpec kernel;
  int64_t threads;
  int64_t blocks;  // of a token
};

Config ChooseConfig(const Problem& p, bool aligned) {
  // 16 bytes of the widest, or the largest power of two of them that divides both parts of a head.
  const int64_t parts = p.rotary_dim / 2 | (p.head_dim - p.rotary_dim) / 2;
  const int64_t divisor = int64_t{1} << std::countr_zero(static_cast<uint64_t>(parts));
  const bool norms = p.norm_dtype != DType::kInvalid;
  const bool factors = p.row_factor || p.column_factor;
  const int64_t widest =
      std::max({DTypeSize(p.dtype), DTypeSize(p.cos_sin_dtype), DTypeSize(p.out_dtype),
                norms ? DTypeSize(p.norm_dtype) : 0, factors ? DTypeSize(DType::kF32) : 0});
  const int64_t vector = std::min(16 / widest, divisor), units = p.head_dim / (2 * vector);
  const auto lanes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(units)));
  const int64_t of_head = std::min<int64_t>(lanes, 32), of_token = p.heads() * of_head;
  const int64_t threads = std::min(RoundUp(of_token, 32), kMostThreads);
  Config config{
      {"src/ops/rotary_embedding/cuda/rotary_embedding.cu",
       kName,
       {StrCat("TYPE=", InfoOf(p.dtype).device), StrCat("OUT=", InfoOf(p.out_dtype).device),
        StrCat("TABLE=", InfoOf(p.cos_sin_dtype).device), StrCat("Q_HEADS=", p.q_heads),
        StrCat("KV_HEADS=", p.kv_heads), StrCat("HEAD_DIM=", p.head_dim),
        StrCat("ROTARY_DIM=", p.rotary_dim), StrCat("VECTOR=", vector), StrCat("LANES=", of_head),
        StrCat("THREADS=", threads)}},
      threads,
      CeilDiv(of_token, threads)};
  auto& defines = config.kernel.defines;
  if (norms) defines.push_back(StrCat("NORM=", InfoOf(p.norm_dtype).device));
  if (factors) defines.emplace_back("FACTORS");
  if (p.interleaved) defines.emplace_back("INTERLEAVED");
  if (!aligned) defines.emplace_back("UNALIGNED");
  return config;
}

// One for all architectures.
std::vector<cuda::KernelSpec> KnownSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    Problem problem{.dtype = dtype,
                    .cos_sin_dtype = dtype,
                    .out_dtype = dtype,
                    .q_heads = 32,
                    .kv_heads = 8,
                    .head_dim = 128,
                    .rotary_dim = 128};
    specs.push_back(ChooseConfig(problem, /*aligned=*/true).kernel);
    problem.norm_dtype = dtype;
    specs.push_back(ChooseConfig(problem, /*aligned=*/true).kernel);
    problem.norm_dtype = DType::kInvalid;
    problem.dtype = DType::kF32;
    problem.row_factor = problem.column_factor = true;
    specs.push_back(ChooseConfig(problem, /*aligned=*/true).kernel);
    problem.dtype = dtype;
    problem.row_factor = problem.column_factor = false;
    problem.interleaved = true;
    problem.rotary_dim = 64;
    specs.push_back(ChooseConfig(problem, /*aligned=*/true).kernel);
  }
  return specs;
}

XLA_GPU_REGISTER_KERNEL_SPECS(kName, KnownSpecs);

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, int device_ordinal,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned) {
  const Config config = ChooseConfig(problem, unaligned != nullptr);
  XLA_GPU_ASSIGN_OR_RETURN(const auto kernel, cuda::GetKernel(config.kernel, device_ordinal,
                                                              /*max_dynamic_shared_bytes=*/0));
  cuda::LaunchConfig launch;
  launch.grid = {static_cast<uint32_t>(problem.tokens), static_cast<uint32_t>(config.blocks), 1};
  launch.block[0] = static_cast<uint32_t>(config.threads);
  return MakePlan([=](const Call& call, const ExecutionContext& context) {
    if (problem.tokens == 0) return OkStatus();
    Buffers b = BuffersFromCall(problem, call);
    const cuda::Place found = cuda::FirstUnaligned({{b.qkv, "qkv"},
                                                    {b.cos_sin, "cos_sin"},
                                                    {b.q_norm, "q_norm"},
                                                    {b.k_norm, "k_norm"},
                                                    {b.column_factor, "column_factor"},
                                                    {b.q, "q"},
                                                    {b.k, "k"},
                                                    {b.v, "v"}});
    if (found && unaligned != nullptr) return unaligned->Run(found, call, context);
    auto max_positions = static_cast<int32_t>(problem.max_positions);
    float epsilon = problem.epsilon;
    void* const params[] = {&b.qkv,    &b.positions,  &b.cos_sin,       &b.q_norm,
                            &b.k_norm, &b.row_factor, &b.column_factor, &b.q,
                            &b.k,      &b.v,          &max_positions,   &epsilon};
    return kernel->Launch(launch, params, context.stream);
  });
}

}  // namespace
}  // namespace rotary_embedding

StatusOr<std::unique_ptr<Plan>> MakeRotaryEmbeddingCudaPlan(const Call& call, int device_ordinal) {
  using namespace rotary_embedding;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability(kName, *device));
  return cuda::MakePlanOfAnyAlignment(kName, [problem, device_ordinal](const auto& unaligned) {
    return MakeCudaPlan(problem, device_ordinal, unaligned);
  });
}

}  // namespace xla_gpu
