#include "src/cuda/cache_entry.h"

#include <gtest/gtest.h>

#include <random>

namespace xla_gpu::cuda {
namespace {

CacheEntry RandomEntry(std::mt19937& random) {
  CacheEntry entry;
  for (uint8_t& byte : entry.key) byte = static_cast<uint8_t>(random());
  entry.description.resize(random() % 40);
  entry.cubin.resize(random() % 200);
  for (std::string* text : {&entry.description, &entry.cubin}) {
    for (char& c : *text) c = static_cast<char>(random());
  }
  return entry;
}

TEST(CacheEntry, ComesBackAsItWas) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const CacheEntry entry = RandomEntry(random);
    const auto back = ParseCacheEntry(SerializeCacheEntry(entry));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->key, entry.key);
    EXPECT_EQ(back->description, entry.description);
    EXPECT_EQ(back->cubin, entry.cubin);
  }
}

TEST(CacheEntry, NoByteMayChange) {
  std::mt19937 random(2);
  const std::string bytes = SerializeCacheEntry(RandomEntry(random));
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(ParseCacheEntry(damaged).has_value()) << "byte " << i << ", bit " << bit;
    }
  }
}

TEST(CacheEntry, NoByteMayBeMissingOrAdded) {
  std::mt19937 random(3);
  const std::string bytes = SerializeCacheEntry(RandomEntry(random));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseCacheEntry(bytes.substr(0, size)).has_value()) << size;
    EXPECT_FALSE(ParseCacheEntry(bytes.substr(size + 1)).has_value()) << size;
  }
  EXPECT_FALSE(ParseCacheEntry(bytes + '\0').has_value());
  EXPECT_FALSE(ParseCacheEntry(bytes + bytes).has_value());
}

TEST(CacheEntry, RandomBytesAreNoEntry) {
  std::mt19937 random(4);
  const std::string header = SerializeCacheEntry(RandomEntry(random)).substr(0, 8);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = i % 2 == 0 ? header : "";
    const size_t size = random() % 200;
    while (bytes.size() < size) bytes.push_back(static_cast<char>(random()));
    // Sizes that overflow when added are the trap of such parsers.
    if (bytes.size() > 88 && i % 3 == 0) bytes.replace(72, 8, 8, '\xff');
    EXPECT_FALSE(ParseCacheEntry(bytes).has_value());
  }
}

}  // namespace
}  // namespace xla_gpu::cuda
