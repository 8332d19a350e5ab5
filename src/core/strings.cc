#include "src/core/strings.h"

#include <cstdint>
#include <string_view>

namespace xla_gpu {
namespace {

// The size of the well-formed sequence that `text` begins with (Unicode's table 3-7); 0 for none.
size_t SequenceSize(std::string_view text) {
  const auto byte = [text](size_t i) -> uint8_t {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
  };
  const auto follows = [&byte](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return follows(1) ? 2 : 0;
  if (lead < 0xf0) {
    // No overlong forms, no surrogates.
    const bool second = follows(1, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf);
    return second && follows(2) ? 3 : 0;
  }
  if (lead > 0xf4) return 0;
  const bool second = follows(1, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf);
  return second && follows(2) && follows(3) ? 4 : 0;
}

}  // namespace

std::string ValidUtf8(std::string text) {
  std::string_view rest = text;
  std::string mended;
  size_t good = 0;  // the well-formed bytes that `rest` begins with
  while (good < rest.size()) {
    const size_t size = SequenceSize(rest.substr(good));
    good += size;
    if (size != 0) continue;
    mended.append(rest.substr(0, good)).append("\xef\xbf\xbd");
    rest.remove_prefix(good + 1);
    good = 0;
  }
  if (mended.empty()) return text;
  return mended.append(rest);
}

std::optional<std::string> FromBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) return std::nullopt;
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>(group >> bits & 0xff));
  }
  return bytes;
}

}  // namespace xla_gpu
