// Which kernels solve an update_kv_cache problem. Host code that needs no GPU.
#ifndef XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_CONFIG_H_
#define XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/ops/update_kv_cache/cuda/params.cuh"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu::update_kv_cache {

struct Config {
  cuda::KernelSpec kernel;
  Params params;  // without tensors
  cuda::LaunchConfig launch;
};

// `aligned`, here and below: the tensors start at multiples of 16 bytes, else of their element
// size.
Config ChooseConfig(const Problem& problem, const cuda::DeviceInfo& device, bool aligned = true);

// What a launch that writes a problem's tokens needs: all but where a call's tensors lie, and that.
Params PlanParams(const Problem& problem, int num_sms);
void SetTensors(const Problem& problem, const Buffers& buffers, Params& params);
uint32_t UpdateBlocks(const Params& params);

// The launch that comes first where a result has memory of its own.
class CacheCopy {
 public:
  static StatusOr<CacheCopy> Load(const Problem& problem, const cuda::DeviceInfo& device,
                                  bool aligned);
  // Enqueues it, unless the two are one.
  Status Launch(const void* from, void* to, int64_t bytes, void* stream) const;

 private:
  std::shared_ptr<const cuda::Kernel> kernel_;
  int num_sms_ = 0;
};

// The defines of any kernel that includes write_tokens.cuh.
std::vector<std::string> WriteDefines(const Problem& problem, bool aligned = true);

// Elements that a thread moves at a time: up to 16 bytes, within one head.
int VectorElements(DType input, DType cache, int64_t head_dim);

// One while that keeps the device busy; more make the search for overwritten tokens cheaper.
int TokensPerBlock(int64_t tokens, int num_sms);
// Of Hopper's kernel: all blocks have as many, and each multiprocessor two or a multiple of that.
int TokensPerBlockSm90(int64_t tokens, int num_sms);

// Each kind of kernel once, for `xla-gpu cache warm` and for a test that compiles them all.
std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device);

}  // namespace xla_gpu::update_kv_cache

#endif  // XLA_GPU_OPS_UPDATE_KV_CACHE_CUDA_CONFIG_H_
