#include "src/core/schema_json.h"

#include <nlohmann/json.hpp>

namespace xla_gpu {
namespace {

using Json = nlohmann::ordered_json;

Json OpToJson(const Op& op) {
  Json json = {{"name", op.name}, {"target", op.target}, {"doc", op.doc}};
  json["platforms"] = Json::array();
  for (int p = 0; p < kNumPlatforms; ++p) {
    if (op.make_plan[p] != nullptr) {
      json["platforms"].push_back(PlatformName(static_cast<Platform>(p)));
    }
  }
  json["args"] = Json::array();
  for (const ArgSpec& arg : op.args) {
    json["args"].push_back({{"name", arg.name}, {"optional", arg.optional}, {"doc", arg.doc}});
  }
  json["results"] = Json::array();
  for (const ResultSpec& result : op.results) {
    json["results"].push_back({{"name", result.name},
                               {"optional", result.optional},
                               {"alias_of", result.alias_of},
                               {"doc", result.doc}});
  }
  json["attrs"] = Json::array();
  for (const AttrSpec& attr : op.attrs) {
    json["attrs"].push_back({{"name", attr.name},
                             {"type", AttrTypeName(attr.type)},
                             {"default", attr.default_text},
                             {"doc", attr.doc}});
  }
  return json;
}

}  // namespace

std::string TensorSpecsToJson(const std::vector<TensorSpec>& specs) {
  Json json = Json::array();
  for (const TensorSpec& spec : specs) {
    json.push_back({{"dtype", DTypeName(spec.dtype)}, {"shape", spec.shape}});
  }
  return json.dump();
}

std::string OpsToJson(const OpRegistry& registry) {
  Json json = Json::array();
  for (const auto& op : registry.ops()) json.push_back(OpToJson(*op));
  return json.dump();
}

}  // namespace xla_gpu
