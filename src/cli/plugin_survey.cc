#include "src/cli/plugin_survey.h"

#include <nlohmann/json.hpp>

#include "src/cli/child_process.h"
#include "src/core/strings.h"
#include "src/xla/pjrt_plugin.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

using Json = nlohmann::json;

constexpr int kSeconds = 120;  // a CUDA plugin on a cold disk has 300 MB to read

}  // namespace

std::string DescribePlugin(const std::string& path) {
  const auto plugin = xla::PjrtPlugin::Load(path);
  if (!plugin.ok()) return Json{{"problem", plugin.status().message()}}.dump();
  Json json = {{"gpu", (*plugin)->is_gpu()}, {"pjrt", (*plugin)->pjrt_version().ToString()}};
  json["extensions"] = Json::array();
  for (const auto& extension : (*plugin)->extensions()) {
    json["extensions"].push_back(xla::ExtensionTypeName(extension.type));
  }
  const auto facts = xla::LearnRuntime(**plugin);
  if (!facts.ok()) {
    json["problem"] = facts.status().message();
  } else {
    json["ffi"] = facts->takes_typed() ? facts->ffi.ToString() : "";
    json["typed"] = facts->takes_typed();
    json["legacy"] = facts->takes_untyped();
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

PluginFinding SurveyPlugin(const xla::FoundPlugin& plugin, const std::string& program) {
  PluginFinding finding;
  finding.path = plugin.path;
  finding.package = plugin.package;
  finding.version = plugin.version;
  finding.is_gpu = plugin.is_cuda();
  finding.problem = plugin.unusable;
  if (!finding.problem.empty()) return finding;

  Json json;
  const auto end = RunChild({program, "doctor", "--plugin", plugin.path}, kSeconds,
                            [&json](const std::string& line) {
                              // A plugin may print lines of its own.
                              const Json read = Json::parse(line, nullptr, /*exceptions=*/false);
                              if (read.is_object()) json = read;
                            });
  if (!end.ok() || !json.is_object()) {
    finding.problem = StrCat("loading it failed: ",
                             end.ok() ? end->ToString() : std::string(end.status().message()));
    return finding;
  }
  finding.is_gpu = json.value("gpu", finding.is_gpu);
  finding.pjrt = json.value("pjrt", "");
  finding.ffi = json.value("ffi", "");
  finding.extensions = json.value("extensions", std::vector<std::string>());
  finding.takes_typed = json.value("typed", false);
  finding.takes_legacy = json.value("legacy", false);
  finding.problem = json.value("problem", "");
  return finding;
}

}  // namespace xla_gpu::cli
