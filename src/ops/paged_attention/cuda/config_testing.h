// For tests of config.h: devices, and problems to vary.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_TESTING_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_TESTING_H_

#include <gtest/gtest.h>

#include "src/ops/paged_attention/cuda/family.h"

namespace xla_gpu::paged_attention {

inline cuda::DeviceInfo Device(int major, int minor, int num_sms, int64_t shared_kib) {
  cuda::DeviceInfo device;
  device.name = "a GPU";
  device.compute_major = major;
  device.compute_minor = minor;
  device.num_sms = num_sms;
  device.max_shared_memory_per_block = shared_kib * 1024;
  device.tensor_maps = major >= 9;
  return device;
}

inline const cuda::DeviceInfo kA100 = Device(8, 0, 108, 163);
inline const cuda::DeviceInfo kL40 = Device(8, 9, 142, 99);
inline const cuda::DeviceInfo kH200 = Device(9, 0, 132, 227);
inline const cuda::DeviceInfo kB200 = Device(10, 0, 148, 227);

// Llama-like decode: 32 query heads on 8 kv heads.
inline Problem MakeProblem(DType query = DType::kBF16, DType cache = DType::kBF16,
                           int64_t head_dim = 128) {
  Problem p;
  p.query_dtype = p.out_dtype = query;
  p.cache_dtype = cache;
  p.tokens = 64;
  p.q_heads = 32;
  p.kv_heads = 8;
  p.head_dim = head_dim;
  p.num_pages = 4096;
  p.page_size = 16;
  p.max_seqs = 64;
  p.max_pages_per_seq = 256;
  p.k = {0, p.page_size * 2 * p.kv_heads * head_dim, 2 * p.kv_heads * head_dim, 2 * head_dim};
  p.v = p.k;
  p.v.offset = head_dim;
  return p;
}

inline Config Choose(const Problem& problem, const cuda::DeviceInfo& device) {
  auto config = ChooseConfig(problem, device);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return *config;
}

// With room for more than decode.
inline Problem MakeChunks(int64_t tokens_of_each = 2) {
  Problem problem = MakeProblem();
  problem.tokens = tokens_of_each * problem.max_seqs;
  return problem;
}

// As MakeProblem, with room for a prefill.
inline Problem MakePrefill(DType dtype = DType::kBF16, int64_t head_dim = 128) {
  Problem problem = MakeProblem(dtype, dtype, head_dim);
  problem.tokens = 2048;
  return problem;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_TESTING_H_
