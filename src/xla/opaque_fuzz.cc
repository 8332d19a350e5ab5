// Any bytes as an opaque text: decoding never crashes, what it accepts encodes and decodes to the
// same call again, and a legacy handler that gets the text with no buffers refuses it in peace.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "src/core/fuzz_seeds.h"
#include "src/core/op_registry.h"
#include "src/xla/legacy.h"
#include "src/xla/opaque.h"

namespace xla_gpu::xla {
namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "property does not hold: %s\n", what);
  std::abort();
}

std::vector<std::string> Seeds() {
  const TensorSpec f32{DType::kF32, {3}};
  const TensorSpec cache{DType::kF8E4M3FN, {16, 4, 2, 64}};
  const OpaqueCall add{"simple_add", {f32, f32}, {f32}, {}};
  const OpaqueCall update{"update_kv_cache",
                          {{DType::kBF16, {2, 1, 64}},
                           {DType::kBF16, {2, 1, 64}},
                           cache,
                           {DType::kI64, {2}},
                           {DType::kF32, {1}}},
                          {cache},
                          {{"optional_args", std::string("k_scale")}}};
  const OpaqueCall all{"x",
                       {{DType::kPred, {}}, {DType::kU64, {0, 1, 2}}},
                       {},
                       {{"causal", true},
                        {"window", int64_t{-7}},
                        {"scale", 0.08838834764831845},
                        {"tiny", 5e-324},
                        {"text", std::string("a\"b\\\n\0\xc3\xa9", 8)},
                        {"ints", std::vector<int64_t>{1, -2, 9223372036854775807}}}};
  std::vector<std::string> seeds = {
      "",
      "null",
      "{}",
      "[[[[[[[[[]]]]]]]]]",
      R"({"op":"x","args":[],"results":[]})",
      R"({"op":"\ud83d\ude00","args":[{"shape":[1e3],"dtype":"s32"}],"results":[],"attrs":{"a":[]}})",
      R"({"op":"x","op":"x","args":[],"results":[],"attrs":{"a":123456789012345678901234567890}})"};
  for (const OpaqueCall& call : {add, update, all}) seeds.push_back(*EncodeOpaque(call));
  return seeds;
}

void RunOne(std::string_view text) {
  auto call = DecodeOpaque(text);
  if (!call.ok()) {
    Require(!call.status().message().empty(), "an error has a message");
    return;
  }
  auto encoded = EncodeOpaque(*call);
  // The only accepted texts that cannot be written: escapes may make one longer than the bound.
  if (!encoded.ok()) {
    Require(text.size() > kMaxOpaqueBytes / 8, "what was decoded can be encoded");
    return;
  }
  auto again = DecodeOpaque(*encoded);
  Require(again.ok(), "what was encoded can be decoded");
  Require(*again == *call, "decode(encode(call)) == call");
  Require(*EncodeOpaque(*again) == *encoded, "encoding is stable");

  using HostUnified = void (*)(void*, const void**, const char*, size_t, void*);
  for (const auto& op : OpRegistry::Global().ops()) {
    auto handler = LegacyHandler(*op, Platform::kHost, 3);
    reinterpret_cast<HostUnified> (*handler)(nullptr, nullptr, text.data(), text.size(), nullptr);
  }
}

}  // namespace
}  // namespace xla_gpu::xla

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  xla_gpu::WriteSeedsIfAsked(*argc, *argv, xla_gpu::xla::Seeds());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  xla_gpu::xla::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
