// xla-gpu hlo: what XLA made of a module, and which custom calls survived.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "src/cli/cli.h"
#include "src/cli/options.h"
#include "src/cli/program.h"
#include "src/core/strings.h"
#include "src/xla/hlo_text.h"
#include "src/xla/op_registration.h"
#include "src/xla/pjrt_client.h"

namespace xla_gpu::cli {
namespace {

constexpr char kUsage[] =
    "hlo FILE.mlir|DUMP_FOLDER [--plugin PATH|cpu|cuda] [--expect TARGET]...\n"
    "               [--handler NAME=LIBRARY.so:SYMBOL[:API_VERSION]]...";

StatusOr<std::vector<xla::HloModuleText>> CompileAndDump(const std::string& file,
                                                         const std::string& plugin_name,
                                                         const std::vector<std::string>& handlers) {
  XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir, ReadTextFile(file));
  const HloDump dump;
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, OpenPlugin(plugin_name));
  for (const std::string& handler : handlers) {
    XLA_GPU_RETURN_IF_ERROR(RegisterUserHandler(*plugin, handler));
  }
  XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(*plugin, mlir));
  XLA_GPU_ASSIGN_OR_RETURN(auto client, xla::PjrtClient::Create(plugin));
  XLA_GPU_RETURN_IF_ERROR(client->Compile(mlir).status());
  return dump.Read();
}

int Hlo(const Args& args) {
  std::string plugin;
  std::vector<std::string> expected, handlers;
  const auto files = ParseOptions(args, {{.name = "--plugin", .value = &plugin},
                                         {.name = "--expect", .values = &expected},
                                         {.name = "--handler", .values = &handlers}});
  if (!files.ok()) return FailUsage("hlo", files.status().message());
  if (files->size() != 1) {
    return FailUsage("hlo",
                     StrCat("one FILE.mlir or dump folder is wanted, ", files->size(), " came"));
  }
  QuietXla();
  const std::string& file = (*files)[0];
  std::error_code error;
  const auto modules = std::filesystem::is_directory(file, error)
                           ? xla::ReadHloDump(file)
                           : CompileAndDump(file, plugin, handlers);
  if (!modules.ok()) return Fail("hlo", modules.status());

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
    return Fail("hlo",
                NotFound(StrCat("no custom call to ", target,
                                " is in the optimised module: XLA folded it away (its result is "
                                "not used, or an equal call stands for it), or the module never "
                                "had it")));
  }
  return 0;
}

XLA_GPU_CLI_COMMAND("hlo", kUsage, "show the optimised HLO and the custom calls left in it", Hlo);

}  // namespace
}  // namespace xla_gpu::cli
