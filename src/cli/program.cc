#include "src/cli/program.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "src/core/file.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/xla/op_registration.h"
#include "src/xla/pjrt_discovery.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

constexpr char kPluginValue[] = "PATH|cpu|cuda";

// NAME=LIBRARY.so:SYMBOL[:API_VERSION]
Status RegisterUserHandler(const xla::PjrtPlugin& plugin, const std::string& text) {
  const auto bad = [&text](const std::string& why) {
    return InvalidArgument(StrCat("--handler ", text, ": ", why,
                                  "; the form is NAME=LIBRARY.so:SYMBOL[:API_VERSION]"));
  };
  const size_t equals = text.find('=');
  const size_t colon = equals == std::string::npos ? equals : text.find(':', equals);
  if (colon == std::string::npos) return bad("a part is missing");
  const std::string library = text.substr(equals + 1, colon - equals - 1);
  std::string symbol = text.substr(colon + 1);
  int api_version = 4;
  if (const size_t second = symbol.find(':'); second != std::string::npos) {
    const std::string version = symbol.substr(second + 1);
    if (version.size() != 1 || version[0] < '1' || version[0] > '4') {
      return bad(StrCat("API version '", version, "' is none of 1, 2, 3, 4"));
    }
    api_version = version[0] - '0';
    symbol.resize(second);
  }
  std::error_code error;
  const bool is_path = library.find('/') != std::string::npos;
  if (is_path && !std::filesystem::is_regular_file(library, error)) {
    return bad(StrCat(library, " is no file"));  // a pipe would be waited for
  }
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return bad(dlerror());
  void* handler = dlsym(handle, symbol.c_str());
  if (handler == nullptr) return bad(dlerror());
  const char* platform = plugin.is_gpu() ? "CUDA" : "Host";
  return xla::Register(plugin,
                       {text.substr(0, equals), {.execute = handler}, platform, api_version});
}

}  // namespace

Option PluginOption(std::string* plugin) {
  return {"--plugin", kPluginValue, plugin,
          "PJRT plugin; default: XLA_GPU_PJRT_PLUGIN, else the best found"};
}

Option PluginsOption(std::vector<std::string>* plugins) {
  return {"--plugin", kPluginValue, plugins,
          "look at these PJRT plugins alone; default: all found"};
}

Option HandlerOption(std::vector<std::string>* handlers) {
  return {"--handler", "NAME=LIBRARY.so:SYMBOL[:API_VERSION]", handlers,
          "a handler of yours for target NAME; API version 1 to 4, default 4"};
}

StatusOr<const Op*> FindOp(const std::string& name) {
  StatusOr<const Op*> found = OpRegistry::Global().Get(name);
  if (found.ok()) return found;
  std::vector<std::string> names;
  for (const auto& op : OpRegistry::Global().ops()) {
    names.push_back(op->name);
    names.push_back(op->target);
  }
  return Status(found.status().code(), found.status().message() + DidYouMean(name, names));
}

StatusOr<std::string> ReadModule(const std::string& path) {
  constexpr uint64_t kMaxModule = uint64_t{1} << 31;  // XLA takes no larger one
  return ReadFile(path, kMaxModule);
}

StatusOr<const xla::PjrtPlugin*> OpenPlugin(const std::string& name) {
  XLA_GPU_ASSIGN_OR_RETURN(const xla::FoundPlugin found, xla::ChoosePjrtPlugin(name));
  return xla::PjrtPlugin::Load(found.path);
}

StatusOr<CompiledModule> Compile(const std::string& mlir, const std::string& plugin_name,
                                 const std::vector<std::string>& handlers) {
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, OpenPlugin(plugin_name));
  for (const std::string& handler : handlers) {
    XLA_GPU_RETURN_IF_ERROR(RegisterUserHandler(*plugin, handler));
  }
  XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(*plugin, mlir));
  XLA_GPU_ASSIGN_OR_RETURN(auto client, xla::PjrtClient::Create(plugin));
  XLA_GPU_ASSIGN_OR_RETURN(auto executable, client->Compile(mlir));
  return CompiledModule{std::move(client), std::move(executable)};
}

Status NameKnownTargets(const Status& status) {
  // "No FFI handler registered for X on a platform Host", "No registered implementation for
  // [untyped] custom call to X for Host"
  const std::string& message = status.message();
  size_t begin = std::string::npos;
  for (const std::string_view before : {"No FFI handler registered for ", " custom call to "}) {
    const size_t at = message.find(before);
    if (at != std::string::npos) begin = at + before.size();
  }
  if (begin == std::string::npos) return status;
  const std::string target = message.substr(begin, message.find(' ', begin) - begin);
  std::vector<std::string> known;
  for (const auto& op : OpRegistry::Global().ops()) known.push_back(op->target);
  if (std::ranges::find(known, target) != known.end()) return status;
  std::ranges::sort(known);
  return Status(status.code(), StrCat(message, "\nxla-gpu knows the targets ", StrJoin(known, ", "),
                                      "; --handler adds one of yours", DidYouMean(target, known)));
}

HloDump::HloDump() {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  std::string name = (temporary / "xla-gpu-hlo-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) return;
  folder_ = name;
  // What does not begin with a dash is the name of a file of flags to XLA.
  std::string flags = Env("XLA_FLAGS");
  if (const auto file = ReadFile(flags, 1 << 20); file.ok()) flags = *file;
  // XLA splits its flags at blanks, but for what stands in quotes.
  std::string quoted;
  for (const char c : folder_) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  setenv("XLA_FLAGS",
         StrCat(flags, " --xla_dump_to=\"", quoted, "\" --xla_dump_hlo_as_text").c_str(),
         /*overwrite=*/1);
}

HloDump::~HloDump() {
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

StatusOr<std::vector<xla::HloModuleText>> HloDump::Read() const {
  if (folder_.empty()) {
    return Unavailable("no folder for XLA's dump can be made in the temporary folder (TMPDIR)");
  }
  return xla::ReadHloDump(folder_);
}

}  // namespace xla_gpu::cli
