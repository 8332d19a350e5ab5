// What this library and its helper program xla-gpu-compile say to each other over pipes: one
// request on stdin, one response on stdout. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_COMPILE_PROTOCOL_H_
#define XLA_GPU_CUDA_COMPILE_PROTOCOL_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xla_gpu::cuda {

struct CompileRequest {
  std::string nvrtc;     // path of libnvrtc
  std::string builtins;  // path of its libnvrtc-builtins
  // The kernel that is wanted, as C++ names it: "scale<float, 256>". Empty for an extern "C" one.
  std::string name_expression;
  bool ptx = false;  // whether the response brings it
  std::vector<std::string> options;
  // Path and text; the first is compiled, the others are what it may include.
  std::vector<std::pair<std::string, std::string>> sources;
};

struct CompileResponse {
  enum class Outcome { kOk, kCompileError, kNvrtcUnusable, kBadRequest };
  Outcome outcome = Outcome::kOk;
  std::string log;    // the compiler's messages, or what else went wrong
  std::string cubin;  // machine code, if kOk
  std::string entry;  // what name_expression is called there
  std::string ptx;    // if the request wants it
};

std::string Encode(const CompileRequest& request);
std::string Encode(const CompileResponse& response);
// Nothing if the bytes are not a whole, well-formed message.
std::optional<CompileRequest> DecodeRequest(std::string_view bytes);
std::optional<CompileResponse> DecodeResponse(std::string_view bytes);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_COMPILE_PROTOCOL_H_
