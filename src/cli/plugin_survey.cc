#include "src/cli/plugin_survey.h"

#include <utility>

#include "src/cli/child_process.h"
#include "src/cli/json.h"
#include "src/core/strings.h"
#include "src/xla/pjrt_plugin.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

constexpr int kSeconds = 120;  // a CUDA plugin on a cold disk has 300 MB to read

// False for a line that is no answer of DescribePlugin: a plugin may print lines of its own.
bool ReadAnswer(const nlohmann::json& json, PluginFinding* finding) {
  PluginFinding read = *finding;
  if (!ReadMember(json, "gpu", &read.is_gpu) || !ReadMember(json, "pjrt", &read.pjrt) ||
      !ReadMember(json, "ffi", &read.ffi) || !ReadMember(json, "extensions", &read.extensions) ||
      !ReadMember(json, "typed", &read.takes_typed) ||
      !ReadMember(json, "legacy", &read.takes_legacy) ||
      !ReadMember(json, "problem", &read.problem)) {
    return false;
  }
  *finding = std::move(read);
  return true;
}

}  // namespace

std::string DescribePlugin(const std::string& path) {
  PluginFinding finding{.path = path};
  finding.is_gpu = xla::FoundPlugin{.path = path}.is_cuda();
  const auto plugin = xla::PjrtPlugin::Load(path);
  if (!plugin.ok()) {
    finding.problem = plugin.status().message();
    return JsonText(ToJson(finding));
  }
  finding.is_gpu = (*plugin)->is_gpu();
  finding.pjrt = (*plugin)->pjrt_version().ToString();
  for (const auto& extension : (*plugin)->extensions()) {
    finding.extensions.emplace_back(xla::ExtensionTypeName(extension.type));
  }
  const auto facts = xla::LearnRuntime(**plugin);
  if (!facts.ok()) {
    finding.problem = facts.status().message();
  } else {
    finding.takes_typed = facts->takes_typed();
    finding.takes_legacy = facts->takes_untyped();
    if (finding.takes_typed) finding.ffi = facts->ffi.ToString();
  }
  return JsonText(ToJson(finding));
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
