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
template <typename Range, typename Write = std::identity>
std::string Array(const Range& range, Write write = {}) {
  return StrCat('[', StrJoin(range, ",", write), ']');
}

}  // namespace

std::string OpToJson(const Op& op) {
  std::vector<std::string_view> platforms;
  for (int p = 0; p < kNumPlatforms; ++p) {
    if (op.make_plan[p] != nullptr) platforms.push_back(PlatformName(static_cast<Platform>(p)));
  }
  const auto dtypes = [](const DTypes& of) {
    return Array(of, [](DType dtype) { return Quote(DTypeName(dtype)); });
  };
  const auto arg = [&](const ArgSpec& a) {
    return StrCat(R"({"name":)", Quote(a.name), R"(,"dtypes":)", dtypes(a.dtypes),
                  R"(,"optional":)", Bool(a.optional), R"(,"vector":)", Bool(a.vector),
                  R"(,"no_copy":)", Bool(a.no_copy), R"(,"doc":)", Quote(a.doc), '}');
  };
  const auto result = [](const ResultSpec& r) {
    return StrCat(R"({"name":)", Quote(r.name), R"(,"kind":)", Quote(ResultKindName(r.kind)),
                  R"(,"alias_of":)", Quote(r.alias_of), R"(,"only_with":)", Quote(r.only_with),
                  R"(,"form":)", Quote(r.form), R"(,"like":)", Quote(r.like), R"(,"rank":)", r.rank,
                  R"(,"dtype":)", Quote(r.dtype), R"(,"doc":)", Quote(r.doc), '}');
  };
  const auto attr = [&](const AttrSpec& a) {
    return StrCat(
        R"({"name":)", Quote(a.name), R"(,"type":)", Quote(AttrTypeName(a.type)), R"(,"default":)",
        a.default_value.has_value() ? ValueToJson(*a.default_value) : "null",
        R"(,"none_is_default":)", Bool(a.none_is_default), R"(,"keyword_only":)",
        Bool(a.keyword_only), R"(,"derived":)", Bool(a.derived), R"(,"dtypes":)", dtypes(a.dtypes),
        R"(,"environment":)", Quote(a.environment), R"(,"doc":)", Quote(a.doc), '}');
  };
  return StrCat(R"({"name":)", Quote(op.name), R"(,"key":)", Quote(op.key), R"(,"target":)",
                Quote(op.target), R"(,"doc":)", Quote(op.doc), R"(,"platforms":)",
                Array(platforms, Quote), R"(,"args":)", Array(op.args, arg), R"(,"results":)",
                Array(op.results, result), R"(,"attrs":)", Array(op.attrs, attr),
                R"(,"instead_of_gradient":)", Quote(op.instead_of_gradient),
                R"(,"instead_of_batching":)", Quote(op.instead_of_batching), '}');
}

std::string ValueToJson(const AttrValue& value) {
  if (const auto* ints = std::get_if<std::span<const int64_t>>(&value)) return Array(*ints);
  return std::visit([](const auto& v) { return nlohmann::json(v).dump(); }, value);
}

std::string TensorSpecToJson(const TensorSpec& spec) {
  return StrCat(R"({"dtype":)", Quote(DTypeName(spec.dtype)), R"(,"shape":)", Array(spec.shape),
                '}');
}

std::string TensorSpecsToJson(const std::vector<TensorSpec>& specs) {
  return Array(specs, TensorSpecToJson);
}

std::string ResultsToJson(const std::vector<Result>& results) {
  return Array(results, [](const Result& result) {
    std::string json = TensorSpecToJson(result.type);
    json.back() = ',';
    return StrCat(json, R"("name":)", Quote(result.spec->name), R"(,"kind":)",
                  Quote(ResultKindName(result.spec->kind)), R"(,"alias_of":)",
                  result.alias_of < 0 ? "null" : std::to_string(result.alias_of), '}');
  });
}

std::string OpsToJson(const OpRegistry& registry) {
  return Array(registry.ops(), [](const auto& op) { return OpToJson(*op); });
}

}  // namespace xla_gpu
