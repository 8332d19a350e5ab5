// Paged attention in a C++ program, as a custom call in stock XLA (a PJRT plugin; no Python).
//
//   c++ -std=c++20 -Iinclude examples/cpp/paged_attention.cc -Lbuild/release -lxla_gpu -o demo
//
// Runs on the GPU where jax-cuda13-pjrt is installed and a GPU is there, else on xla-cpu-pjrt.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "xla_gpu/xla_gpu.hpp"

int main() try {
  using xla_gpu::Tensor;
  // One sequence of 3 tokens in pages of 4 tokens; 1 kv head, head_dim 2. It sits in page 1.
  const Tensor query({1, 2, 2}, std::vector<float>{1, 0, 0, 1});  // [tokens, q_heads, head_dim]
  std::vector<float> pages(2 * 4 * 2 * 2, NAN);                   // K on even heads, V on odd ones
  const float tokens[3][4] = {{1, 0, 10, 1}, {0, 1, 20, 2}, {1, 1, 30, 3}};  // k0 k1 v0 v1
  for (int t = 0; t < 3; ++t) std::copy(tokens[t], tokens[t] + 4, &pages[16 + 4 * t]);

  xla_gpu::Client client;
  const auto results = client.Call(
      "paged_attention",
      {query, Tensor({2, 4, 2, 2}, pages), Tensor({1}, std::vector<int32_t>{3}),  // context_lens
       Tensor({1, 1}, std::vector<int32_t>{1}),                                   // block_tables
       Tensor({2}, std::vector<int32_t>{0, 1}),                                   // query_start_loc
       Tensor({1}, std::vector<int32_t>{1})},                                     // num_seqs
      {{"scale", 1.0 / std::sqrt(2.0)}});

  const float* out = results[0].data<float>();
  std::printf("on %s: %.4f %.4f %.4f %.4f\n", client.platform().c_str(), out[0], out[1], out[2],
              out[3]);
  return 0;
} catch (const xla_gpu::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
