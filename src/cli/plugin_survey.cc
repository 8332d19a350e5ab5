#include "src/cli/plugin_survey.h"

#include <utility>

#include "src/cli/child_process.h"
#include "src/cli/json.h"
#include "src/core/strings.h"
#include "src/xla/pjrt_plugin.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

using Json = nlohmann::json;

constexpr int kSeconds = 120;  // a CUDA plugin on a cold disk has 300 MB to read

// False for a line that is no answer of DescribePlugin: a plugin may print lines of its own.
bool ReadAnswer(const Json& json, PluginFinding* finding) {
  PluginFinding read = *finding;
  if (ReadMember(json, "pjrt", &read.pjrt)) {
    const bool told =
        ReadMember(json, "gpu", &read.is_gpu) && ReadMember(json, "extensions", &read.extensions) &&
        ReadMember(json, "ffi", &read.ffi) && ReadMember(json, "typed", &read.takes_typed) &&
        ReadMember(json, "legacy", &read.takes_legacy);
    if (!ReadMember(json, "problem", &read.problem) && !told) return false;
  } else if (!ReadMember(json, "problem", &read.problem)) {
    return false;
  }
  *finding = std::move(read);
  return true;
}

}  // namespace

std::string DescribePlugin(const std::string& path) {
  const auto plugin = xla::PjrtPlugin::Load(path);
  if (!plugin.ok()) return JsonText(Json{{"problem", plugin.status().message()}});
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
  return JsonText(json);
}

PluginFinding SurveyPlugin(const xla::FoundPlugin& plugin, const std::string& program) {
  PluginFinding finding;
  finding.path = plugin.path;
  finding.package = plugin.package;
  finding.version = plugin.version;
  finding.is_gpu = plugin.is_cuda();
  finding.problem = plugin.unusable;
  if (!finding.problem.empty()) return finding;

  bool answered = false;
  const auto end = RunLines({program, "doctor", StrCat("--child=", plugin.path)}, kSeconds,
                            [&](const std::string& line) {
                              answered |= ReadAnswer(ParseObject(line), &finding);
                              return false;
                            });
  if (!end.ok()) {
    finding.problem = StrCat("loading it failed: ", end.status().message());
  } else if (!answered) {
    finding.problem = StrCat("loading it failed: it ", end->HowItEnded());
  }
  return finding;
}

}  // namespace xla_gpu::cli
