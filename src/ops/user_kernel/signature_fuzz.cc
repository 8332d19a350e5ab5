// Any bytes as a source text and an entry (what follows the last zero): reading the signature never
// crashes, and every parameter that it gives has a name.
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/core/fuzz_seeds.h"
#include "src/ops/user_kernel/signature.h"

namespace xla_gpu::user_kernel {
namespace {

std::vector<std::string> Seeds() {
  const auto seed = [](std::string text, std::string_view entry) {
    return text.append(1, '\0').append(entry);
  };
  return {
      seed("template <typename T, int N = (2 > 1)>\n__global__ void __launch_bounds__(256)\n"
           "f(const T* __restrict__ x, float out[4], unsigned long n = 1 << 3) {}",
           "f<float, 256>"),
      seed("namespace a::b { extern \"C\" { struct S : T { static void f(int x, std::array<int, "
           "3> y); }; } }\nvoid c::f(void (*g)(int), float&, ...);",
           "a::b::S::f"),
      seed("#define f(x) \\\n  y\n// \\\nc\n/* c */ auto s = R\"q(\" )q\"; int n = 1'000 + L'x';\n"
           "void f(float*, int); void f([[maybe_unused]] float* x, int n) { return f(x, n); }",
           "f")};
}

void RunOne(std::string_view bytes) {
  const size_t split = bytes.rfind('\0');
  const std::string_view text = bytes.substr(0, split);
  const std::string_view entry = split == bytes.npos ? "f" : bytes.substr(split + 1);
  const auto parameters = ParseSignature(text, entry);
  if (!parameters.ok()) {
    if (parameters.status().message().empty()) std::abort();
    return;
  }
  for (const DeclaredParameter& parameter : *parameters) {
    if (parameter.name.empty() || std::isdigit(static_cast<unsigned char>(parameter.name[0]))) {
      std::abort();
    }
  }
}

}  // namespace
}  // namespace xla_gpu::user_kernel

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  xla_gpu::WriteSeedsIfAsked(*argc, *argv, xla_gpu::user_kernel::Seeds());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  xla_gpu::user_kernel::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
