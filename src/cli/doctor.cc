// `xla-gpu doctor`: looks at this machine and says what fits, what does not, and why.
#include <cstdio>

#include "src/cli/child_process.h"
#include "src/cli/cli.h"
#include "src/cli/doctor_report.h"
#include "src/cli/plugin_survey.h"
#include "src/core/op_registry.h"
#include "src/xla/pjrt_discovery.h"

namespace xla_gpu::cli {
namespace {

// The folders given, else those of this environment, else those of `python3`.
std::vector<std::string> Folders(std::vector<std::string> given) {
  if (!given.empty()) return given;
  std::vector<std::string> folders = xla::SitePackages();
  if (FindPythonPackages(folders).empty()) folders = xla::PythonSysPath();
  return folders;
}

Findings Gather(std::vector<std::string> site_packages) {
  Findings findings;
  findings.library_version = XLA_GPU_VERSION;
  for (const auto& op : OpRegistry::Global().ops()) findings.ops.push_back(op->name);
  findings.site_packages = std::move(site_packages);
  for (const xla::FoundPlugin& plugin : xla::FindPjrtPlugins(findings.site_packages)) {
    findings.plugins.push_back(SurveyPlugin(plugin, SelfPath()));
  }
  findings.cuda = cuda::Diagnose();
  findings.gpu_device_files = xla::MachineHasNvidiaGpu();
  findings.packages = FindPythonPackages(findings.site_packages);
  return findings;
}

int RunDoctor(const Args& args) {
  bool json = false;
  std::vector<std::string> site_packages;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--json") {
      json = true;
    } else if (args[i] == "--plugin" && args.size() == 2 && i == 0) {
      std::printf("%s\n", DescribePlugin(args[1]).c_str());
      return 0;
    } else if (args[i] == "--site-packages" && i + 1 < args.size()) {
      site_packages.push_back(args[++i]);
    } else {
      std::fprintf(stderr,
                   "xla-gpu doctor: unexpected argument '%s'; usage: xla-gpu doctor [--json] "
                   "[--site-packages FOLDER]... | doctor --plugin PLUGIN.so\n",
                   args[i].c_str());
      return 2;
    }
  }
  const Report report = Diagnose(Gather(Folders(std::move(site_packages))));
  std::fputs((json ? ReportToJson(report) + "\n" : ReportToText(report)).c_str(), stdout);
  return report.usable ? 0 : 1;
}

XLA_GPU_CLI_COMMAND("doctor",
                    "doctor [--json] [--site-packages FOLDER]... | doctor --plugin PLUGIN.so",
                    "What this machine has (driver, GPU, NVRTC, XLA runtimes) and what fits.",
                    RunDoctor);

}  // namespace
}  // namespace xla_gpu::cli
