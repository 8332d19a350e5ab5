// What a compile child may write, which can have crashed anywhere: DecodeResponse on any bytes
// never faults, takes no memory for what is not there, and accepts what Encode writes alone.
// Requests are read by the same code.
#include "src/cuda/compile_protocol.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace xla_gpu::cuda {
namespace {

void Require(bool what) {
  if (!what) std::abort();
}

void DecodeBoth(std::string_view bytes) {
  if (const auto response = DecodeResponse(bytes)) Require(Encode(*response) == bytes);
  if (const auto request = DecodeRequest(bytes)) {
    const auto again = DecodeRequest(Encode(*request));
    Require(again && again->nvrtc == request->nvrtc && again->builtins == request->builtins &&
            again->name_expression == request->name_expression && again->ptx == request->ptx &&
            again->options == request->options && again->sources == request->sources);
  }
}

void RunOne(std::string_view bytes) {
  DecodeBoth(bytes);
  if (bytes.size() < 4) return;
  // Messages of these bytes: they survive a round trip.
  const auto byte = [bytes](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const size_t split = byte(0) % bytes.size();
  const CompileResponse response{.outcome = static_cast<CompileResponse::Outcome>(byte(1) % 4),
                                 .log = std::string(bytes.substr(0, split)),
                                 .cubin = std::string(bytes.substr(split)),
                                 .entry = std::string(bytes.substr(split / 2, 8)),
                                 .ptx = std::string(bytes.substr(split / 3, 16))};
  const CompileRequest request{.nvrtc = "nvrtc",
                               .builtins = response.log,
                               .name_expression = response.entry,
                               .ptx = byte(1) % 2 == 0,
                               .options = {response.cubin, ""},
                               .sources = {{"a.cu", "text"}}};
  std::string messages[] = {Encode(response), Encode(request)};
  Require(DecodeResponse(messages[0]).has_value() && DecodeRequest(messages[1]).has_value());
  for (std::string& message : messages) {
    // Cut short, with something behind, and with a wrong byte: often in a length.
    const size_t at = (byte(2) | byte(3) << 8) % message.size();
    DecodeBoth(std::string_view(message).substr(0, at));
    DecodeBoth(message + '\0');
    message[at] = bytes[0];
    DecodeBoth(message);
  }
}

}  // namespace
}  // namespace xla_gpu::cuda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  xla_gpu::cuda::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
