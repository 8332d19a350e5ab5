// xla-gpu hlo: what XLA made of a module, and which custom calls survived.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "src/cli/cli.h"
#include "src/cli/program.h"
#include "src/core/strings.h"
#include "src/xla/hlo_text.h"

namespace xla_gpu::cli {
namespace {

StatusOr<std::vector<xla::HloModuleText>> CompileAndDump(const std::string& file,
                                                         const std::string& plugin,
                                                         const std::vector<std::string>& handlers) {
  XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir, ReadModule(file));
  const HloDump dump;
  XLA_GPU_RETURN_IF_ERROR(Compile(mlir, plugin, handlers).status());
  return dump.Read();
}

int Hlo(const Invocation& invocation) {
  std::string file, plugin;
  std::vector<std::string> expected, handlers;
  if (const auto code = invocation.Parse({
          {"FILE", "", &file, "a StableHLO module, or the folder of a dump (--xla_dump_to)"},
          PluginOption(&plugin),
          {"--expect", "TARGET", &expected, "fail if no custom call to this target is left"},
          HandlerOption(&handlers),
      })) {
    return *code;
  }
  std::error_code error;
  const auto modules = std::filesystem::is_directory(file, error)
                           ? xla::ReadHloDump(file)
                           : CompileAndDump(file, plugin, handlers);
  if (!modules.ok()) return invocation.Fail(NameKnownTargets(modules.status()));

  std::vector<std::string> found;
  for (const xla::HloModuleText& module : *modules) {
    if (modules->size() > 1) std::printf("// %s\n", module.file.c_str());
    std::printf("%s", module.text.c_str());
    const std::vector<xla::HloCustomCall> calls = xla::FindHloCustomCalls(module.text);
    std::printf("\n// %zu custom call%s%s\n", calls.size(), calls.size() == 1 ? "" : "s",
                calls.empty() ? "" : ":");
    for (const xla::HloCustomCall& call : calls) {
      std::printf("//   %s: %s, API version %s, result %s%s%s\n", call.name.c_str(),
                  call.target.c_str(), xla::ApiVersionText(call.api_version).c_str(),
                  call.type.c_str(), call.aliasing.empty() ? "" : ", aliasing ",
                  call.aliasing.c_str());
      found.push_back(call.target);
    }
  }
  for (const std::string& target : expected) {
    if (std::ranges::find(found, target) != found.end()) continue;
    return invocation.Fail(NotFound(
        StrCat("no custom call to ", target,
               " is in the optimised module: XLA folded it away (its "
               "result is not used, or an equal call stands for it), or the module never had it",
               DidYouMean(target, found))));
  }
  return 0;
}

XLA_GPU_CLI_COMMAND("hlo", "show the optimised HLO and the custom calls left in it",
                    "hlo add.mlir --plugin cpu --expect XlaGpuSimpleAdd", Hlo);

}  // namespace
}  // namespace xla_gpu::cli
