#include "src/core/schema_json.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "src/core/strings.h"

namespace xla_gpu {
namespace {

// As nlohmann writes it. Of single values alone: its arrays and objects allocate when they are
// destroyed, so that a want of memory there would end the process.
std::string Quote(std::string_view text) { return nlohmann::json(text).dump(); }

const char* Bool(bool value) { return value ? "true" : "false"; }

// [write(item), ...]
template <typename Range, typename Write>
std::string Array(const Range& range, Write write) {
  std::vector<std::string> items;
  for (const auto& item : range) items.push_back(write(item));
  return StrCat('[', StrJoin(items, ","), ']');
}

std::string OpToJson(const Op& op) {
  std::vector<std::string_view> platforms;
  for (int p = 0; p < kNumPlatforms; ++p) {
    if (op.make_plan[p] != nullptr) platforms.push_back(PlatformName(static_cast<Platform>(p)));
  }
  const auto arg = [](const ArgSpec& a) {
    return StrCat(R"({"name":)", Quote(a.name), R"(,"optional":)", Bool(a.optional), R"(,"doc":)",
                  Quote(a.doc), '}');
  };
  const auto result = [](const ResultSpec& r) {
    return StrCat(R"({"name":)", Quote(r.name), R"(,"optional":)", Bool(r.optional),
                  R"(,"alias_of":)", Quote(r.alias_of), R"(,"doc":)", Quote(r.doc), '}');
  };
  const auto attr = [](const AttrSpec& a) {
    return StrCat(R"({"name":)", Quote(a.name), R"(,"type":)", Quote(AttrTypeName(a.type)),
                  R"(,"default":)", Quote(a.default_text), R"(,"doc":)", Quote(a.doc), '}');
  };
  return StrCat(R"({"name":)", Quote(op.name), R"(,"target":)", Quote(op.target), R"(,"doc":)",
                Quote(op.doc), R"(,"platforms":)", Array(platforms, Quote), R"(,"args":)",
                Array(op.args, arg), R"(,"results":)", Array(op.results, result), R"(,"attrs":)",
                Array(op.attrs, attr), '}');
}

}  // namespace

std::string TensorSpecsToJson(const std::vector<TensorSpec>& specs) {
  return Array(specs, [](const TensorSpec& spec) {
    return StrCat(R"({"dtype":)", Quote(DTypeName(spec.dtype)), R"(,"shape":)",
                  Array(spec.shape, [](int64_t dim) { return std::to_string(dim); }), '}');
  });
}

std::string OpsToJson(const OpRegistry& registry) {
  return Array(registry.ops(), [](const auto& op) { return OpToJson(*op); });
}

}  // namespace xla_gpu
