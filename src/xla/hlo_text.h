// Reading the text of an optimised HLO module: which custom calls are left in it, and how.
#ifndef XLA_GPU_XLA_HLO_TEXT_H_
#define XLA_GPU_XLA_HLO_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"

namespace xla_gpu::xla {

struct HloCustomCall {
  std::string name;  // of the instruction: "%custom-call.1"
  std::string target;
  int api_version = 1;   // XLA prints none for 1, API_VERSION_ORIGINAL
  std::string type;      // of the result, as XLA prints it: "f32[4]{0}"
  std::string aliasing;  // output_to_operand_aliasing={...}, without the braces; empty: none
  std::string line;      // the whole instruction
};

std::vector<HloCustomCall> FindHloCustomCalls(std::string_view hlo);

// "4 (typed FFI)", "1 (original)".
std::string ApiVersionText(int api_version);

struct HloModuleText {
  std::string file;  // its name in the dump folder
  std::string text;
};

// The optimised modules of an XLA dump folder (--xla_dump_to with --xla_dump_hlo_as_text), by name.
StatusOr<std::vector<HloModuleText>> ReadHloDump(const std::string& folder);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_HLO_TEXT_H_
