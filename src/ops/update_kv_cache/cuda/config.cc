#include "src/ops/update_kv_cache/cuda/config.h"

#include <algorithm>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu::update_kv_cache {
namespace {

constexpr char kSource[] = "src/ops/update_kv_cache/cuda/update_kv_cache.cu";
constexpr char kHopper[] = "src/ops/update_kv_cache/cuda/update_kv_cache_sm90.cu";

// From so many bytes of new keys and values on the ring is worth its setting up.
constexpr int64_t kRingsWorth = int64_t{4} << 20;

// The copy engine moves multiples of 16 bytes.
bool TakesRing(const Problem& p, const cuda::DeviceInfo& device) {
  const int64_t token_bytes = p.kv_heads * p.head_dim * DTypeSize(p.input_dtype);
  return device.compute_major == 9 && token_bytes % 16 == 0 &&
         2 * p.tokens * token_bytes >= kRingsWorth;
}

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

Config ChooseConfig(const Problem& problem, const cuda::DeviceInfo& device, bool aligned) {
  std::vector<std::string> defines = WriteDefines(problem, aligned);
  if (problem.slot_dtype == DType::kI64) defines.push_back("SLOT_TYPE_64");
  Config config{{kSource, "update_kv_cache", std::move(defines)},
                PlanParams(problem, device.num_sms),
                {.block = {kUpdateThreads, 1, 1}}};
  if (aligned && TakesRing(problem, device)) {
    config.kernel.source = kHopper;
    config.kernel.entry = "update_kv_cache_sm90";
    config.params.tokens_per_block = TokensPerBlockSm90(problem.tokens, device.num_sms);
    config.launch.block[0] = sm90::kThreads;
    config.launch.dynamic_shared_bytes = sm90::kRingBytes;
  }
  config.launch.grid[0] = UpdateBlocks(config.params);
  return config;
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

uint32_t UpdateBlocks(const Params& params) {
  return static_cast<uint32_t>((params.tokens + params.tokens_per_block - 1) /
                               params.tokens_per_block);
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

int TokensPerBlockSm90(int64_t tokens, int num_sms) {
  const auto shares = [tokens](int64_t blocks) { return (tokens + blocks - 1) / blocks; };
  const int64_t wave = int64_t{sm90::kBlocks} * std::max(num_sms, 1);
  return static_cast<int>(std::max<int64_t>(shares(wave * shares(wave * sm90::kThreads)), 1));
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  struct Case {
    DType input, cache, slot;
    int64_t head_dim;
    int64_t tokens = 0;
    bool aligned = true;
  };
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;
  constexpr DType kI32 = DType::kI32, kI64 = DType::kI64;
  constexpr int64_t kMany = 1 << 20;
  for (const Case& c :
       {Case{kBF16, kBF16, kI32, 128}, Case{kBF16, DType::kF8E4M3FN, kI32, 128},
        Case{kF32, DType::kF8E5M2, kI64, 3}, Case{kF16, kF32, kI64, 80},
        Case{kBF16, kBF16, kI32, 128, 0, false}, Case{kBF16, kBF16, kI64, 128, kMany},
        Case{kBF16, DType::kF8E4M3FN, kI32, 128, kMany}, Case{kF16, kF32, kI64, 80, kMany}}) {
    Problem problem;
    problem.input_dtype = c.input;
    problem.slot_dtype = c.slot;
    problem.cache_dtype = c.cache;
    problem.kv_heads = 1;
    problem.head_dim = c.head_dim;
    problem.tokens = c.tokens;
    cuda::KernelSpec spec = ChooseConfig(problem, device, c.aligned).kernel;
    if (c.tokens == 0 || spec.source == kHopper) specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace xla_gpu::update_kv_cache
