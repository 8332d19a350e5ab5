// Any text gives calls whose parts stand in it; never a fault or a hang.
#include <cstdlib>

#include "src/core/fuzz_seeds.h"
#include "src/xla/hlo_text.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  xla_gpu::WriteSeedsIfAsked(
      *argc, *argv,
      {"HloModule m\nENTRY %main {\n  %c.1 = f32[4]{0} custom-call(%a), "
       "custom_call_target=\"X\"\n}\n",
       "  ROOT %c = (f32[2]{0}, u8[16]{0}) custom-call(%a), custom_call_target=\"Y\", "
       "output_to_operand_aliasing={{0}: (0, {}), {1}: (1, {})}, "
       "api_version=API_VERSION_TYPED_FFI, backend_config={s = \"api_version=\\\"Z\\\"\"}\n"});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& call : xla_gpu::xla::FindHloCustomCalls(text)) {
    const auto stands = [&call](const std::string& part) {
      return call.line.find(part) != std::string::npos;
    };
    if (text.find(call.line) == text.npos || call.name.empty() || !stands(call.name) ||
        !stands(call.type) || !stands(call.target) || !stands(call.aliasing) ||
        call.api_version < 0 || call.api_version > 4) {
      std::abort();
    }
  }
  return 0;
}
