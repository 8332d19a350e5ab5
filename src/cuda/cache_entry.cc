#include "src/cuda/cache_entry.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace xla_gpu::cuda {
namespace {

// magic (8) | key (32) | checksum (32) | sizes (8 each) of description, entry and cubin |
// description | entry | cubin. Sizes are little-endian; the checksum is the SHA-256 of all bytes
// but its own.
constexpr std::string_view kMagic = "XGKERN2\n";
constexpr size_t kKeyAt = 8;
constexpr size_t kChecksumAt = 40;
constexpr size_t kSizesAt = 72;
constexpr size_t kHeader = 96;

void AppendSize(std::string& bytes, uint64_t size) {
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(size >> (8 * i)));
}

uint64_t ReadSize(std::string_view bytes, size_t at) {
  uint64_t size = 0;
  for (int i = 0; i < 8; ++i) size |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  return size;
}

Sha256::Digest Checksum(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes.substr(0, kChecksumAt));
  hash.Update(bytes.substr(kSizesAt));
  return hash.Finish();
}

}  // namespace

std::string SerializeCacheEntry(const CacheEntry& entry) {
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(entry.key.data()), entry.key.size());
  bytes.append(sizeof(Sha256::Digest), '\0');
  AppendSize(bytes, entry.description.size());
  AppendSize(bytes, entry.entry.size());
  AppendSize(bytes, entry.cubin.size());
  bytes.append(entry.description);
  bytes.append(entry.entry);
  bytes.append(entry.cubin);
  const Sha256::Digest checksum = Checksum(bytes);
  std::ranges::copy(checksum, bytes.begin() + kChecksumAt);
  return bytes;
}

std::optional<CacheEntry> ParseCacheEntry(std::string_view bytes) {
  if (bytes.size() < kHeader || !bytes.starts_with(kMagic)) return std::nullopt;
  const uint64_t body = bytes.size() - kHeader;
  const uint64_t description_size = ReadSize(bytes, kSizesAt);
  const uint64_t entry_size = ReadSize(bytes, kSizesAt + 8);
  if (description_size > body || entry_size > body - description_size ||
      ReadSize(bytes, kSizesAt + 16) != body - description_size - entry_size) {
    return std::nullopt;
  }
  const Sha256::Digest checksum = Checksum(bytes);
  if (std::memcmp(checksum.data(), bytes.data() + kChecksumAt, checksum.size()) != 0) {
    return std::nullopt;
  }
  CacheEntry entry;
  std::memcpy(entry.key.data(), bytes.data() + kKeyAt, entry.key.size());
  entry.description = bytes.substr(kHeader, description_size);
  entry.entry = bytes.substr(kHeader + description_size, entry_size);
  entry.cubin = bytes.substr(kHeader + description_size + entry_size);
  return entry;
}

}  // namespace xla_gpu::cuda
