// `xla-gpu doctor`: looks at this machine and says what fits, what does not, and why.
#include <cstdio>

#include "src/cli/child_process.h"
#include "src/cli/cli.h"
#include "src/cli/doctor_report.h"
#include "src/cli/plugin_survey.h"
#include "src/cli/program.h"
#include "src/core/elf.h"
#include "src/core/file.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
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

// What is wrong with the library that the Python package is told to load; empty if nothing is.
std::string LibraryProblem(const std::string& path) {
  constexpr std::string_view kExport("\0xla_gpu_ops_json\0", 18);
  if (path.empty()) return "";
  const StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status().message();
  if (ElfDynamicNames(*file).find(kExport) != std::string::npos) return "";
  return StrCat(path, " is no libxla_gpu.so: it does not export xla_gpu_ops_json");
}

// `plugins`: those that --plugin names. With them nothing of Python is looked at.
StatusOr<Findings> Gather(const std::vector<std::string>& plugins,
                          const std::vector<std::string>& site_packages) {
  Findings findings;
  findings.library_version = XLA_GPU_VERSION;
  for (const auto& op : OpRegistry::Global().ops()) findings.ops.push_back(op->name);
  findings.library = Env("XLA_GPU_LIBRARY");
  findings.library_problem = LibraryProblem(findings.library);
  findings.plugins_named = !plugins.empty();
  std::vector<xla::FoundPlugin> found;
  for (const std::string& name : plugins) {
    XLA_GPU_ASSIGN_OR_RETURN(xla::FoundPlugin plugin, xla::ChoosePjrtPlugin(name));
    found.push_back(std::move(plugin));
  }
  if (plugins.empty()) {
    findings.site_packages = Folders(site_packages);
    findings.packages = FindPythonPackages(findings.site_packages);
    found = xla::FindPjrtPlugins(findings.site_packages);
  }
  for (const xla::FoundPlugin& plugin : found) {
    findings.plugins.push_back(SurveyPlugin(plugin, SelfPath()));
  }
  findings.cuda = cuda::Diagnose();
  findings.gpu_device_files = xla::MachineHasNvidiaGpu();
  return findings;
}

int Doctor(const Invocation& invocation) {
  bool json = false;
  std::vector<std::string> site_packages, plugins;
  std::string child;
  if (const auto code = invocation.Parse({
          PluginsOption(&plugins),
          {"--site-packages", "FOLDER", &site_packages,
           "look for Python packages here; default: this environment"},
          {"--json", "", &json, "print JSON"},
          {"--child", "PATH", &child, ""},
      })) {
    return *code;
  }
  if (!child.empty()) {
    std::printf("%s\n", DescribePlugin(child).c_str());
    return 0;
  }
  if (!plugins.empty() && !site_packages.empty()) {
    return invocation.WrongUsage("one of --plugin and --site-packages is allowed");
  }
  StatusOr<Findings> findings = Gather(plugins, site_packages);
  if (!findings.ok()) return invocation.Fail(findings.status());
  const Report report = Diagnose(*std::move(findings));
  std::fputs((json ? ReportToJson(report) + "\n" : ReportToText(report)).c_str(), stdout);
  return report.usable ? 0 : 1;
}

XLA_GPU_CLI_COMMAND("doctor",
                    "what this machine has (driver, GPU, NVRTC, XLA runtimes) and what fits",
                    "doctor --plugin cpu", Doctor);

}  // namespace
}  // namespace xla_gpu::cli
