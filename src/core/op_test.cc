#include "src/core/op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/schema_json.h"

namespace xla_gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// out has x's type; wants `b` and `c` or neither only as far as BindArguments goes.
StatusOr<std::vector<TensorSpec>> InferLikeX(const Call& call, Platform platform) {
  const TensorView& x = call.args[0];
  std::vector<TensorSpec> results = {{x.dtype, {x.shape.begin(), x.shape.end()}}};
  if (platform == Platform::kCuda) results.push_back({DType::kU8, {64}});
  return results;
}

Op MakeOp() {
  return Op{.name = "toy",
            .target = "xla_gpu_toy",
            .doc = "For tests.",
            .args = {{"x", {DType::kF32, DType::kBF16, DType::kI8}, "any"},
                     {"y", {}, "any"},
                     {"b", {}, "any", /*optional=*/true},
                     {"c", {}, "any", /*optional=*/true},
                     {"bb", {}, "any", /*optional=*/true}},
            .results = {{"out", "as x"}, Workspace()},
            .attrs = {{"scale", AttrType::kFloat, "required"},
                      {"n", AttrType::kInt, "optional", int64_t{3}},
                      {"flag", AttrType::kBool, "optional", false},
                      {"label", AttrType::kString, "optional", std::string_view()},
                      {"axes", AttrType::kIntArray, "optional", std::span<const int64_t>()}},
            .infer = InferLikeX};
}

// A call of the toy op: by default a valid one with x and y.
class OpTest : public ::testing::Test {
 protected:
  void Attr(std::string_view name, AttrValue value) {
    ASSERT_TRUE(attributes_.Add(name, value).ok());
  }
  Call AsCall() { return Call{args_, results_, &attributes_}; }
  std::string Error(Platform platform = Platform::kHost) {
    return CheckCall(op_, platform, AsCall()).message();
  }

  const Op op_ = MakeOp();
  const std::vector<int64_t> dims_ = {2, 3};
  const TensorView tensor_{nullptr, DType::kF32, Shape(dims_)};
  std::vector<TensorView> args_ = {tensor_, tensor_};
  std::vector<TensorView> results_ = {tensor_};
  Attributes attributes_;
};

TEST_F(OpTest, AValidCallPasses) {
  Attr("scale", 0.5);
  EXPECT_EQ(Error(), "");
}

TEST_F(OpTest, AnIntIsAFloat) {
  Attr("scale", int64_t{2});
  EXPECT_EQ(Error(), "");
}

TEST_F(OpTest, EveryAttributeTypeIsChecked) {
  const std::vector<int64_t> axes = {0};
  Attr("scale", 0.5);
  Attr("n", int64_t{1});
  Attr("flag", true);
  Attr("label", std::string_view("x"));
  Attr("axes", std::span<const int64_t>(axes));
  EXPECT_EQ(Error(), "");
}

TEST_F(OpTest, MistypedAttribute) {
  Attr("scale", 0.5);
  Attr("n", 1.5);
  EXPECT_EQ(Error(), "toy: attribute 'n' is float 1.5; it must be int");
}

TEST_F(OpTest, ABoolIsNoInt) {
  Attr("scale", 0.5);
  Attr("n", true);
  EXPECT_EQ(Error(), "toy: attribute 'n' is bool true; it must be int");
}

TEST_F(OpTest, UnknownAttribute) {
  Attr("scale", 0.5);
  Attr("skale", 0.5);
  EXPECT_EQ(Error(), "toy: unknown attribute 'skale'; known are: scale, n, flag, label, axes");
}

TEST_F(OpTest, MissingRequiredAttribute) {
  EXPECT_EQ(Error(), "toy: attribute 'scale' (float) is missing; it is required");
}

TEST_F(OpTest, ArgumentCount) {
  Attr("scale", 0.5);
  args_.pop_back();
  EXPECT_EQ(Error(), "toy: 1 arguments came but 2 are expected: x, y");
  args_.resize(5, tensor_);
  EXPECT_EQ(Error(), "toy: 5 arguments came but 2 are expected: x, y");
}

TEST_F(OpTest, OptionalArgumentsAreBoundByName) {
  Attr("scale", 0.5);
  Attr("optional_args", std::string_view("c,bb"));
  args_.resize(4, tensor_);
  ASSERT_EQ(Error(), "");
  const auto bound = BindArguments(op_, AsCall());
  ASSERT_TRUE(bound.ok());
  EXPECT_THAT(*bound, ElementsAre(&args_[0], &args_[1], nullptr, &args_[2], &args_[3]));
}

TEST_F(OpTest, OptionalArgumentsCount) {
  Attr("scale", 0.5);
  Attr("optional_args", std::string_view("b"));
  EXPECT_EQ(Error(), "toy: 2 arguments came but 3 are expected: x, y, b");
}

struct OptionalArgsRow {
  const char* text;
  const char* left;
};

class BadOptionalArgs : public OpTest, public ::testing::WithParamInterface<OptionalArgsRow> {};

TEST_P(BadOptionalArgs, NamesWhatIsLeft) {
  Attr("scale", 0.5);
  Attr("optional_args", std::string_view(GetParam().text));
  args_.resize(4, tensor_);
  EXPECT_EQ(Error(), std::string("toy: attribute 'optional_args' has '") + GetParam().left +
                         "' left over; it must name some of 'b,c,bb' in this order, joined by "
                         "commas");
}

INSTANTIATE_TEST_SUITE_P(Rows, BadOptionalArgs,
                         ::testing::Values(OptionalArgsRow{"c,b", "b"},      // wrong order
                                           OptionalArgsRow{"b,b", "b"},      // twice
                                           OptionalArgsRow{"x", "x"},        // not optional
                                           OptionalArgsRow{"b, c", " c"},    // a space
                                           OptionalArgsRow{"bbb", "bbb"},    // a name's beginning
                                           OptionalArgsRow{",b", ",b"},      // an empty name
                                           OptionalArgsRow{"zzz", "zzz"}));  // unknown

TEST_F(OpTest, OptionalArgsMustBeAString) {
  Attr("scale", 0.5);
  Attr("optional_args", int64_t{2});
  EXPECT_EQ(Error(), "toy: attribute 'optional_args' is 2; it must be a string");
}

TEST_F(OpTest, UnknownDtype) {
  Attr("scale", 0.5);
  args_[1].dtype = DType::kInvalid;
  EXPECT_EQ(Error(), "toy: argument 'y' has a dtype (number 0) that xla_gpu does not know");
}

TEST_F(OpTest, NegativeDimension) {
  Attr("scale", 0.5);
  const std::vector<int64_t> dims = {4, -1};
  args_[0].shape = dims;
  EXPECT_EQ(Error(), "toy: argument 'x' is f32[4,-1]; dimensions must not be negative");
}

TEST_F(OpTest, SizesThatOverflow) {
  Attr("scale", 0.5);
  const int64_t max = std::numeric_limits<int64_t>::max();
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{max}, {int64_t{1} << 31, int64_t{1} << 31}, {max, 0, max}}) {
    args_[0].shape = dims;
    EXPECT_THAT(Error(), HasSubstr("size in bytes does not fit 63 bits"));
  }
}

TEST_F(OpTest, ResultCountDependsOnThePlatform) {
  Attr("scale", 0.5);
  EXPECT_EQ(Error(Platform::kCuda),
            "toy: the call has 1 results but on CUDA it must have 2: f32[2,3], u8[64]");
}

TEST_F(OpTest, ScratchMayBeLargerThanIsAsked) {
  Attr("scale", 0.5);
  std::vector<int64_t> bytes = {64};
  results_.push_back({nullptr, DType::kU8, bytes});
  EXPECT_EQ(Error(Platform::kCuda), "");
  bytes[0] = 65;
  EXPECT_EQ(Error(Platform::kCuda), "");
  bytes[0] = 63;
  EXPECT_EQ(Error(Platform::kCuda), "toy: result 1 is u8[63] but must be u8[64], or larger");
  results_[1].dtype = DType::kI8;
  bytes[0] = 65;
  EXPECT_EQ(Error(Platform::kCuda), "toy: result 1 is i8[65] but must be u8[64], or larger");
  results_[1].dtype = DType::kU8;
  const std::vector<int64_t> matrix = {64, 2};
  results_[1].shape = matrix;
  EXPECT_EQ(Error(Platform::kCuda), "toy: result 1 is u8[64,2] but must be u8[64], or larger");
}

TEST_F(OpTest, ArgumentDType) {
  Attr("scale", 0.5);
  args_[0].dtype = DType::kI32;
  EXPECT_EQ(Error(), "toy: x is i32[2,3]; its dtype must be f32, bf16 or i8");
}

TEST_F(OpTest, AbsentAttributesHaveTheirDefaults) {
  Attr("n", int64_t{7});
  const Attributes complete = CompleteAttributes(op_, attributes_);
  EXPECT_EQ(complete.Find("scale"), nullptr);
  EXPECT_EQ(complete.GetInt("n"), 7);
  EXPECT_EQ(std::get<bool>(*complete.Find("flag")), false);
  EXPECT_EQ(std::get<std::string_view>(*complete.Find("label")), "");
}

TEST_F(OpTest, ResultType) {
  Attr("scale", 0.5);
  results_[0].dtype = DType::kF16;
  EXPECT_EQ(Error(), "toy: result 0 is f16[2,3] but must be f32[2,3]");
}

TEST_F(OpTest, InferGivesTheResultsWithoutThem) {
  Attr("scale", 0.5);
  results_.clear();
  const auto results = InferResults(op_, Platform::kCuda, AsCall());
  ASSERT_TRUE(results.ok());
  ASSERT_EQ(results->size(), 2u);
  EXPECT_EQ((*results)[0].type, (TensorSpec{DType::kF32, {2, 3}}));
  EXPECT_EQ((*results)[1].type, (TensorSpec{DType::kU8, {64}}));
  EXPECT_EQ(TensorSpecsToJson({(*results)[0].type, (*results)[1].type}),
            R"([{"dtype":"f32","shape":[2,3]},{"dtype":"u8","shape":[64]}])");
  EXPECT_EQ(ResultsToJson(*results),
            R"([{"dtype":"f32","shape":[2,3],"name":"out","kind":"output","alias_of":null},)"
            R"({"dtype":"u8","shape":[64],"name":"workspace","kind":"scratch","alias_of":null}])");
}

TEST(OpRegistry, FindsByNameAndByTarget) {
  OpRegistry registry;
  registry.Register(MakeOp());
  const Op* op = registry.Find("toy");
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(registry.Find("xla_gpu_toy"), op);
  EXPECT_EQ(registry.SlotOf(*op), 0);
  EXPECT_EQ(registry.Find("to"), nullptr);
  EXPECT_EQ(registry.Get("nope").status().ToString(),
            "NOT_FOUND: no op is named 'nope'; known are: toy");
}

TEST(OpRegistry, OpsStayWhereTheyAre) {
  OpRegistry registry;
  registry.Register(MakeOp());
  const Op* first = registry.Find("toy");
  for (int i = 1; i < OpRegistry::kMaxOps; ++i) {
    Op op = MakeOp();
    op.name += std::to_string(i);
    op.target += std::to_string(i);
    registry.Register(std::move(op));
  }
  EXPECT_EQ(registry.Find("toy"), first);
  EXPECT_EQ(registry.SlotOf(*registry.Find("toy63")), 63);
}

TEST(OpRegistryDeathTest, ErrorsOfOursEndTheProcess) {
  OpRegistry registry;
  registry.Register(MakeOp());
  EXPECT_DEATH(registry.Register(MakeOp()), "op toy .* is registered twice");
  Op same_target = MakeOp();
  same_target.name = "other";
  EXPECT_DEATH(registry.Register(same_target), "registered twice");
  Op no_infer = MakeOp();
  no_infer.name = "other";
  no_infer.target = "other";
  no_infer.infer = nullptr;
  EXPECT_DEATH(registry.Register(no_infer), "op other has no infer function");
}

TEST(OpRegistry, OpsMayBeDefinedAtRunTime) {
  OpRegistry registry;
  registry.Register(MakeOp());
  EXPECT_EQ(registry.Define("scale").status().message(), "this library defines no ops at run time");
  registry.SetDefiner([](std::string_view definition) -> StatusOr<Op> {
    Op op = MakeOp();
    op.name = op.target = std::string(definition);
    op.key = op.name + "@1";
    if (definition.empty()) return InvalidArgument("empty");
    return op;
  });
  EXPECT_EQ(registry.Define("").status().message(), "empty");
  const auto first = registry.Define("scale");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*registry.Define("scale"), *first);
  EXPECT_EQ(registry.Find("scale@1"), *first);
  EXPECT_EQ(registry.Find("scale"), *first);
  EXPECT_EQ(registry.Find("scale@2"), nullptr);
  EXPECT_EQ(registry.SlotOf(**first), OpRegistry::kMaxOps);
  EXPECT_EQ(registry.SlotOf(*registry.ops()[0]), 0u);
  // Its name may be no other op's.
  EXPECT_THAT(registry.Define("toy").status().message(), testing::HasSubstr("toy"));

  Attributes call;
  ASSERT_TRUE(call.Add("kernel", std::string_view("scale@1")).ok());
  EXPECT_EQ(*registry.OpOfCall(call), *first);
  Attributes unknown;
  ASSERT_TRUE(unknown.Add("kernel", std::string_view("other@1")).ok());
  EXPECT_THAT(registry.OpOfCall(unknown).status().message(),
              testing::HasSubstr("'other@1', which this process does not know"));
  ASSERT_TRUE(unknown.Add("definition", std::string_view("other")).ok());
  EXPECT_EQ((*registry.OpOfCall(unknown))->name, "other");
  Attributes exported;  // where its source included other files
  ASSERT_TRUE(exported.Add("kernel", std::string_view("fifth@1+a5")).ok());
  ASSERT_TRUE(exported.Add("definition", std::string_view("fifth")).ok());
  EXPECT_EQ((*registry.OpOfCall(exported))->key, "fifth@1");
  Attributes mixed;
  ASSERT_TRUE(mixed.Add("kernel", std::string_view("third@1")).ok());
  ASSERT_TRUE(mixed.Add("definition", std::string_view("fourth")).ok());
  EXPECT_THAT(registry.OpOfCall(mixed).status().message(),
              testing::HasSubstr("'third@1' but its definition is that of 'fourth@1'"));
}

TEST(OpRegistry, SchemaAsJson) {
  OpRegistry registry;
  registry.Register(Op{.name = "t",
                       .target = "T",
                       .doc = "d",
                       .args = {{"x", {DType::kF32, DType::kI8}, "any"}},
                       .results = {{"out", "as x", ResultKind::kAlias, "x"}},
                       .attrs = {{"n", AttrType::kInt, "count", int64_t{3}}},
                       .instead_of_gradient = "g",
                       .infer = InferLikeX});
  EXPECT_EQ(OpsToJson(registry),
            R"([{"name":"t","key":"","target":"T","doc":"d","platforms":[],)"
            R"("args":[{"name":"x","dtypes":["f32","i8"],"optional":false,"vector":false,)"
            R"("no_copy":false,"doc":"any"}],)"
            R"("results":[{"name":"out","kind":"alias","alias_of":"x","only_with":"","form":"",)"
            R"("like":"","rank":0,"dtype":"","doc":"as x"}],)"
            R"("attrs":[{"name":"n","type":"int","default":3,"none_is_default":false,)"
            R"("keyword_only":false,"derived":false,"dtypes":[],"environment":"","doc":"count"}],)"
            R"("instead_of_gradient":"g","instead_of_batching":""}])");
}

TEST(Platform, Names) {
  EXPECT_EQ(PlatformName(Platform::kHost), "Host");
  EXPECT_EQ(PlatformName(Platform::kCuda), "CUDA");
}

TEST(CurrentDevice, IsTheInstalledFunctions) {
  SetCurrentDeviceFn(
      Platform::kHost, +[] { return 5; });
  EXPECT_EQ(CurrentDevice(Platform::kHost), 5);
  SetCurrentDeviceFn(Platform::kHost, nullptr);
  EXPECT_EQ(CurrentDevice(Platform::kHost), 0);
}

}  // namespace
}  // namespace xla_gpu
