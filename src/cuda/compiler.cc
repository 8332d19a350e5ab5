#include "src/cuda/compiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <vector>

#include "src/core/child_process.h"
#include "src/core/file.h"
#include "src/core/python_folders.h"
#include "src/core/strings.h"

namespace xla_gpu::cuda {
namespace {

constexpr char kProgram[] = "xla-gpu-compile";
constexpr double kDefaultTimeoutSeconds = 300;

bool IsProgram(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// The end of a long text: compilers say what matters last.
std::string Tail(const std::string& text, size_t limit = 8000) {
  if (text.size() <= limit) return text;
  return StrCat("[", text.size() - limit, " bytes left out]", text.substr(text.size() - limit));
}

// The last word on an outcome that is not kOk.
Status Failure(const CompileResponse& response, const std::string& name) {
  switch (response.outcome) {
    case CompileResponse::Outcome::kCompileError:
      return InvalidArgument("cuda: kernel ", name, " does not compile:\n", Tail(response.log));
    case CompileResponse::Outcome::kNvrtcUnusable:
      return Unavailable("NVRTC could not be opened: ", response.log);
    default:
      return Internal("cuda: kernel ", name, ": ", kProgram,
                      " did not understand the request; it must come from the same build "
                      "as this library (XLA_GPU_COMPILER may name another)");
  }
}

}  // namespace

StatusOr<std::chrono::milliseconds> CompileTimeout() {
  double seconds = kDefaultTimeoutSeconds;
  if (const std::string text = Env("XLA_GPU_COMPILE_TIMEOUT"); !text.empty()) {
    std::istringstream number(text);  // not strtod, which asks the program's locale: 0,5
    number >> seconds;
    if (number.fail() || !number.eof() || !(seconds > 0 && seconds <= 1e6)) {
      return InvalidArgument("cuda: XLA_GPU_COMPILE_TIMEOUT is '", text,
                             "'; it must be a number of seconds above 0");
    }
  }
  return std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(seconds * 1e3)));
}

StatusOr<std::string> FindCompilerProgram() {
  if (const std::string given = Env("XLA_GPU_COMPILER"); !given.empty()) {
    if (IsProgram(given)) return given;
    return FailedPrecondition("cuda: XLA_GPU_COMPILER is ", given,
                              ", which is not an executable file");
  }
  std::vector<std::string> places;
  if (const std::string own = OwnFolder(); !own.empty()) {
    for (const char* relative : {"/", "/bin/"}) places.push_back(own + relative);
    // PREFIX/lib, PREFIX/lib/x86_64-linux-gnu; a folder above may be /tmp, where anyone may put a
    // program of this name.
    for (const char* relative : {"/../bin/", "/../../bin/", "/../"}) {
      if (HasTrustedOwner(own + relative + kProgram, own)) places.push_back(own + relative);
    }
  }
  for (const std::string& site : SitePackages()) places.push_back(site + "/xla_gpu/bin/");
  for (const std::string& place : places) {
    if (IsProgram(place + kProgram)) return place + kProgram;
  }
  return FailedPrecondition(
      "cuda: the helper program ", kProgram, ", which compiles kernels, was not found in ",
      StrJoin(places, ", "),
      "; install the wheel again, or set XLA_GPU_COMPILER to the program's path");
}

StatusOr<CompileResult> CompileInChild(const CompileRequest& request, const std::string& name) {
  XLA_GPU_ASSIGN_OR_RETURN(std::string program, FindCompilerProgram());
  XLA_GPU_ASSIGN_OR_RETURN(std::chrono::milliseconds timeout, CompileTimeout());
  XLA_GPU_ASSIGN_OR_RETURN(ChildResult child, RunChild({program}, Encode(request), timeout));
  if (child.timed_out) {
    return Internal("cuda: kernel ", name, " was not compiled within ",
                    static_cast<double>(timeout.count()) / 1e3,
                    " s and the compiler was killed; XLA_GPU_COMPILE_TIMEOUT sets the "
                    "limit in seconds\n",
                    Tail(child.err));
  }
  std::optional<CompileResponse> response = DecodeResponse(child.out);
  if (!response || child.exit_code > 0 || child.signal >= 0) {
    return Internal("cuda: the compiler of kernel ", name, " ", child.HowItEnded(),
                    response ? " (" : " without an answer (", request.nvrtc,
                    "; NVRTC 13.0 is known to crash on valid kernels, newer ones not: "
                    "pip install -U nvidia-cuda-nvrtc)\n",
                    Tail(child.err));
  }
  if (response->outcome != CompileResponse::Outcome::kOk) return Failure(*response, name);
  return CompileResult{std::move(response->cubin), std::move(response->log),
                       std::move(response->entry), std::move(response->ptx)};
}

}  // namespace xla_gpu::cuda
