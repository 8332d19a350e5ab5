// The C ABI as a C caller sees it: what works, and a table of what must be refused, with the
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "src/capi/test_util.h"
#include "src/core/strings.h"

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::xla_gpu::ScopedEnv;
using ::xla_gpu::Take;

// A valid simple_add of f32[2,3] on the Host, which tests then change.
struct AddCall {
  int64_t dims[2] = {2, 3};
  float a[6] = {1, 2, 3, 4, 5, 6};
  float b[6] = {10, 20, 30, 40, 50, 60};
  float c[6] = {};
  xla_gpu_tensor args[2] = {Tensor(a), Tensor(b)};
  xla_gpu_tensor results[1] = {Tensor(c)};
  xla_gpu_attr attr = {};
  xla_gpu_call call = {};

  AddCall() {
    attr.struct_size = sizeof(attr);
    attr.name = "x";
    attr.type = XLA_GPU_ATTR_INT;
    call.struct_size = sizeof(call);
    call.op = "simple_add";
    call.platform = "Host";
    call.args = args;
    call.num_args = 2;
    call.results = results;
    call.num_results = 1;
  }
  AddCall(const AddCall&) = delete;
  AddCall& operator=(const AddCall&) = delete;

  xla_gpu_tensor Tensor(float* data) {
    xla_gpu_tensor tensor = {};
    tensor.struct_size = sizeof(tensor);
    tensor.data = data;
    tensor.dtype = XLA_GPU_DTYPE_F32;
    tensor.rank = 2;
    tensor.dims = dims;
    return tensor;
  }

  void WithAttr() {
    call.attrs = &attr;
    call.num_attrs = 1;
  }
};

TEST(CApi, RunsAnOp) {
  for (const char* name : {"simple_add", "XlaGpuSimpleAdd"}) {
    for (const char* platform : {"Host", "cpu"}) {
      AddCall add;
      add.call.op = name;
      add.call.platform = platform;
      ASSERT_EQ(Take(xla_gpu_run(&add.call)), "");
      EXPECT_THAT(add.c, ::testing::ElementsAre(11, 22, 33, 44, 55, 66));
    }
  }
}

TEST(CApi, ScalarsNeedNoDimsAndEmptyTensorsNoData) {
  AddCall scalar;
  for (xla_gpu_tensor* t : {&scalar.args[0], &scalar.args[1], &scalar.results[0]}) {
    t->rank = 0;
    t->dims = nullptr;
  }
  ASSERT_EQ(Take(xla_gpu_run(&scalar.call)), "");
  EXPECT_EQ(scalar.c[0], 11);
  EXPECT_EQ(scalar.c[1], 0);

  AddCall empty;
  empty.dims[1] = 0;
  empty.args[0].data = empty.args[1].data = empty.results[0].data = nullptr;
  EXPECT_EQ(Take(xla_gpu_run(&empty.call)), "");
}

// A caller built against a later header brings larger structs, which also lie further apart.
TEST(CApi, LargerStructsAreAccepted) {
  struct LaterTensor {
    xla_gpu_tensor tensor;
    int64_t appended[3];
  };
  struct LaterAttr {
    xla_gpu_attr attr;
    void* appended;
  };
  AddCall add;
  add.call.struct_size += 64;
  LaterTensor args[2] = {{add.args[0], {7, 7, 7}}, {add.args[1], {7, 7, 7}}};
  LaterTensor results[1] = {{add.results[0], {7, 7, 7}}};
  for (LaterTensor* t : {&args[0], &args[1], &results[0]}) t->tensor.struct_size = sizeof(*t);
  add.call.args = &args[0].tensor;
  add.call.results = &results[0].tensor;
  ASSERT_EQ(Take(xla_gpu_run(&add.call)), "");
  EXPECT_THAT(add.c, ::testing::ElementsAre(11, 22, 33, 44, 55, 66));

  LaterAttr attrs[2] = {{add.attr, nullptr}, {add.attr, nullptr}};
  for (LaterAttr& a : attrs) a.attr.struct_size = sizeof(a);
  attrs[1].attr.name = "second";
  add.call.attrs = &attrs[0].attr;
  add.call.num_attrs = 2;
  EXPECT_THAT(Take(xla_gpu_run(&add.call)), HasSubstr("unknown attribute 'x'"));
}

TEST(CApi, InfersTypesWithoutDataOrResults) {
  AddCall add;
  add.args[0].data = add.args[1].data = nullptr;
  add.call.results = nullptr;
  char* json = nullptr;
  ASSERT_EQ(Take(xla_gpu_infer(&add.call, &json)), "");
  EXPECT_STREQ(json,
               R"([{"dtype":"f32","shape":[2,3],"name":"c","kind":"output","alias_of":null}])");
  xla_gpu_string_free(json);
}

TEST(CApi, OpsAreJson) {
  char* text = xla_gpu_ops_json();
  const auto ops = nlohmann::json::parse(text);
  xla_gpu_string_free(text);
  const auto found = std::find_if(ops.begin(), ops.end(),
                                  [](const auto& op) { return op["name"] == "simple_add"; });
  ASSERT_NE(found, ops.end());
  EXPECT_EQ((*found)["target"], "XlaGpuSimpleAdd");
}

TEST(CApi, TheHeaderAndTheBuildHaveOneVersion) {
  EXPECT_STREQ(xla_gpu_version(), XLA_GPU_VERSION);  // CMake's
  EXPECT_EQ(xla_gpu_version(), xla_gpu::StrCat(XLA_GPU_VERSION_MAJOR, ".", XLA_GPU_VERSION_MINOR,
                                               ".", XLA_GPU_VERSION_PATCH));
  EXPECT_EQ(XLA_GPU_VERSION_NUMBER, 100);
}

TEST(CApi, NullIsSuccessAndMayBeFreed) {
  EXPECT_EQ(xla_gpu_status_code(nullptr), 0);
  EXPECT_STREQ(xla_gpu_status_message(nullptr), "");
  xla_gpu_status_free(nullptr);
  xla_gpu_string_free(nullptr);
}

TEST(CApi, StatusCodes) {
  AddCall add;
  add.call.op = "nope";
  xla_gpu_status* status = xla_gpu_run(&add.call);
  EXPECT_EQ(xla_gpu_status_code(status), 5);
  xla_gpu_status_free(status);
  EXPECT_EQ(xla_gpu_status_code(status = xla_gpu_run(nullptr)), 3);
  xla_gpu_status_free(status);
}

TEST(CApi, HandlersAreStableAndDiffer) {
  void* host = nullptr;
  void* again = nullptr;
  void* cuda = nullptr;
  ASSERT_EQ(Take(xla_gpu_handler("simple_add", "Host", 4, &host)), "");
  ASSERT_EQ(Take(xla_gpu_handler("XlaGpuSimpleAdd", "cpu", 4, &again)), "");
  ASSERT_EQ(Take(xla_gpu_handler("simple_add", "CUDA", 4, &cuda)), "");
  EXPECT_NE(host, nullptr);
  EXPECT_EQ(host, again);
  EXPECT_NE(host, cuda);
}

TEST(CApi, TextsAreKeptForOtherProcesses) {
  const xla_gpu::TempFolder folder;
  const ScopedEnv cache("XLA_GPU_CACHE_DIR", folder.path("cache"));
  const std::string key("a\0b", 3);
  auto get = [](const std::string& key) {
    char* text = nullptr;
    EXPECT_EQ(Take(xla_gpu_cache_get(key.data(), key.size(), &text)), "");
    std::string got = text;
    xla_gpu_string_free(text);
    return got;
  };
  auto put = [](const std::string& key, const char* text) {
    return Take(xla_gpu_cache_put(key.data(), key.size(), "what it is", text));
  };
  EXPECT_EQ(get(key), "");
  EXPECT_EQ(xla_gpu::RunForked([&] { return put(key, "{}").empty(); }), 0);
  EXPECT_EQ(get(key), "{}");
  EXPECT_EQ(get("a"), "");
  EXPECT_EQ(put(key, "[]"), "");
  EXPECT_EQ(get(key), "[]");
  {
    const ScopedEnv none("XLA_GPU_CACHE_DIR", "");
    EXPECT_EQ(put("b", "text"), "");
    EXPECT_EQ(get("b"), "");
  }
  std::filesystem::permissions(folder.path("cache"), std::filesystem::perms(0777));
  char* text = nullptr;
  EXPECT_THAT(Take(xla_gpu_cache_get("a", 1, &text)), HasSubstr("others may write"));
  EXPECT_THAT(put("a", "text"), HasSubstr("others may write"));
}

TEST(CApi, ManyThreadsCallAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        AddCall add;
        add.dims[1] = 1 + (t + i) % 3;
        ASSERT_EQ(Take(xla_gpu_run(&add.call)), "");
        ASSERT_EQ(add.c[1], 22);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- What must be refused -------------------------------------------------------------------

struct BadCall {
  const char* name;
  std::function<void(AddCall&)> change;
  const char* message;  // how it begins
  bool infer = true;    // xla_gpu_infer refuses it too
};

void PrintTo(const BadCall& row, std::ostream* out) { *out << row.name; }

class BadCallTest : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadCallTest, IsRefusedWithItsMessage) {
  AddCall add;
  GetParam().change(add);
  EXPECT_THAT(Take(xla_gpu_run(&add.call)), StartsWith(GetParam().message));
  EXPECT_THAT(add.c, ::testing::Each(0.0f)) << "a refused call wrote its result";
  char* json = nullptr;
  const std::string inferred = Take(xla_gpu_infer(&add.call, &json));
  if (GetParam().infer) {
    EXPECT_THAT(inferred, StartsWith(GetParam().message));
    EXPECT_EQ(json, nullptr);
  } else {
    EXPECT_EQ(inferred, "");
    xla_gpu_string_free(json);
  }
}

static int64_t huge_dims[] = {INT64_MAX / 2, 3};
static int64_t negative_dims[] = {2, -3};
static int64_t other_dims[] = {3, 2};
static const int64_t ints[] = {1, 2};

const BadCall kBadCalls[] = {
    {"CallSize", [](AddCall& c) { c.call.struct_size = 8; },
     "xla_gpu_call.struct_size is 8 but must be at least"},
    {"CallSizeZero", [](AddCall& c) { c.call.struct_size = 0; },
     "xla_gpu_call.struct_size is 0 but must be at least"},
    {"OpNull", [](AddCall& c) { c.call.op = nullptr; }, "call.op is NULL; it must name an op"},
    {"OpEmpty", [](AddCall& c) { c.call.op = ""; }, "no op is named ''; known are: "},
    {"OpUnknown", [](AddCall& c) { c.call.op = "simple_sub"; },
     "no op is named 'simple_sub'; known are: "},
    {"PlatformNull", [](AddCall& c) { c.call.platform = nullptr; },
     "platform is ''; allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)"},
    {"PlatformUnknown", [](AddCall& c) { c.call.platform = "TPU"; },
     "platform is 'TPU'; allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)"},
    {"ArgsNull", [](AddCall& c) { c.call.args = nullptr; },
     "2 arguments came but their array is NULL"},
    {"ArgsTooMany", [](AddCall& c) { c.call.num_args = 65; }, "65 arguments came; at most 64 may"},
    {"ArgsCountHuge", [](AddCall& c) { c.call.num_args = SIZE_MAX; },
     "18446744073709551615 arguments came; at most 64 may"},
    {"ArgsTooFew", [](AddCall& c) { c.call.num_args = 1; },
     "simple_add: 1 arguments came but 2 are expected: a, b"},
    {"ArgsNone", [](AddCall& c) { c.call.num_args = 0; },
     "simple_add: 0 arguments came but 2 are expected: a, b"},
    {"ResultsNull", [](AddCall& c) { c.call.results = nullptr; },
     "1 results came but their array is NULL", false},
    {"ResultsTooMany", [](AddCall& c) { c.call.num_results = 1000; },
     "1000 results came; at most 64 may", false},
    {"ResultsNone", [](AddCall& c) { c.call.num_results = 0; },
     "simple_add: the call has 0 results but on Host it must have 1: f32[2,3]", false},
    {"ResultDtype", [](AddCall& c) { c.results[0].dtype = XLA_GPU_DTYPE_I32; },
     "simple_add: result 0 is i32[2,3] but must be f32[2,3]", false},
    {"ResultShape", [](AddCall& c) { c.results[0].dims = other_dims; },
     "simple_add: result 0 is f32[3,2] but must be f32[2,3]", false},
    {"ResultDataNull", [](AddCall& c) { c.results[0].data = nullptr; },
     "simple_add: result 0 (f32[2,3]) has a null data pointer", false},
    {"TensorSizesDiffer", [](AddCall& c) { c.args[1].struct_size += 8; },
     "xla_gpu_tensor.struct_size is 32 in the first element of an array but 40 in element 1; they "
     "must be equal"},
    {"TensorSize", [](AddCall& c) { c.args[0].struct_size = 1; },
     "xla_gpu_tensor.struct_size is 1 but must be at least"},
    {"ArgDataNull", [](AddCall& c) { c.args[1].data = nullptr; },
     "simple_add: argument 1 (f32[2,3]) has a null data pointer", false},
    {"ArgDataMisaligned",
     [](AddCall& c) { c.args[1].data = static_cast<char*>(c.args[1].data) + 1; },
     "simple_add: argument 1 (f32[2,3]) lies at address 0x", false},
    {"ResultDataMisaligned",
     [](AddCall& c) { c.results[0].data = static_cast<char*>(c.results[0].data) + 2; },
     "simple_add: result 0 (f32[2,3]) lies at address 0x", false},
    {"RankNegative", [](AddCall& c) { c.args[0].rank = -1; },
     "argument 0 has rank -1; rank must be 0 to 32, with as many dims"},
    {"RankTooHigh", [](AddCall& c) { c.args[0].rank = 33; },
     "argument 0 has rank 33; rank must be 0 to 32, with as many dims"},
    {"DimsNull", [](AddCall& c) { c.args[0].dims = nullptr; },
     "argument 0 has rank 2 but dims is NULL"},
    {"DimNegative", [](AddCall& c) { c.args[0].dims = negative_dims; },
     "simple_add: argument 'a' is f32[2,-3]; dimensions must not be negative"},
    {"SizeOverflows", [](AddCall& c) { c.args[0].dims = huge_dims; },
     "simple_add: argument 'a' is f32[4611686018427387903,3]; its size in bytes does not fit"},
    {"DtypeUnknown", [](AddCall& c) { c.args[0].dtype = 99; },
     "simple_add: argument 'a' has a dtype"},
    {"DtypeNegative", [](AddCall& c) { c.args[1].dtype = -5; },
     "simple_add: argument 'b' has a dtype"},
    {"DtypeOfNoKernel", [](AddCall& c) { c.args[0].dtype = XLA_GPU_DTYPE_F64; },
     "simple_add: a is f64[2,3]; its dtype must be f32, bf16, f16 or i32"},
    {"DtypesDiffer", [](AddCall& c) { c.args[1].dtype = XLA_GPU_DTYPE_I32; },
     "simple_add: a is f32[2,3] but b is i32[2,3]; they must be equal in dtype and shape"},
    {"ShapesDiffer", [](AddCall& c) { c.args[1].dims = other_dims; },
     "simple_add: a is f32[2,3] but b is f32[3,2]; they must be equal in dtype and shape"},
    {"RanksDiffer", [](AddCall& c) { c.args[1].rank = 1; },
     "simple_add: a is f32[2,3] but b is f32[2]; they must be equal in dtype and shape"},
    {"AttrsNull", [](AddCall& c) { c.call.num_attrs = 1; }, "call.attrs is NULL"},
    {"AttrUnknown", [](AddCall& c) { c.WithAttr(); },
     "simple_add: unknown attribute 'x'; known are: "},
    {"AttrSize", [](AddCall& c) { c.WithAttr(), c.attr.struct_size = 4; },
     "xla_gpu_attr.struct_size is 4 but must be at least"},
    {"AttrNameNull", [](AddCall& c) { c.WithAttr(), c.attr.name = nullptr; },
     "an attribute's name is NULL"},
    {"AttrTypeUnknown", [](AddCall& c) { c.WithAttr(), c.attr.type = 5; },
     "attribute 'x' has type number 5; allowed are 0 to 4 (XLA_GPU_ATTR_*)"},
    {"AttrTypeNegative", [](AddCall& c) { c.WithAttr(), c.attr.type = -1; },
     "attribute 'x' has type number -1; allowed are 0 to 4 (XLA_GPU_ATTR_*)"},
    {"AttrStringNull",
     [](AddCall& c) { c.WithAttr(), c.attr.type = XLA_GPU_ATTR_STRING, c.attr.s_size = 3; },
     "attribute 'x' has a size but a NULL pointer"},
    {"AttrIntsNull",
     [](AddCall& c) { c.WithAttr(), c.attr.type = XLA_GPU_ATTR_INT_ARRAY, c.attr.ints_size = 3; },
     "attribute 'x' has a size but a NULL pointer"},
    {"AttrArrayUnknown",
     [](AddCall& c) {
       c.WithAttr(), c.attr.type = XLA_GPU_ATTR_INT_ARRAY, c.attr.ints = ints, c.attr.ints_size = 2;
     },
     "simple_add: unknown attribute 'x'; known are: "},
    {"OptionalArgsNoString", [](AddCall& c) { c.WithAttr(), c.attr.name = "optional_args"; },
     "simple_add: attribute 'optional_args' is 0; it must be a string"},
    {"OptionalArgsUnknown",
     [](AddCall& c) {
       c.WithAttr(), c.attr.name = "optional_args", c.attr.type = XLA_GPU_ATTR_STRING;
       c.attr.s = "sinks", c.attr.s_size = 5;
     },
     "simple_add: attribute 'optional_args' has 'sinks' left over"},
};

INSTANTIATE_TEST_SUITE_P(CApi, BadCallTest, ::testing::ValuesIn(kBadCalls),
                         [](const auto& info) { return info.param.name; });

TEST(BadCall, NullCall) {
  EXPECT_EQ(Take(xla_gpu_run(nullptr)), "call is NULL");
  char* json = nullptr;
  EXPECT_EQ(Take(xla_gpu_infer(nullptr, &json)), "call is NULL");
  AddCall add;
  EXPECT_EQ(Take(xla_gpu_infer(&add.call, nullptr)), "results_json is NULL");
}

TEST(BadCall, AttributeTwiceAndTooMany) {
  AddCall add;
  std::vector<xla_gpu_attr> attrs(2, add.attr);
  add.call.attrs = attrs.data();
  add.call.num_attrs = attrs.size();
  EXPECT_EQ(Take(xla_gpu_run(&add.call)), "attribute 'x' is given twice");

  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back(std::string(static_cast<size_t>(i) + 1, 'n'));
  attrs.assign(40, add.attr);
  for (int i = 0; i < 40; ++i) attrs[i].name = names[i].c_str();
  add.call.attrs = attrs.data();
  add.call.num_attrs = attrs.size();
  EXPECT_THAT(Take(xla_gpu_run(&add.call)), HasSubstr("at most 32 attributes are allowed"));
}

TEST(BadCall, Handlers) {
  void* handler = nullptr;
  const auto get = [&](const char* op, const char* platform, int version) {
    return Take(xla_gpu_handler(op, platform, version, &handler));
  };
  EXPECT_EQ(get(nullptr, "Host", 4), "op or handler is NULL");
  EXPECT_EQ(Take(xla_gpu_handler("simple_add", "Host", 4, nullptr)), "op or handler is NULL");
  EXPECT_THAT(get("nope", "Host", 4), StartsWith("no op is named 'nope'; known are: "));
  EXPECT_EQ(get("simple_add", nullptr, 4),
            "platform is ''; allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)");
  EXPECT_EQ(get("simple_add", "ROCM", 4),
            "platform is 'ROCM'; allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)");
  for (int version : {-1, 0, 5, 99}) {
    EXPECT_EQ(get("simple_add", "Host", version),
              "api_version is " + std::to_string(version) +
                  "; allowed are 1, 2, 3 (legacy) and 4 (typed FFI)");
  }
  EXPECT_EQ(handler, nullptr);
}

}  // namespace
