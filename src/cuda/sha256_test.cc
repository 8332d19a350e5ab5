#include "src/cuda/sha256.h"

#include <gtest/gtest.h>

#include <random>

#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

std::string HexOf(std::string_view bytes) { return Sha256::Hex(Sha256Of(bytes)); }

// The examples of FIPS 180-4 and of NIST's test vectors.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(HexOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HexOf(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    Sha256 pieces;
    for (size_t at = 0; at < size;) {
      const size_t n = std::min<size_t>(random() % 100, size - at);
      pieces.Update(std::string_view(bytes).substr(at, n));
      at += n;
    }
    EXPECT_EQ(pieces.Finish(), Sha256Of(bytes)) << size;
  }
}

}  // namespace
}  // namespace xla_gpu::cuda
