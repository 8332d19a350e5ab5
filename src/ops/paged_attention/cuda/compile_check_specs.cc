// The kernels that a test compiles, and `xla-gpu cache warm`.
#include <vector>

#include "src/ops/paged_attention/cuda/config.h"

namespace xla_gpu::paged_attention {

std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device) {
  struct Case {
    DType query, cache, out;
    int64_t head_dim;
    float soft_cap;
    int64_t max_seqs = 1;
    bool token_scales = false;  // also
  };
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;
  std::vector<cuda::KernelSpec> specs;
  const auto add = [&](const cuda::KernelSpec& spec) {
    for (const cuda::KernelSpec& known : specs) {
      if (known.source == spec.source && known.defines == spec.defines) return;
    }
    specs.push_back(spec);
  };
  for (const Case& c :
       {Case{kBF16, kBF16, kBF16, 128, 0}, Case{kF16, kF16, kF32, 64, 50, 64},
        Case{kBF16, kBF16, kBF16, 256, 0}, Case{kF16, kF16, kF32, 184, 0},
        Case{kBF16, DType::kF8E4M3FN, kBF16, 128, 0, 1, true},
        Case{kF16, DType::kF8E5M2, kF16, 3, 50}, Case{kF32, kF32, kF32, 128, 0, 1, true},
        Case{kBF16, kF16, kF32, 255, 50, 1, true}, Case{kBF16, kBF16, kBF16, 512, 0},
        Case{kF32, kF32, kF32, 512, 0}, Case{kF32, kF32, kBF16, 256, 0},
        Case{kF32, kF32, kF32, 7, 50}}) {
    Problem problem;
    problem.query_dtype = c.query;
    problem.cache_dtype = c.cache;
    problem.out_dtype = c.out;
    problem.max_seqs = c.max_seqs;
    problem.q_heads = 2;
    problem.kv_heads = 1;
    problem.num_pages = 1;
    problem.max_pages_per_seq = 512;
    problem.page_size = 8;
    problem.head_dim = c.head_dim;
    problem.soft_cap = c.soft_cap;
    // What is not plain, too.
    problem.return_lse = c.query != kBF16;
    problem.k_scale_size = problem.v_scale_size = IsFloat8(c.cache) ? 1 : 0;
    // Decode, with tiles of more rows, and what has prefill.
    for (const int64_t tokens : {c.max_seqs, 32 * c.max_seqs, 256 * c.max_seqs}) {
      const bool prefill = tokens == 256 * c.max_seqs;
      if (!prefill && c.head_dim >= 256) continue;  // as with prefill
      problem.tokens = tokens;
      problem.separate_v = tokens > c.max_seqs;  // else a head's values lie behind its keys
      const int64_t step = (problem.separate_v ? 1 : 2) * c.head_dim;
      problem.k = problem.v = {0, 8 * step, step, step};
      if (!problem.separate_v) problem.v.offset = c.head_dim;
      const bool boxes = !IsFloat8(c.cache) && !(prefill && c.head_dim == 64);
      problem.page_size = boxes ? 8 : 7;
      problem.max_pages_per_seq = tokens > c.max_seqs ? 8192 : 512;  // sums of two levels
      const Launches launches = MakeLaunches(problem, *ChooseConfig(problem, device));
      add(launches.schedule.spec);
      for (const KernelLaunch& launch : launches.attend) add(launch.spec);
      if (tokens == c.max_seqs) {  // that see few keys
        Problem few = problem;
        few.sliding_window = 64;
        add(MakeLaunches(few, *ChooseConfig(few, device)).attend[0].spec);
      }
      if (prefill && c.token_scales) {
        Problem scaled = problem;
        scaled.k_token_scales = scaled.v_token_scales = true;
        add(MakeLaunches(scaled, *ChooseConfig(scaled, device)).attend[0].spec);
      }
      if (c.cache != kBF16 || c.head_dim != 128) continue;
      if (tokens == c.max_seqs) {  // of many sequences that there is room for
        Problem served = problem;
        served.max_seqs = 256;
        add(MakeLaunches(served, *ChooseConfig(served, device)).attend[0].spec);
        served.tokens = 16;  // and of long tables
        served.q_heads = served.kv_heads = 8;
        served.max_pages_per_seq = 4096;
        add(MakeLaunches(served, *ChooseConfig(served, device)).attend[0].spec);
      }
      if (prefill) {  // in tiles of more rows, of one
        Problem many = problem;
        many.max_pages_per_seq = 512;
        many.head_dim = 64;
        many.tokens = 65536;
        add(MakeLaunches(many, *ChooseConfig(many, device)).attend[0].spec);
      }
      add(MakeLaunches(problem, *ChooseConfig(problem, device, /*aligned=*/false)).attend[0].spec);
    }
  }
  for (const int64_t head_dim : {96, 192}) {  // of which decode has a way of its own
    Problem problem;
    problem.query_dtype = problem.cache_dtype = problem.out_dtype = kBF16;
    problem.tokens = problem.max_seqs = 64;
    problem.q_heads = problem.kv_heads = problem.num_pages = 1;
    problem.max_pages_per_seq = 512;
    problem.page_size = 8;
    problem.head_dim = head_dim;
    problem.separate_v = true;
    problem.k = problem.v = {0, 8 * head_dim, head_dim, head_dim};
    add(MakeLaunches(problem, *ChooseConfig(problem, device)).attend[0].spec);
  }
  return specs;
}

}  // namespace xla_gpu::paged_attention
