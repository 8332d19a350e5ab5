// JSON as this program writes and reads it: paths and XLA's messages need not be UTF-8, and what
// another process prints need not be what we expect.
#ifndef XLA_GPU_CLI_JSON_H_
#define XLA_GPU_CLI_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace xla_gpu::cli {

// On one line without `indent`. Bytes that are no UTF-8 are replaced.
template <typename Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The object that a line holds, or one without members.
inline nlohmann::json ParseObject(std::string_view line) {
  if (!line.starts_with('{')) return nlohmann::json::object();
  nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json::object();
}

inline bool Is(const nlohmann::json& json, const bool*) { return json.is_boolean(); }
inline bool Is(const nlohmann::json& json, const size_t*) { return json.is_number_unsigned(); }
inline bool Is(const nlohmann::json& json, const std::string*) { return json.is_string(); }
template <typename T>
bool Is(const nlohmann::json& json, const std::vector<T>*) {
  for (const nlohmann::json& item : json) {
    if (!Is(item, static_cast<const T*>(nullptr))) return false;
  }
  return json.is_array();
}

// Reads a member; false, with `value` as it was, if it is missing or of another type.
template <typename T>
bool ReadMember(const nlohmann::json& object, const char* key, T* value) {
  const auto member = object.find(key);
  if (member == object.end() || !Is(*member, value)) return false;
  *value = member->get<T>();
  return true;
}

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_JSON_H_
