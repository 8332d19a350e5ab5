// quantize_rows on CUDA.
#include <algorithm>
#include <bit>
#include <memory>

#include "src/core/ceil_div.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_specs.h"
#include "src/cuda/unaligned_plan.h"
#include "src/ops/quantize_rows/quantize_rows.h"

namespace xla_gpu {
namespace quantize_rows {
namespace {

constexpr char kName[] = "quantize_rows";
constexpr int64_t kThreads = 512;  // each has several loads under way; of long rows twice as many

struct Config {
  cuda::KernelSpec kernel;
  cuda::LaunchConfig launch;
};

// Blocks, of a cluster, that share a long row where there are too few rows for all multiprocessors.
int64_t BlocksOfRow(const Problem& p, int64_t vector, const cuda::DeviceInfo& device) {
  constexpr int64_t kMost = 8, kLeastColumns = 3072;  // of x, of a block
  int64_t blocks = 1;
  while (device.compute_major >= 9 && blocks < kMost && 2 * blocks * p.rows <= device.num_sms &&
         p.x_columns() >= 2 * blocks * kLeastColumns && p.columns % (2 * blocks * vector) == 0) {
    blocks *= 2;
  }
  return blocks;
}

Config ChooseConfig(const Problem& p, const cuda::DeviceInfo& device, bool aligned) {
  const bool norm = p.norm_dtype != DType::kInvalid;
  const bool factors = p.row_factor || p.column_factor;
  const bool residual = p.residual_dtype != DType::kInvalid;
  const int64_t widest =
      std::max({DTypeSize(p.dtype), norm ? DTypeSize(p.norm_dtype) : 0,
                factors ? DTypeSize(DType::kF32) : 0, residual ? DTypeSize(p.residual_dtype) : 0});
  // 16 bytes of the widest, or the largest power of two of them that divides a row.
  const int64_t divisor = int64_t{1} << std::countr_zero(static_cast<uint64_t>(p.columns));
  const int64_t vector = std::min(16 / widest, divisor);
  const int64_t blocks = BlocksOfRow(p, vector, device), vectors = p.columns / blocks / vector;
  const int64_t most = vectors * vector <= kMostKept * kThreads ? kThreads : 2 * kThreads;
  const int64_t threads = RoundUp(CeilDiv(vectors, CeilDiv(vectors, most)), 32);
  Config config{
      {"src/ops/quantize_rows/cuda/quantize_rows.cu",
       kName,
       {StrCat("TYPE=", InfoOf(p.dtype).device), StrCat("COLUMNS=", p.columns),
        StrCat("VECTOR=", vector), StrCat("THREADS=", threads), StrCat("BLOCKS=", blocks)}},
      {}};
  config.launch.grid[0] = static_cast<uint32_t>(p.rows * blocks);
  config.launch.block[0] = static_cast<uint32_t>(threads);
  config.launch.cluster[0] = static_cast<uint32_t>(blocks);
  auto& defines = config.kernel.defines;
  if (norm) defines.push_back(StrCat("NORM=", InfoOf(p.norm_dtype).device));
  if (factors) defines.emplace_back("FACTORS");
  if (residual) defines.push_back(StrCat("RESIDUAL=", InfoOf(p.residual_dtype).device));
  if (p.activation == Activation::kSiluMul) defines.emplace_back("SILU_MUL");
  if (!aligned) defines.emplace_back("UNALIGNED");
  return config;
}

// One for all architectures: rows that stay in registers, and such as are read again.
std::vector<cuda::KernelSpec> KnownSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType norm : {DType::kInvalid, DType::kBF16}) {
      for (const int64_t columns : {4096, 14336, 100001}) {
        Problem problem{.dtype = dtype, .norm_dtype = norm, .rows = 16, .columns = columns};
        specs.push_back(ChooseConfig(problem, device, /*aligned=*/true).kernel);
        problem.row_factor = problem.column_factor = true;
        problem.residual_dtype = DType::kBF16;
        specs.push_back(ChooseConfig(problem, device, /*aligned=*/true).kernel);
        problem.residual_dtype = DType::kInvalid;
        problem.activation = Activation::kSiluMul;
        specs.push_back(ChooseConfig(problem, device, /*aligned=*/true).kernel);
      }
    }
  }
  return specs;
}

XLA_GPU_REGISTER_KERNEL_SPECS(kName, KnownSpecs);

StatusOr<std::unique_ptr<Plan>> MakeCudaPlan(
    const Problem& problem, const cuda::DeviceInfo& device,
    const std::shared_ptr<const cuda::UnalignedPlan>& unaligned) {
  const Config config = ChooseConfig(problem, device, unaligned != nullptr);
  XLA_GPU_ASSIGN_OR_RETURN(const auto kernel, cuda::GetKernel(config.kernel, device.ordinal,
                                                              /*max_dynamic_shared_bytes=*/0));
  const cuda::LaunchConfig launch = config.launch;
  return MakePlan([=](const Call& call, const ExecutionContext& context) {
    if (problem.rows == 0) return OkStatus();
    Buffers b = BuffersFromCall(problem, call);
    const cuda::Place found = cuda::FirstUnaligned({{b.x, "x"},
                                                    {b.norm_weight, "norm_weight"},
                                                    {b.column_factor, "column_factor"},
                                                    {b.residual, "residual"},
                                                    {b.sum, "sum"},
                                                    {b.out, "out"}});
    if (found && unaligned != nullptr) return unaligned->Run(found, call, context);
    float epsilon = problem.epsilon;
    void* const params[] = {&b.x,   &b.norm_weight, &b.row_factor, &b.column_factor, &b.residual,
                            &b.out, &b.scale,       &b.sum,        &epsilon};
    return kernel->Launch(launch, params, context.stream);
  });
}

}  // namespace
}  // namespace quantize_rows

StatusOr<std::unique_ptr<Plan>> MakeQuantizeRowsCudaPlan(const Call& call, int device_ordinal) {
  using namespace quantize_rows;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(device_ordinal));
  XLA_GPU_RETURN_IF_ERROR(cuda::CheckComputeCapability(kName, *device));
  return cuda::MakePlanOfAnyAlignment(kName, [problem, device](const auto& unaligned) {
    return MakeCudaPlan(problem, *device, unaligned);
  });
}

}  // namespace xla_gpu
