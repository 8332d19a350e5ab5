// What each function of the C ABI refuses: a table of wrong inputs by function. capi_test.cc has
// those of the call itself, xla_client_test.cc those of a client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "src/capi/test_util.h"

namespace {

using ::testing::HasSubstr;
using ::xla_gpu::Take;

// One call of update_kv_cache: two tokens into slots 1 and 4 of caches K and V of 8.
class UpdateCall {
 public:
  static constexpr size_t kCacheSize = 16;

  UpdateCall() {
    for (size_t i = 0; i < kCacheSize; ++i) k[i] = 100 + static_cast<float>(i);
    for (size_t i = 0; i < kCacheSize; ++i) v[i] = 200 + static_cast<float>(i);
    call = {sizeof(call), "update_kv_cache", "Host",         nullptr,      args.data(),
            args.size(),  results.data(),    results.size(), attrs.data(), attrs.size()};
    attrs[0].struct_size = sizeof(xla_gpu_attr);
    attrs[0].name = "optional_args";
    attrs[0].type = XLA_GPU_ATTR_STRING;
    attrs[0].s = "v_cache";
    attrs[0].s_size = std::strlen(attrs[0].s);
  }
  UpdateCall(const UpdateCall&) = delete;
  UpdateCall& operator=(const UpdateCall&) = delete;

  std::string Run(float* k_result, float* v_result) {
    results[0].data = k_result;
    results[1].data = v_result;
    return Take(xla_gpu_run(&call));
  }

  int64_t token_dims[3] = {2, 1, 2}, cache_dims[4] = {2, 4, 1, 2}, slot_dims[1] = {2};
  std::array<float, 4> key = {1, 2, 3, 4}, value = {5, 6, 7, 8};
  std::array<int32_t, 2> slots = {1, 4};
  // K and V lie in the middle of one block, so that anything can be made to overlap.
  std::array<float, 6 * kCacheSize> block = {};
  float* k = block.data() + kCacheSize;
  float* v = block.data() + 3 * kCacheSize;
  std::array<xla_gpu_tensor, 5> args = {
      {{sizeof(xla_gpu_tensor), key.data(), XLA_GPU_DTYPE_F32, 3, token_dims},
       {sizeof(xla_gpu_tensor), value.data(), XLA_GPU_DTYPE_F32, 3, token_dims},
       {sizeof(xla_gpu_tensor), k, XLA_GPU_DTYPE_F32, 4, cache_dims},
       {sizeof(xla_gpu_tensor), slots.data(), XLA_GPU_DTYPE_I32, 1, slot_dims},
       {sizeof(xla_gpu_tensor), v, XLA_GPU_DTYPE_F32, 4, cache_dims}}};
  std::array<xla_gpu_tensor, 2> results = {
      {{sizeof(xla_gpu_tensor), nullptr, XLA_GPU_DTYPE_F32, 4, cache_dims},
       {sizeof(xla_gpu_tensor), nullptr, XLA_GPU_DTYPE_F32, 4, cache_dims}}};
  std::array<xla_gpu_attr, 1> attrs = {};
  xla_gpu_call call = {};
};

void ExpectUpdated(const float* k, const float* v) {
  EXPECT_THAT(std::vector<float>(k, k + 4), ::testing::ElementsAre(100, 101, 1, 2));
  EXPECT_THAT(std::vector<float>(k + 8, k + 11), ::testing::ElementsAre(3, 4, 110));
  EXPECT_THAT(std::vector<float>(v, v + 4), ::testing::ElementsAre(200, 201, 5, 6));
}

TEST(OverlapTest, ApartAndInPlaceAreRight) {
  UpdateCall apart;
  std::array<float, UpdateCall::kCacheSize> k = {}, v = {};
  EXPECT_EQ(apart.Run(k.data(), v.data()), "");
  ExpectUpdated(k.data(), v.data());
  UpdateCall in_place;
  EXPECT_EQ(in_place.Run(in_place.k, in_place.v), "");
  ExpectUpdated(in_place.k, in_place.v);
  UpdateCall half;
  EXPECT_EQ(half.Run(half.k, v.data()), "");
  ExpectUpdated(half.k, v.data());
  UpdateCall beside;  // adjacent, not one byte shared
  EXPECT_EQ(beside.Run(beside.k + UpdateCall::kCacheSize, beside.v + UpdateCall::kCacheSize), "");
  ExpectUpdated(beside.k + UpdateCall::kCacheSize, beside.v + UpdateCall::kCacheSize);
}

TEST(OverlapTest, AnythingElseIsRefusedAndWritesNothing) {
  std::array<float, UpdateCall::kCacheSize> own = {};
  const struct {
    const char* what;
    std::function<std::string(UpdateCall&)> run;
    const char* message;
  } cases[] = {
      {"one element on", [&](UpdateCall& c) { return c.Run(c.k + 1, own.data()); },
       "result kv_cache f32[2,4,1,2] overlaps argument kv_cache f32[2,4,1,2] in memory; give it "
       "memory of its own, or that of kv_cache, whole"},
      {"one element back", [&](UpdateCall& c) { return c.Run(c.k - 1, own.data()); },
       "result kv_cache"},
      {"the other cache", [&](UpdateCall& c) { return c.Run(c.v, own.data()); },
       "result kv_cache f32[2,4,1,2] overlaps argument v_cache"},
      {"both, exchanged", [&](UpdateCall& c) { return c.Run(c.v, c.k); }, "result kv_cache"},
      {"end of the other cache", [&](UpdateCall& c) { return c.Run(own.data(), c.k + 15); },
       "result v_cache f32[2,4,1,2] overlaps argument kv_cache"},
      {"one for both", [&](UpdateCall& c) { return c.Run(own.data(), own.data()); },
       "result kv_cache f32[2,4,1,2] overlaps result v_cache f32[2,4,1,2]"},
      {"one argument for both",
       [&](UpdateCall& c) {
         c.args[4].data = c.k;
         return c.Run(c.k, own.data());
       },
       "overlaps argument v_cache"},
      {"the keys", [&](UpdateCall& c) { return c.Run(c.key.data() - 12, own.data()); },
       "overlaps argument key f32[2,1,2]"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    UpdateCall call;
    const auto before = call.block;
    EXPECT_THAT(c.run(call), HasSubstr(c.message));
    EXPECT_EQ(call.block, before);
    EXPECT_THAT(own, ::testing::Each(0.0f));
  }
}

TEST(OverlapTest, EmptyTensorsShareNothing) {
  UpdateCall call;
  call.token_dims[0] = call.slot_dims[0] = 0;
  call.args[0].data = call.args[1].data = call.k + 3;
  call.args[3].data = nullptr;
  EXPECT_EQ(call.Run(call.k, call.v), "");
}

// ---- Arrays of structs ----

// The last elements before memory that may not be touched: reading past them ends the process.
TEST(StructSizeTest, IsLookedAtBeforeTheNextElement) {
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(xla_gpu_tensor) + 1, size_t{1} << 20,
                            SIZE_MAX - 7, size_t{1} << 63}) {
    UpdateCall tensors;
    tensors.args[0].struct_size = size;
    EXPECT_THAT(Take(xla_gpu_run(&tensors.call)), HasSubstr("xla_gpu_tensor.struct_size is"));
    UpdateCall results;
    results.results[0].struct_size = size;
    EXPECT_THAT(Take(xla_gpu_run(&results.call)), HasSubstr("xla_gpu_tensor.struct_size is"));
    UpdateCall attrs;
    attrs.attrs[0].struct_size = size;
    attrs.call.num_attrs = 32;
    EXPECT_THAT(Take(xla_gpu_run(&attrs.call)), HasSubstr("xla_gpu_attr.struct_size is"));
  }
  UpdateCall many;
  many.call.num_attrs = SIZE_MAX;
  EXPECT_THAT(Take(xla_gpu_run(&many.call)), HasSubstr("at most 32 attributes are allowed"));
}

// A later header's structs are larger; theirs is the stride.
TEST(StructSizeTest, LargerStructsAreTaken) {
  struct Later {
    xla_gpu_tensor tensor;
    void* added;
  };
  UpdateCall call;
  std::array<Later, 5> args;
  for (size_t i = 0; i < args.size(); ++i) {
    args[i] = {call.args[i], &call};
    args[i].tensor.struct_size = sizeof(Later);
  }
  call.call.args = &args[0].tensor;
  EXPECT_EQ(call.Run(call.k, call.v), "");
  ExpectUpdated(call.k, call.v);
}

// ---- By function ----

struct BadInput {
  const char* name;
  std::function<xla_gpu_status*()> call;
  const char* message;
};

void PrintTo(const BadInput& row, std::ostream* out) { *out << row.name; }

class BadInputTest : public ::testing::TestWithParam<BadInput> {};

bool IsUtf8(const std::string& text) {
  // Continuation bytes by lead byte; the messages here hold no overlong forms.
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t follow = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead >= 0x80 && lead < 0xc2) return false;
    for (size_t j = 0; j < follow; ++j) {
      if (++i >= text.size() || (text[i] & 0xc0) != 0x80) return false;
    }
  }
  return true;
}

TEST_P(BadInputTest, IsRefusedWithItsMessage) {
  xla_gpu_status* status = GetParam().call();
  EXPECT_NE(xla_gpu_status_code(status), 0);
  const std::string message = Take(status);
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_TRUE(IsUtf8(message)) << message;
}

char* text = nullptr;
void* handler = nullptr;
const int kData = 7;
const void* const kCode = reinterpret_cast<const void*>(&getpid);

xla_gpu_status* WithCall(xla_gpu_status* (*function)(const xla_gpu_call*, char**),
                         const std::function<void(UpdateCall&)>& change, char** out = &text) {
  UpdateCall update;
  update.call.num_results = 0;
  change(update);
  return function(&update.call, out);
}
void Nothing(UpdateCall&) {}
void OpNotUtf8(UpdateCall& c) { c.call.op = "caf\xe9"; }
void AttrNotUtf8(UpdateCall& c) { c.attrs[0].s = "v_cach\xff"; }
void AttrNameNotUtf8(UpdateCall& c) { c.attrs[0].name = "\xc3"; }
void PlatformNotUtf8(UpdateCall& c) { c.call.platform = "\xf0\x9f\x98"; }

const BadInput kBadInputs[] = {
    {"RunOpNotUtf8",
     [] {
       UpdateCall c;
       OpNotUtf8(c);
       return xla_gpu_run(&c.call);
     },
     "no op is named 'caf\xef\xbf\xbd'"},
    {"InferTextNull", [] { return WithCall(xla_gpu_infer, Nothing, nullptr); }, "results_json"},
    {"InferOpNotUtf8", [] { return WithCall(xla_gpu_infer, OpNotUtf8); }, "no op is named"},
    {"InferAttrNotUtf8", [] { return WithCall(xla_gpu_infer, AttrNotUtf8); }, "left over"},
    {"InferAttrNameNotUtf8", [] { return WithCall(xla_gpu_infer, AttrNameNotUtf8); },
     "unknown attribute '\xef\xbf\xbd'"},
    {"InferPlatformNotUtf8", [] { return WithCall(xla_gpu_infer, PlatformNotUtf8); },
     "allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)"},
    {"OpaqueCallNull", [] { return xla_gpu_opaque(nullptr, &text); }, "call is NULL"},
    {"OpaqueTextNull", [] { return WithCall(xla_gpu_opaque, Nothing, nullptr); }, "text is NULL"},
    {"OpaqueAttrNotUtf8", [] { return WithCall(xla_gpu_opaque, AttrNotUtf8); }, "left over"},
    {"CacheKeyNull", [] { return xla_gpu_cache_get(nullptr, 1, &text); }, "key or text is NULL"},
    {"CacheTextNull", [] { return xla_gpu_cache_get("a", 1, nullptr); }, "key or text is NULL"},
    {"CachePutKeyNull", [] { return xla_gpu_cache_put(nullptr, 1, "a", "b"); }, "is NULL"},
    {"CachePutDescriptionNull", [] { return xla_gpu_cache_put("a", 1, nullptr, "b"); }, "is NULL"},
    {"CachePutTextNull", [] { return xla_gpu_cache_put("a", 1, "b", nullptr); }, "is NULL"},
    {"StableHloCallNull", [] { return xla_gpu_stablehlo(nullptr, &text); }, "call is NULL"},
    {"StableHloTextNull", [] { return WithCall(xla_gpu_stablehlo, Nothing, nullptr); },
     "mlir is NULL"},
    {"StableHloAttrNotUtf8", [] { return WithCall(xla_gpu_stablehlo, AttrNotUtf8); }, "left over"},
    {"HandlerOpNull", [] { return xla_gpu_handler(nullptr, "Host", 4, &handler); },
     "op or handler"},
    {"HandlerNull", [] { return xla_gpu_handler("simple_add", "Host", 4, nullptr); },
     "op or handler"},
    {"HandlerOpNotUtf8", [] { return xla_gpu_handler("\xff", "Host", 4, &handler); },
     "no op is named '\xef\xbf\xbd'"},
    {"HandlerVersionHuge", [] { return xla_gpu_handler("simple_add", "Host", 1 << 30, &handler); },
     "api_version is 1073741824"},
    {"AliasOpNull", [] { return xla_gpu_alias(nullptr, "Host", 4, "{}", &handler); },
     "op, opaque or handler is NULL"},
    {"AliasOpaqueNull", [] { return xla_gpu_alias("simple_add", "Host", 4, nullptr, &handler); },
     "op, opaque or handler is NULL"},
    {"AliasHandlerNull", [] { return xla_gpu_alias("simple_add", "Host", 4, "{}", nullptr); },
     "op, opaque or handler is NULL"},
    {"AliasEmpty", [] { return xla_gpu_alias("simple_add", "Host", 1, "", &handler); },
     "the text is empty"},
    {"AliasNotUtf8", [] { return xla_gpu_alias("simple_add", "Host", 1, "{\"\xe9", &handler); },
     "opaque"},
    {"AliasVersion", [] { return xla_gpu_alias("simple_add", "Host", 5, "{}", &handler); },
     "api_version is 5"},
    {"CheckNameNull",
     [] { return xla_gpu_check_handler(nullptr, kCode, "Host", 4, 0, 1, nullptr); },
     "name or platform is NULL"},
    {"CheckNameEmpty", [] { return xla_gpu_check_handler("", kCode, "Host", 4, 0, 1, nullptr); },
     "name is empty"},
    {"CheckNameNotUtf8",
     [] { return xla_gpu_check_handler("\xff", nullptr, "Host", 4, 0, 1, nullptr); },
     "handler '\xef\xbf\xbd' is NULL"},
    {"CheckPlatformNull",
     [] { return xla_gpu_check_handler("f", kCode, nullptr, 4, 0, 1, nullptr); },
     "name or platform is NULL"},
    {"CheckPlatform", [] { return xla_gpu_check_handler("f", kCode, "TPU", 4, 0, 1, nullptr); },
     "platform is 'TPU'"},
    {"CheckVersion", [] { return xla_gpu_check_handler("f", kCode, "Host", -4, 0, 1, nullptr); },
     "api_version is -4"},
    {"CheckHandlerNull", [] { return xla_gpu_check_handler("f", nullptr, "Host", 1, 0, 1, &text); },
     "'f' is NULL"},
    {"CheckHandlerIsData",
     [] { return xla_gpu_check_handler("f", &kData, "Host", 3, 0, 1, nullptr); },
     "does not lie in executable memory"},
    {"CheckHandlerIsAnAddress",
     [] {
       return xla_gpu_check_handler("f", reinterpret_cast<void*>(uintptr_t{12}), "Host", 4, 0, 1,
                                    nullptr);
     },
     "is no function"},
    {"CheckHandlerOfLibc",
     [] { return xla_gpu_check_handler("f", kCode, "Host", 4, 0, 1, nullptr); },
     "is no typed FFI handler (api_version 4)"},
    {"CheckHandlerOfTheAbi",
     [] {
       return xla_gpu_check_handler("f", reinterpret_cast<void*>(&xla_gpu_results_free), "Host", 4,
                                    0, 1, nullptr);
     },
     "is no typed FFI handler"},
    {"RegisterNameNull",
     [] { return xla_gpu_register_pjrt(nullptr, nullptr, nullptr, kCode, "Host", 4); },
     "name or platform is NULL"},
    {"RegisterPlatformNull",
     [] { return xla_gpu_register_pjrt(nullptr, nullptr, "f", kCode, nullptr, 4); },
     "name or platform is NULL"},
    {"RegisterPlatform",
     [] { return xla_gpu_register_pjrt(nullptr, nullptr, "f", kCode, "host", 4); },
     "platform is 'host'"},
    {"RegisterNoPlugin",
     [] { return xla_gpu_register_pjrt(nullptr, "/no/such.so", "f", kCode, "Host", 4); },
     "/no/such.so"},
    {"RegisterPluginPathEmpty",
     [] { return xla_gpu_register_pjrt(nullptr, "", "f", kCode, "Host", 4); }, "is no file"},
    {"StagedNull",
     [] { return xla_gpu_register_pjrt_staged(nullptr, nullptr, "f", nullptr, "Host"); },
     "handler is NULL"},
    {"StagedSize",
     [] {
       xla_gpu_staged_handler staged{};
       return xla_gpu_register_pjrt_staged(nullptr, nullptr, "f", &staged, "Host");
     },
     "xla_gpu_staged_handler.struct_size is 0"},
    {"CompatInfoNull", [] { return xla_gpu_pjrt_compat_info(nullptr); }, "info_json is NULL"},
    {"ClientNull", [] { return xla_gpu_client_create("", nullptr); }, "client is NULL"},
    {"ClientNoPlugin",
     [] {
       xla_gpu_client* client = nullptr;
       return xla_gpu_client_create("/no/such\xff.so", &client);
     },
     "/no/such\xef\xbf\xbd.so"},
    {"ClientRunNull", [] { return xla_gpu_client_run(nullptr, "", nullptr, 0, nullptr); }, "NULL"},
    {"ResultsNull",
     [] {
       xla_gpu_tensor tensor{};
       return xla_gpu_results_get(nullptr, SIZE_MAX, &tensor);
     },
     "of 0 is asked"},
};

INSTANTIATE_TEST_SUITE_P(CApi, BadInputTest, ::testing::ValuesIn(kBadInputs),
                         [](const auto& info) { return info.param.name; });

TEST(BadInput, NothingIsFreedOrReadOfNull) {
  xla_gpu_status_free(nullptr);
  xla_gpu_string_free(nullptr);
  xla_gpu_object_call_clear(nullptr);
  xla_gpu_client_free(nullptr);
  xla_gpu_results_free(nullptr);
  EXPECT_EQ(xla_gpu_status_code(nullptr), 0);
  EXPECT_STREQ(xla_gpu_status_message(nullptr), "");
  EXPECT_STREQ(xla_gpu_client_platform(nullptr), "");
  EXPECT_EQ(xla_gpu_client_pjrt_api(nullptr), nullptr);
  EXPECT_EQ(xla_gpu_results_count(nullptr), 0u);
  EXPECT_EQ(WithCall(xla_gpu_infer, Nothing), nullptr) << "the table's calls are right but for it";
  xla_gpu_string_free(text);
}

}  // namespace
