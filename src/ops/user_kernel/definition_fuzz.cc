// Any bytes as a kernel's definition: reading it never crashes, an error says what is wrong, and
// what is accepted keeps the invariants that plans rely on.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/core/fuzz_seeds.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

void Require(bool what) {
  if (!what) std::abort();
}

std::vector<std::string> Seeds() {
  return {
      "",
      "{}",
      R"({"name":"k","doc":"d","workspace":true,"capture":false,"arguments":[{"name":"x","dtypes":["f32","s32"]},{"name":"y","optional":true}],"results":[{"name":"o","like":"x","dtype":"bf16"},{"name":"x","alias_of":"x"}],"scalars":[{"name":"a","type":"f32","default":1.5},{"name":"n","type":"i8","derived":true}],"implementations":{"CUDA":{"kind":"cuda_image","image":"QUJD","entry":"k","cluster":[2,1,1],"cooperative":true,"programmatic":true,"parameters":["x",null,{"value":3,"type":"i32"},{"elements_of":"x","type":"i64"},{"dim_of":"y","dim":0,"type":"u8"},"workspace","stream","a"]},"Host":{"kind":"function","address":4096,"returns_error":true}}})",
      R"({"name":"k","results":[{"name":"o","like":"x"}],"implementations":{"CUDA":{"kind":"cuda_source","text":"__global__ void k(const float* x, float* o, int n){}","entry":"k<3>","file":"a.cu","options":["-DN=3"]},"Host":{"kind":"host_source","text":"void k(const float* x, float* o, int n){}","entry":"k"}}})",
      R"({"name":"k","results":[{"name":"o"}],"implementations":{"CUDA":{"kind":"tvm_ffi","library":"a.so","symbol":"s","libtvm_ffi":"b.so","owned":true},"Host":{"kind":"legacy","address":1,"api_version":3,"opaque":"t"}}})",
      R"({"name":"k","arguments":[{"name":"x"}],"results":[{"name":"o","like":"x"}],"implementations":{"CUDA":{"kind":"dlpack","address":1,"gate":8,"parameters":["o","x"]},"Host":{"kind":"dlpack","address":1,"gate":8}}})",
      R"({"name":"k","results":[{"name":"o"}],"implementations":{"CUDA":{"kind":"ffi","library":"a.so","symbol":"s"},"Host":{"kind":"ffi","address":1,"instantiate":2,"prepare":3,"initialize":4,"type_id":5,"type_info":6}}})"};
}

void RunOne(std::string_view text) {
  const auto made = ParseDefinition(text);
  if (!made.ok()) {
    Require(!made.status().message().empty());
    return;
  }
  const Definition& definition = **made;
  Require(!definition.name.empty() && definition.key.starts_with(definition.name + "@"));
  Require(!definition.results.empty());
  for (const auto& implementation : definition.implementations) {
    if (!implementation) continue;
    Require(implementation->parameters.size() <= kMaxParameters);
    for (const Parameter& parameter : implementation->parameters) {
      using Kind = Parameter::Kind;
      const bool of_argument = parameter.kind == Kind::kArgument ||
                               parameter.kind == Kind::kElements ||
                               parameter.kind == Kind::kDimension;
      if (of_argument) Require(parameter.index < definition.arguments.size());
      if (parameter.kind == Kind::kResult) Require(parameter.index < definition.results.size());
      if (parameter.kind == Kind::kScalar) Require(parameter.index < definition.scalars.size());
      Require(DTypeSize(parameter.type) > 0 && !IsFloat8(parameter.type));
    }
  }
  const Op op = MakeOp(*made);
  Require(op.attrs.size() < Attributes::kMaxAttributes && op.infer != nullptr);
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
