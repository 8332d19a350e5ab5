// What a PJRT plugin is, asked in a child process: a plugin that crashes or hangs when it is loaded
// becomes a finding, not the end of `doctor`.
#ifndef XLA_GPU_CLI_PLUGIN_SURVEY_H_
#define XLA_GPU_CLI_PLUGIN_SURVEY_H_

#include <functional>
#include <string>

#include "src/cli/doctor_report.h"
#include "src/xla/pjrt_discovery.h"

namespace xla_gpu::cli {

// Call it while the process has one thread only (it forks).
PluginFinding SurveyPlugin(const xla::FoundPlugin& plugin);

// Runs `body` in a child process and gives what it returned. `problem` is set instead if the child
// died or ran longer than `seconds`.
std::string RunInChild(const std::function<std::string()>& body, int seconds, std::string* problem);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_PLUGIN_SURVEY_H_
