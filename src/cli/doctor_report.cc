#include "src/cli/doctor_report.h"

#include <sstream>

#include "src/cli/json.h"
#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

// By Fit: in JSON, and as a mark.
constexpr const char* kFitNames[] = {"yes", "partly", "no"};
constexpr const char* kFitMarks[] = {"ok", "--", "NO"};

}  // namespace

std::string CudaVersion(int version) {
  return version == 0 ? "" : StrCat(version / 1000, ".", version % 1000 / 10);
}

Json ToJson(const PluginFinding& plugin) {
  return {{"path", plugin.path},
          {"package", plugin.package},
          {"version", plugin.version},
          {"gpu", plugin.is_gpu},
          {"pjrt", plugin.pjrt},
          {"ffi", plugin.ffi},
          {"extensions", plugin.extensions},
          {"typed", plugin.takes_typed},
          {"legacy", plugin.takes_legacy},
          {"problem", plugin.problem}};
}

std::string ReportToText(const Report& report) {
  const Findings& f = report.findings;
  std::ostringstream out;
  out << "xla-gpu " << f.library_version << ": ops " << StrJoin(f.ops, ", ") << "\n";
  const cuda::Diagnostics& c = f.cuda;
  out << "\nDriver    "
      << (c.driver.ok() ? StrCat("CUDA ", CudaVersion(c.driver_version)) : "none usable") << "\n";
  for (const cuda::DeviceInfo& gpu : c.devices) {
    out << "GPU " << gpu.ordinal << "     " << gpu.name << ", compute capability "
        << gpu.compute_major << "." << gpu.compute_minor << ", " << (gpu.memory_bytes >> 30)
        << " GiB\n";
  }
  if (c.nvrtcs.empty()) out << "NVRTC     none found\n";
  for (const cuda::NvrtcDiagnosis& nvrtc : c.nvrtcs) {
    out << "NVRTC     " << nvrtc.version << (nvrtc.chosen ? " (used) " : " ") << nvrtc.path << "\n";
  }
  out << "Compiler  " << (c.compiler.ok() ? c.compiler_program : "none found") << "\n";
  out << "Cache     "
      << (c.cache.folder.empty() ? "switched off"
                                 : StrCat(c.cache.folder, ": ", c.cache.num_kernels, " kernels, ",
                                          c.cache.bytes >> 10, " KiB"))
      << "\n";
  if (!f.plugins_named) out << "\nPython packages\n";
  if (!f.plugins_named && f.site_packages.empty()) {
    out << "  no site-packages folder was found; activate a virtual environment or pass "
           "--site-packages FOLDER\n";
  }
  for (const std::string& folder : f.site_packages) {
    out << "  " << folder << "\n";
    for (const PythonPackage& package : f.packages) {
      if (package.folder == folder) out << "    " << package.name << " " << package.version << "\n";
    }
  }
  out << "\nPJRT plugins\n";
  if (f.plugins.empty()) out << "  none found\n";
  for (const PluginFinding& plugin : f.plugins) {
    out << "  " << plugin.path << "\n    ";
    if (!plugin.package.empty()) out << plugin.package << " " << plugin.version << "; ";
    if (!plugin.pjrt.empty()) {
      out << "PJRT " << plugin.pjrt << "; FFI " << (plugin.ffi.empty() ? "unknown" : plugin.ffi)
          << "; extensions " << StrJoin(plugin.extensions, ", ");
    } else {
      out << "not loaded";
    }
    out << "\n";
  }
  out << "\nVerdicts\n";
  for (const Verdict& verdict : report.verdicts) {
    out << "  " << kFitMarks[static_cast<int>(verdict.fit)] << "  " << verdict.subject << ": "
        << verdict.reason << "\n";
    if (!verdict.remedy.empty()) out << "        remedy: " << verdict.remedy << "\n";
  }
  out << "\n"
      << (f.plugins_named
              ? report.usable ? "Every plugin named takes" : "Not every plugin named takes"
          : report.usable ? "An XLA runtime here takes"
                          : "No XLA runtime here takes")
      << " the custom calls of xla_gpu.\n";
  return std::move(out).str();
}

std::string ReportToJson(const Report& report) {
  const Findings& f = report.findings;
  Json json = {{"schema", kSchema}, {"usable", report.usable}};
  json["library"] = {{"version", f.library_version}, {"ffi", "0.1"}, {"ops", f.ops}};
  const cuda::Diagnostics& c = f.cuda;
  json["driver"] = {{"cuda", CudaVersion(c.driver_version)}, {"error", c.driver.message()}};
  json["gpus"] = Json::array();
  for (const cuda::DeviceInfo& gpu : c.devices) {
    json["gpus"].push_back(
        {{"ordinal", gpu.ordinal},
         {"name", gpu.name},
         {"compute_capability", StrCat(gpu.compute_major, ".", gpu.compute_minor)},
         {"memory_bytes", gpu.memory_bytes}});
  }
  json["nvrtc"] = Json::array();
  for (const cuda::NvrtcDiagnosis& nvrtc : c.nvrtcs) {
    json["nvrtc"].push_back({{"path", nvrtc.path},
                             {"version", nvrtc.version},
                             {"origin", nvrtc.origin},
                             {"problem", nvrtc.problem},
                             {"chosen", nvrtc.chosen}});
  }
  json["compiler"] = {{"path", c.compiler_program}, {"error", c.compiler.message()}};
  json["cache"] = {{"folder", c.cache.folder},
                   {"kernels", c.cache.num_kernels},
                   {"bytes", c.cache.bytes},
                   {"error", c.cache.status.message()}};
  json["site_packages"] = f.site_packages;
  json["packages"] = Json::array();
  for (const PythonPackage& package : f.packages) {
    json["packages"].push_back(
        {{"name", package.name}, {"version", package.version}, {"folder", package.folder}});
  }
  json["plugins"] = Json::array();
  for (const PluginFinding& plugin : f.plugins) json["plugins"].push_back(ToJson(plugin));
  json["verdicts"] = Json::array();
  for (const Verdict& verdict : report.verdicts) {
    json["verdicts"].push_back({{"subject", verdict.subject},
                                {"fits", kFitNames[static_cast<int>(verdict.fit)]},
                                {"reason", verdict.reason},
                                {"remedy", verdict.remedy}});
  }
  return JsonText(json, 2);
}

}  // namespace xla_gpu::cli
