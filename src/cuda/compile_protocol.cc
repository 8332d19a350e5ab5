#include "src/cuda/compile_protocol.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace xla_gpu::cuda {
namespace {

// Both messages are a tag and a list of strings, each preceded by its length. The two programs are
// built together and run on one machine, so numbers are native.
constexpr std::string_view kRequestTag = "xla-gpu compile request 3\n";
constexpr std::string_view kResponseTag = "xla-gpu compile response 3\n";

constexpr size_t kMaxRequestStrings = 1 << 16;

std::string EncodeStrings(std::string_view tag, const std::vector<std::string_view>& strings) {
  std::string bytes(tag);
  auto append = [&bytes](uint64_t n) {
    bytes.append(reinterpret_cast<const char*>(&n), sizeof(n));
  };
  append(strings.size());
  for (std::string_view s : strings) {
    append(s.size());
    bytes.append(s);
  }
  return bytes;
}

// At most `max_count`, so that a wrong count takes no memory.
std::optional<std::vector<std::string>> DecodeStrings(std::string_view tag, std::string_view bytes,
                                                      size_t max_count) {
  if (!bytes.starts_with(tag)) return std::nullopt;
  bytes.remove_prefix(tag.size());
  auto read = [&bytes](uint64_t& n) {
    if (bytes.size() < sizeof(n)) return false;
    std::memcpy(&n, bytes.data(), sizeof(n));
    bytes.remove_prefix(sizeof(n));
    return true;
  };
  uint64_t count = 0;
  max_count = std::min(max_count, bytes.size() / sizeof(uint64_t));
  if (!read(count) || count > max_count) return std::nullopt;
  std::vector<std::string> strings(count);
  for (std::string& s : strings) {
    uint64_t size = 0;
    if (!read(size) || size > bytes.size()) return std::nullopt;
    s = bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
  if (!bytes.empty()) return std::nullopt;
  return strings;
}

}  // namespace

std::string Encode(const CompileRequest& request) {
  const std::string num_options = std::to_string(request.options.size());
  std::vector<std::string_view> strings = {request.nvrtc, request.builtins, request.name_expression,
                                           request.ptx ? "ptx" : "", num_options};
  strings.insert(strings.end(), request.options.begin(), request.options.end());
  for (const auto& [path, text] : request.sources) {
    strings.push_back(path);
    strings.push_back(text);
  }
  return EncodeStrings(kRequestTag, strings);
}

std::optional<CompileRequest> DecodeRequest(std::string_view bytes) {
  auto strings = DecodeStrings(kRequestTag, bytes, kMaxRequestStrings);
  if (!strings || strings->size() < 5) return std::nullopt;
  auto& list = *strings;
  const size_t num_options = std::strtoull(list[4].c_str(), nullptr, 10);
  if (num_options > list.size() - 5) return std::nullopt;
  const size_t num_rest = list.size() - 5 - num_options;
  if (num_rest == 0 || num_rest % 2 != 0) return std::nullopt;
  CompileRequest request;
  request.nvrtc = std::move(list[0]);
  request.builtins = std::move(list[1]);
  request.name_expression = std::move(list[2]);
  request.ptx = !list[3].empty();
  for (size_t i = 5; i < 5 + num_options; ++i) request.options.push_back(std::move(list[i]));
  for (size_t i = 5 + num_options; i < list.size(); i += 2) {
    request.sources.emplace_back(std::move(list[i]), std::move(list[i + 1]));
  }
  return request;
}

std::string Encode(const CompileResponse& response) {
  const std::string outcome = std::to_string(static_cast<int>(response.outcome));
  return EncodeStrings(kResponseTag,
                       {outcome, response.log, response.cubin, response.entry, response.ptx});
}

std::optional<CompileResponse> DecodeResponse(std::string_view bytes) {
  auto strings = DecodeStrings(kResponseTag, bytes, 5);
  if (!strings || strings->size() != 5) return std::nullopt;
  auto& list = *strings;
  if (list[0].size() != 1 || list[0][0] < '0' || list[0][0] > '3') return std::nullopt;
  return CompileResponse{static_cast<CompileResponse::Outcome>(list[0][0] - '0'),
                         std::move(list[1]), std::move(list[2]), std::move(list[3]),
                         std::move(list[4])};
}

}  // namespace xla_gpu::cuda
