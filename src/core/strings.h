// The little string building that error messages need.
#ifndef XLA_GPU_CORE_STRINGS_H_
#define XLA_GPU_CORE_STRINGS_H_

#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace xla_gpu {

template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  out.exceptions(std::ios_base::badbit);  // a text is whole, or memory is short
  (out << ... << args);
  return std::move(out).str();
}

// The items, or what `text_of` gives for each (a function, or a member of theirs).
template <typename Range, typename TextOf = std::identity>
std::string StrJoin(Range&& range, const char* separator, TextOf text_of = {}) {
  std::ostringstream out;
  out.exceptions(std::ios_base::badbit);
  const char* between = "";
  for (const auto& item : range) {
    out << between << std::invoke(text_of, item);
    between = separator;
  }
  return std::move(out).str();
}

// The text with U+FFFD in place of every byte that is no part of well-formed UTF-8.
std::string ValidUtf8(std::string text);

// The bytes that a text in base64 stands for (RFC 4648: padded, on one line); nothing for others.
std::optional<std::string> FromBase64(std::string_view text);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_STRINGS_H_
