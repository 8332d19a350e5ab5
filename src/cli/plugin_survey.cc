#include "src/cli/plugin_survey.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/xla/pjrt_plugin.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

using Json = nlohmann::json;

constexpr int kSeconds = 120;  // a CUDA plugin on a cold disk has 300 MB to read

// In the child: loads the plugin and describes it.
std::string Describe(const std::string& path) {
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

void WriteAll(int fd, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t n = write(fd, text.data() + written, text.size() - written);
    if (n <= 0) return;
    written += static_cast<size_t>(n);
  }
}

}  // namespace

std::string RunInChild(const std::function<std::string()>& body, int seconds,
                       std::string* problem) {
  int ends[2];
  if (pipe(ends) != 0) {
    *problem = StrCat("pipe: ", std::strerror(errno));
    return "";
  }
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    *problem = StrCat("fork: ", std::strerror(errno));
    close(ends[0]);
    close(ends[1]);
    return "";
  }
  if (child == 0) {
    close(ends[0]);
    std::signal(SIGALRM, SIG_DFL);
    alarm(static_cast<unsigned>(seconds));
    WriteAll(ends[1], body());
    _exit(0);  // destructors of a half-loaded plugin are not to be trusted
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    *problem = StrCat("it did not finish within ", seconds, " s");
  } else if (WIFSIGNALED(status)) {
    *problem = StrCat("it ended its process by signal ", WTERMSIG(status), " (",
                      strsignal(WTERMSIG(status)), ")");
  } else if (WEXITSTATUS(status) != 0) {
    *problem = StrCat("it ended its process with exit code ", WEXITSTATUS(status));
  }
  return text;
}

PluginFinding SurveyPlugin(const xla::FoundPlugin& plugin) {
  PluginFinding finding;
  finding.path = plugin.path;
  finding.package = plugin.package;
  finding.version = plugin.version;
  finding.is_gpu = plugin.is_cuda();
  finding.problem = plugin.unusable;
  if (!finding.problem.empty()) return finding;

  std::string problem;
  const std::string text =
      RunInChild([&plugin] { return Describe(plugin.path); }, kSeconds, &problem);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!problem.empty() || !json.is_object()) {
    finding.problem = StrCat("loading it failed: ", problem.empty() ? "no answer" : problem);
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
