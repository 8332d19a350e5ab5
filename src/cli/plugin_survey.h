// What a PJRT plugin is, asked in a child process: a plugin that crashes or hangs when it is loaded
// becomes a finding, not the end of `doctor`.
#ifndef XLA_GPU_CLI_PLUGIN_SURVEY_H_
#define XLA_GPU_CLI_PLUGIN_SURVEY_H_

#include <string>

#include "src/cli/doctor_report.h"
#include "src/xla/pjrt_discovery.h"

namespace xla_gpu::cli {

// Runs `program doctor --child=PATH` (this program, SelfPath()) and reads its answer.
PluginFinding SurveyPlugin(const xla::FoundPlugin& plugin, const std::string& program);

// The child's part: loads the plugin into this process and describes it, as one line of JSON.
std::string DescribePlugin(const std::string& path);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_PLUGIN_SURVEY_H_
