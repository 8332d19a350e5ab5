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
Status InferLikeX(const Call& call, Platform platform, std::vector<TensorSpec>* results) {
  const TensorView& x = call.args[0];
  results->push_back({x.dtype, {x.shape.begin(), x.shape.end()}});
  if (platform == Platform::kCuda) results->push_back({DType::kU8, {64}});
  return OkStatus();
}

Op MakeOp() {
  return Op{.name = "toy",
            .target = "xla_gpu_toy",
            .doc = "For tests.",
            .args = {{"x", "any"},
                     {"y", "any"},
                     {"b", "any", /*optional=*/true},
                     {"c", "any", /*optional=*/true},
                     {"bb", "any", /*optional=*/true}},
            .results = {{"out", "as x"}},
            .attrs = {{"scale", AttrType::kFloat, "", "required"},
                      {"n", AttrType::kInt, "3", "optional"},
                      {"flag", AttrType::kBool, "false", "optional"},
                      {"label", AttrType::kString, "\"\"", "optional"},
                      {"axes", AttrType::kIntArray, "[]", "optional"}},
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
  EXPECT_THAT(*results, ElementsAre(TensorSpec{DType::kF32, {2, 3}}, TensorSpec{DType::kU8, {64}}));
  EXPECT_EQ(TensorSpecsToJson(*results),
            R"([{"dtype":"f32","shape":[2,3]},{"dtype":"u8","shape":[64]}])");
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
  const Op stranger = MakeOp();
  EXPECT_DEATH(registry.SlotOf(stranger), "op toy is not registered");
}

TEST(OpRegistry, SchemaAsJson) {
  OpRegistry registry;
  registry.Register(Op{.name = "t",
                       .target = "T",
                       .doc = "d",
                       .args = {{"x", "any"}},
                       .results = {{"out", "as x", false, "x"}},
                       .attrs = {{"n", AttrType::kInt, "3", "count"}},
                       .infer = InferLikeX});
  EXPECT_EQ(OpsToJson(registry),
            R"([{"name":"t","target":"T","doc":"d","platforms":[],)"
            R"("args":[{"name":"x","optional":false,"doc":"any"}],)"
            R"("results":[{"name":"out","optional":false,"alias_of":"x","doc":"as x"}],)"
            R"("attrs":[{"name":"n","type":"int","default":"3","doc":"count"}]}])");
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
