// SHA-256 (FIPS 180-4), for cache keys and checksums. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_SHA256_H_
#define XLA_GPU_CUDA_SHA256_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace xla_gpu::cuda {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void Update(std::string_view bytes);
  // The digest of all that was given; the object is used up.
  Digest Finish();

  // 64 lower-case digits.
  static std::string Hex(const Digest& digest);

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  uint64_t size_ = 0;  // bytes given; the last size_ % 64 of them are pending
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_SHA256_H_
