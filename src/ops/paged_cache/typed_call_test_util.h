// For tests of what an op accepts: one call by the names of its arguments and attributes, so that a
// test changes one, and the run of a table of calls that are refused.
#ifndef XLA_GPU_OPS_PAGED_CACHE_TYPED_CALL_TEST_UTIL_H_
#define XLA_GPU_OPS_PAGED_CACHE_TYPED_CALL_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "src/core/op_registry.h"

namespace xla_gpu::paged_cache {

struct TypedCall {
  std::string op;
  std::map<std::string, TensorSpec> args;
  std::map<std::string, AttrValue> attrs = {};

  // What `use` returns of the Call.
  template <typename Use>
  auto With(Use use) const {
    std::vector<TensorView> views;
    std::string optional;
    for (const ArgSpec& spec : OpRegistry::Global().Find(op)->args) {
      auto found = args.find(spec.name);
      if (found == args.end()) continue;
      views.push_back({nullptr, found->second.dtype, found->second.shape});
      if (spec.optional) optional += (optional.empty() ? "" : ",") + spec.name;
    }
    Attributes attributes;
    for (const auto& [name, value] : attrs) EXPECT_TRUE(attributes.Add(name, value).ok());
    if (!attrs.contains("optional_args")) {
      EXPECT_TRUE(attributes.Add("optional_args", std::string_view(optional)).ok());
    }
    return use(Call{views, {}, &attributes});
  }

  StatusOr<std::vector<TensorSpec>> Infer(Platform platform = Platform::kHost) const {
    return With([&](const Call& call) {
      return InferTypes(*OpRegistry::Global().Find(op), platform, call);
    });
  }
};

struct BadInput {
  const char* name;
  void (*change)(TypedCall&);
  const char* message;
};

// The call is refused on both platforms, with the message after the op's name.
inline void ExpectRefused(TypedCall call, const BadInput& row) {
  row.change(call);
  for (Platform platform : {Platform::kHost, Platform::kCuda}) {
    const auto result = call.Infer(platform);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), testing::HasSubstr(row.message));
    EXPECT_THAT(result.status().message(), testing::HasSubstr(call.op + ": "));
  }
}

inline std::string BadInputName(const testing::TestParamInfo<BadInput>& info) {
  return info.param.name;
}

}  // namespace xla_gpu::paged_cache

#endif  // XLA_GPU_OPS_PAGED_CACHE_TYPED_CALL_TEST_UTIL_H_
