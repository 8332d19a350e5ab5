// Any text gives calls and arguments that stand in it, or an error; never a fault or a hang.
#include <cstdlib>

#include "src/core/fuzz_seeds.h"
#include "src/xla/mlir_text.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  xla_gpu::WriteSeedsIfAsked(
      *argc, *argv,
      {"module { func.func public @main(%a: tensor<2x3xbf16> {x.y = \"tensor<9xi8>\"}, %b: "
       "tensor<4xf8E4M3FN, #enc<1>> loc(\"x\")) -> (tensor<i1>) { return } }",
       "%0 = stablehlo.custom_call @a(%x, %y) {api_version = 4 : i32, b = {s = \"}\"}} : ...\n"
       "%1 = stablehlo.custom_call @\"b-2\"(%x) : (tensor<f32>) -> tensor<f32>",
       "%2 = \"stablehlo.custom_call\"(%x) <{api_version = 3 : i32, call_target_name = \"c\"}>",
       "// custom_call @no()\naffine_set<(d0) : (d0 - 1 >= 0)>", "ML\xefR"});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& call : xla_gpu::xla::FindMlirCustomCalls(text)) {
    const bool as_written = text.find('\\') == text.npos;  // no name is escaped
    if (call.target.empty() || (as_written && text.find(call.target) == text.npos)) std::abort();
  }
  const auto check = [](const xla_gpu::TensorSpec& spec) {
    const std::string type = xla_gpu::xla::MlirTensorType(spec);  // tensor<...>
    const auto again = xla_gpu::xla::ParseMlirTensorType(type.substr(7, type.size() - 8));
    if (!again.ok() || !(*again == spec)) std::abort();
  };
  if (const auto arguments = xla_gpu::xla::MainArguments(text); arguments.ok()) {
    for (const xla_gpu::TensorSpec& spec : *arguments) check(spec);
  }
  if (const auto spec = xla_gpu::xla::ParseMlirTensorType(text); spec.ok()) check(*spec);
  return 0;
}
