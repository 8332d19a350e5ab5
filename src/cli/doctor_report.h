// What `xla-gpu doctor` found, and its verdicts: pure functions of the findings, so that tests can
// show them machines of every kind.
#ifndef XLA_GPU_CLI_DOCTOR_REPORT_H_
#define XLA_GPU_CLI_DOCTOR_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/python_packages.h"
#include "src/cuda/diagnostics.h"

namespace xla_gpu::cli {

struct PluginFinding {
  std::string path;
  std::string package;  // empty if unknown
  std::string version;
  bool is_gpu = false;
  std::string pjrt;                     // "0.81"; empty if it was not loaded
  std::string ffi;                      // of its runtime: "0.3"
  std::vector<std::string> extensions;  // names, as of pjrt_c_api.h
  bool takes_typed = false;             // custom calls of API version 4
  bool takes_legacy = false;            // of API versions 1, 2, 3
  std::string problem;                  // why it cannot be used, or empty
};

struct Findings {
  std::string library_version;
  std::vector<std::string> ops;
  std::string library;          // XLA_GPU_LIBRARY, for the Python package
  std::string library_problem;  // why it cannot be used, or empty
  cuda::Diagnostics cuda;
  bool gpu_device_files = false;  // the machine has an NVIDIA GPU, driver or not
  std::vector<std::string> site_packages;
  std::vector<PythonPackage> packages;
  std::vector<PluginFinding> plugins;
  bool plugins_named = false;  // by --plugin: the question is whether these can be used
};

enum class Fit { kYes, kPartly, kNo };

struct Verdict {
  std::string subject;  // "jaxlib 0.10.2"
  Fit fit = Fit::kYes;
  std::string reason;
  std::string remedy;  // what to do; empty if nothing needs doing
};

struct Report {
  Findings findings;
  std::vector<Verdict> verdicts;
  // An XLA runtime that takes our custom calls is there; every plugin does, where they are named.
  bool usable = false;
};

Report Diagnose(Findings findings);

// 13000 is "13.0"; 0 is empty.
std::string CudaVersion(int version);

// The plugin's part of the JSON report.
nlohmann::ordered_json ToJson(const PluginFinding& plugin);

// The report for people, and as JSON (its members are stable: "schema" counts incompatible
// changes).
std::string ReportToText(const Report& report);
std::string ReportToJson(const Report& report);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_DOCTOR_REPORT_H_
