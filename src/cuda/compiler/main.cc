// xla-gpu-compile: compiles one CUDA source with NVRTC, as a process of its own.
//
// NVRTC crashes on some valid input and takes the process with it; here it takes only this helper,
// and the library reports an error. A request comes on stdin, the response goes to stdout
// (src/cuda/compile_protocol.h). People do not run it; libxla_gpu does.
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "src/core/strings.h"
#include "src/cuda/compile_protocol.h"

namespace xla_gpu::cuda {
namespace {

using Outcome = CompileResponse::Outcome;
using nvrtcProgram = struct _nvrtcProgram*;
using nvrtcResult = int;  // 0 is success

struct NvrtcApi {
  nvrtcResult (*nvrtcCreateProgram)(nvrtcProgram* program, const char* source, const char* name,
                                    int num_headers, const char* const* headers,
                                    const char* const* include_names);
  nvrtcResult (*nvrtcCompileProgram)(nvrtcProgram program, int num_options,
                                     const char* const* options);
  nvrtcResult (*nvrtcGetProgramLogSize)(nvrtcProgram program, size_t* size);
  nvrtcResult (*nvrtcGetProgramLog)(nvrtcProgram program, char* log);
  nvrtcResult (*nvrtcAddNameExpression)(nvrtcProgram program, const char* expression);
  nvrtcResult (*nvrtcGetLoweredName)(nvrtcProgram program, const char* expression,
                                     const char** name);
  nvrtcResult (*nvrtcGetCUBINSize)(nvrtcProgram program, size_t* size);
  nvrtcResult (*nvrtcGetCUBIN)(nvrtcProgram program, char* cubin);
  nvrtcResult (*nvrtcGetPTXSize)(nvrtcProgram program, size_t* size);
  nvrtcResult (*nvrtcGetPTX)(nvrtcProgram program, char* ptx);
  const char* (*nvrtcGetErrorString)(nvrtcResult result);
};

CompileResponse Unusable(const std::string& path) {
  const char* why = dlerror();
  return {Outcome::kNvrtcUnusable, StrCat(path, ": ", why == nullptr ? "unknown error" : why)};
}

// False, with `response` filled in, if the library cannot be used.
bool LoadNvrtc(const CompileRequest& request, NvrtcApi& api, CompileResponse& response) {
  // NVRTC opens its builtins by bare name, which finds them only if they are loaded already or on
  // the loader's path.
  dlopen(request.builtins.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* library = dlopen(request.nvrtc.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    response = Unusable(request.nvrtc);
    return false;
  }
  const std::pair<const char*, void**> symbols[] = {
      {"nvrtcCreateProgram", reinterpret_cast<void**>(&api.nvrtcCreateProgram)},
      {"nvrtcCompileProgram", reinterpret_cast<void**>(&api.nvrtcCompileProgram)},
      {"nvrtcGetProgramLogSize", reinterpret_cast<void**>(&api.nvrtcGetProgramLogSize)},
      {"nvrtcGetProgramLog", reinterpret_cast<void**>(&api.nvrtcGetProgramLog)},
      {"nvrtcAddNameExpression", reinterpret_cast<void**>(&api.nvrtcAddNameExpression)},
      {"nvrtcGetLoweredName", reinterpret_cast<void**>(&api.nvrtcGetLoweredName)},
      {"nvrtcGetCUBINSize", reinterpret_cast<void**>(&api.nvrtcGetCUBINSize)},
      {"nvrtcGetCUBIN", reinterpret_cast<void**>(&api.nvrtcGetCUBIN)},
      {"nvrtcGetPTXSize", reinterpret_cast<void**>(&api.nvrtcGetPTXSize)},
      {"nvrtcGetPTX", reinterpret_cast<void**>(&api.nvrtcGetPTX)},
      {"nvrtcGetErrorString", reinterpret_cast<void**>(&api.nvrtcGetErrorString)},
  };
  for (const auto& [name, slot] : symbols) {
    *slot = dlsym(library, name);
    if (*slot == nullptr) {
      response = Unusable(request.nvrtc);
      return false;
    }
  }
  return true;
}

std::string ProgramLog(const NvrtcApi& api, nvrtcProgram program) {
  size_t size = 0;
  if (api.nvrtcGetProgramLogSize(program, &size) != 0 || size <= 1) return "";
  std::string log(size, '\0');
  if (api.nvrtcGetProgramLog(program, log.data()) != 0) return "";
  log.resize(size - 1);  // the size counts the closing NUL
  return log;
}

CompileResponse Compile(const CompileRequest& request) {
  NvrtcApi api{};
  CompileResponse response;
  if (!LoadNvrtc(request, api, response)) return response;

  std::vector<const char*> names, texts, options;
  for (const auto& [path, text] : request.sources) {
    names.push_back(path.c_str());
    texts.push_back(text.c_str());
  }
  for (const std::string& option : request.options) options.push_back(option.c_str());

  auto failed = [&api](const char* what, nvrtcResult result, const std::string& log) {
    return CompileResponse{Outcome::kCompileError,
                           StrCat(what, ": ", api.nvrtcGetErrorString(result), "\n", log)};
  };
  nvrtcProgram program = nullptr;
  nvrtcResult result =
      api.nvrtcCreateProgram(&program, texts[0], names[0], static_cast<int>(names.size()) - 1,
                             texts.data() + 1, names.data() + 1);
  if (result != 0) return failed("nvrtcCreateProgram", result, "");
  const char* expression = request.name_expression.c_str();
  if (*expression != '\0') {
    result = api.nvrtcAddNameExpression(program, expression);
    if (result != 0) return failed("nvrtcAddNameExpression", result, "");
  }
  result = api.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  response.log = ProgramLog(api, program);
  if (result != 0) return failed("nvrtcCompileProgram", result, response.log);
  if (*expression != '\0') {
    const char* entry = nullptr;
    result = api.nvrtcGetLoweredName(program, expression, &entry);
    if (result != 0) return failed("nvrtcGetLoweredName", result, response.log);
    response.entry = entry;
  }
  size_t size = 0;
  result = api.nvrtcGetCUBINSize(program, &size);
  if (result != 0) return failed("nvrtcGetCUBINSize", result, response.log);
  response.cubin.resize(size);
  result = api.nvrtcGetCUBIN(program, response.cubin.data());
  if (result != 0) return failed("nvrtcGetCUBIN", result, response.log);
  if (!request.ptx) return response;
  result = api.nvrtcGetPTXSize(program, &size);
  if (result != 0) return failed("nvrtcGetPTXSize", result, response.log);
  response.ptx.resize(size);
  result = api.nvrtcGetPTX(program, response.ptx.data());
  if (result != 0) return failed("nvrtcGetPTX", result, response.log);
  while (response.ptx.ends_with('\0')) response.ptx.pop_back();  // the size counts it
  return response;
}

std::string ReadAll(int fd) {
  std::string bytes;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

int Main() {
  if (isatty(STDIN_FILENO)) {
    std::fprintf(stderr, "xla-gpu-compile is run by libxla_gpu; there is nothing to type here\n");
    return 2;
  }
  // The response owns stdout; whatever NVRTC prints goes to stderr.
  const int out = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const std::optional<CompileRequest> request = DecodeRequest(ReadAll(STDIN_FILENO));
  const CompileResponse response =
      request ? Compile(*request)
              : CompileResponse{Outcome::kBadRequest, "the request is not well-formed"};
  return WriteAll(out, Encode(response)) ? 0 : 1;
}

// What a process started from the middle of a big program should not keep from it.
void LeaveParentBehind() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  syscall(SYS_close_range, 3u, ~0u, 0u);  // descriptors without close-on-exec; old kernels lack it
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
}

}  // namespace
}  // namespace xla_gpu::cuda

int main() {
  xla_gpu::cuda::LeaveParentBehind();
  const int code = xla_gpu::cuda::Main();
  std::fflush(nullptr);
  _exit(code);  // past NVRTC's destructors, which have nothing left to do
}
