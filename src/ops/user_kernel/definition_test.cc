#include "src/ops/user_kernel/definition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "src/core/strings.h"
#include "src/core/test_util.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = Parameter::Kind;

// JSON with ' for ".
std::string Json(std::string_view text) {
  std::string json(text);
  std::ranges::replace(json, '\'', '"');
  return json;
}

std::shared_ptr<const Definition> Parse(std::string_view text) {
  const auto made = ParseDefinition(Json(text));
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *made : std::make_shared<const Definition>();
}

const Implementation& On(const Definition& definition, Platform platform) {
  return definition.implementations[static_cast<size_t>(platform)].value();
}

std::vector<Kind> KindsOf(const Implementation& implementation) {
  std::vector<Kind> kinds;
  for (const Parameter& parameter : implementation.parameters) kinds.push_back(parameter.kind);
  return kinds;
}

TEST(Definition, ASourceTextSaysTheRest) {
  const auto saxpy = Parse(R"({'name': 'saxpy', 'doc': 'y',
      'results': [{'name': 'out', 'like': 'x'}],
      'scalars': [{'name': 'alpha', 'default': 2, 'doc': 'factor'}],
      'implementations': {
        'CUDA': {'kind': 'cuda_source', 'entry': 'saxpy', 'file': 'a.cu', 'options': ['-DN=4'],
                 'text': 'void saxpy(const float* x, const float* y, float* out, float alpha, int n)'},
        'Host': {'kind': 'host_source', 'entry': 'on_host', 'returns_error': true,
                 'text': 'int on_host(int n, float* out, float alpha, const float* y, const float* x)'}}})");
  EXPECT_EQ(saxpy->name, "saxpy");
  EXPECT_EQ(saxpy->doc, "y");
  EXPECT_EQ(saxpy->key.substr(0, 6), "saxpy@");
  EXPECT_EQ(saxpy->key.size(), 6u + 16);
  EXPECT_TRUE(saxpy->capture);
  EXPECT_FALSE(saxpy->workspace);
  ASSERT_EQ(saxpy->arguments.size(), 2u);
  EXPECT_EQ(saxpy->arguments[1].name, "y");
  EXPECT_THAT(saxpy->arguments[1].dtypes, ElementsAre(DType::kF32));
  ASSERT_EQ(saxpy->results.size(), 1u);
  EXPECT_EQ(saxpy->results[0].like, "x");
  EXPECT_EQ(saxpy->results[0].kind, ResultKind::kOutput);
  ASSERT_EQ(saxpy->scalars.size(), 2u);
  EXPECT_EQ(saxpy->scalars[0].type, DType::kF32);
  EXPECT_EQ(std::get<double>(saxpy->scalars[0].default_value.value()), 2.0);
  EXPECT_EQ(saxpy->scalars[0].doc, "factor");
  EXPECT_EQ(saxpy->scalars[1].name, "n");
  EXPECT_EQ(saxpy->scalars[1].type, DType::kI32);
  EXPECT_FALSE(saxpy->scalars[1].default_value.has_value());

  const Implementation& cuda = On(*saxpy, Platform::kCuda);
  EXPECT_EQ(cuda.kind, Implementation::Kind::kCudaSource);
  EXPECT_TRUE(cuda.is_launched());
  EXPECT_EQ(cuda.entry, "saxpy");
  EXPECT_EQ(cuda.file, "a.cu");
  EXPECT_THAT(cuda.options, ElementsAre("-DN=4"));
  EXPECT_THAT(KindsOf(cuda), ElementsAre(Kind::kArgument, Kind::kArgument, Kind::kResult,
                                         Kind::kScalar, Kind::kScalar));
  EXPECT_EQ(cuda.parameters[1].index, 1u);
  EXPECT_EQ(cuda.parameters[1].type, DType::kU64);
  EXPECT_EQ(cuda.parameters[1].points_to, DType::kF32);
  EXPECT_EQ(cuda.parameters[4].type, DType::kI32);
  const Implementation& host = On(*saxpy, Platform::kHost);
  EXPECT_TRUE(host.returns_error);
  EXPECT_FALSE(host.is_launched());
  EXPECT_THAT(KindsOf(host), ElementsAre(Kind::kScalar, Kind::kResult, Kind::kScalar,
                                         Kind::kArgument, Kind::kArgument));
}

TEST(Definition, MachineCodeTakesWhatTheOtherPlatformsTextDeclares) {
  const auto made = Parse(R"({'name': 'k', 'results': [{'name': 'out', 'like': 'x'}],
      'scalars': [{'name': 'a', 'default': true}],
      'implementations': {
        'CUDA': {'kind': 'cuda_image', 'image': 'AP+/', 'entry': 'k', 'arch': 'sm_90a',
                 'cluster': [2, 1, 16], 'cooperative': true, 'programmatic': true},
        'Host': {'kind': 'host_source', 'entry': 'k', 'text': 'void k(float* x, float* out, bool a)'}}})");
  const Implementation& cuda = On(*made, Platform::kCuda);
  EXPECT_EQ(cuda.image, std::string("\0\xff\xbf", 3));
  EXPECT_EQ(cuda.arch, "sm_90a");
  EXPECT_THAT(cuda.cluster, ElementsAre(2, 1, 16));
  EXPECT_TRUE(cuda.cooperative && cuda.programmatic);
  EXPECT_THAT(KindsOf(cuda), ElementsAre(Kind::kArgument, Kind::kResult, Kind::kScalar));
  EXPECT_TRUE(std::get<bool>(made->scalars[0].default_value.value()));
}

TEST(Definition, AliasesAndWorkspace) {
  const auto made = Parse(R"({'name': 'k', 'workspace': true, 'capture': false,
      'results': [{'name': 'y', 'alias_of': 'y'}, {'name': 'z', 'dtype': 's8', 'doc': 'd'}],
      'implementations': {'Host': {'kind': 'host_source', 'entry': 'k',
        'text': 'void k(const void* x, float* y, signed char* z, char* workspace, void* stream)'}}})");
  EXPECT_FALSE(made->capture);
  EXPECT_TRUE(made->workspace);
  ASSERT_EQ(made->arguments.size(), 2u);
  EXPECT_TRUE(made->arguments[0].dtypes.empty());
  EXPECT_EQ(made->results[0].kind, ResultKind::kAlias);
  EXPECT_EQ(made->results[1].dtype, "i8");
  EXPECT_EQ(made->results[1].doc, "d");
  EXPECT_THAT(KindsOf(On(*made, Platform::kHost)),
              ElementsAre(Kind::kArgument, Kind::kArgument, Kind::kResult, Kind::kWorkspace,
                          Kind::kStream));
}

TEST(Definition, FunctionsAndTheirDefaultParameters) {
  const auto made = Parse(R"({'name': 'k',
      'arguments': [{'name': 'x', 'dtypes': ['f32', 's32'], 'doc': 'd'},
                    {'name': 'y', 'optional': true}],
      'results': [{'name': 'out', 'like': 'x', 'dtype': 'bf16'}, {'name': 'x', 'alias_of': 'x'}],
      'scalars': [{'name': 'n', 'type': 'i64', 'derived': true}, {'name': 'h', 'type': 'f16', 'default': 0.5}],
      'implementations': {
        'CUDA': {'kind': 'function', 'library': 'a.so', 'symbol': 's'},
        'Host': {'kind': 'function', 'address': 4096}}})");
  EXPECT_THAT(made->arguments[0].dtypes, ElementsAre(DType::kF32, DType::kI32));
  EXPECT_EQ(made->arguments[0].doc, "d");
  EXPECT_TRUE(made->arguments[1].optional);
  EXPECT_TRUE(made->scalars[0].derived);
  const Implementation& cuda = On(*made, Platform::kCuda);
  EXPECT_EQ(cuda.library, "a.so");
  EXPECT_EQ(cuda.symbol, "s");
  EXPECT_THAT(KindsOf(cuda), ElementsAre(Kind::kStream, Kind::kArgument, Kind::kArgument,
                                         Kind::kResult, Kind::kScalar, Kind::kScalar));
  const Implementation& host = On(*made, Platform::kHost);
  EXPECT_EQ(host.address, 4096u);
  EXPECT_EQ(host.parameters.size(), cuda.parameters.size() - 1);
  EXPECT_EQ(host.parameters.back().type, DType::kF16);
}

TEST(Definition, ForeignKinds) {
  const auto made = Parse(R"({'name': 'k', 'results': [{'name': 'out'}],
      'implementations': {
        'CUDA': {'kind': 'tvm_ffi', 'library': 'a.so', 'symbol': 's', 'libtvm_ffi': 'b.so', 'owned': true},
        'Host': {'kind': 'legacy', 'address': 1, 'api_version': 3, 'opaque': 'text'}}})");
  EXPECT_EQ(On(*made, Platform::kCuda).kind, Implementation::Kind::kTvmFfi);
  EXPECT_EQ(On(*made, Platform::kCuda).libtvm_ffi, "b.so");
  EXPECT_TRUE(On(*made, Platform::kCuda).owned);
  EXPECT_EQ(On(*made, Platform::kHost).kind, Implementation::Kind::kLegacy);
  EXPECT_EQ(On(*made, Platform::kHost).api_version, 3);
  EXPECT_EQ(On(*made, Platform::kHost).opaque, "text");
}

TEST(Definition, GivenParameters) {
  const auto made = Parse(R"({'name': 'k', 'workspace': true,
      'arguments': [{'name': 'x'}], 'results': [{'name': 'out', 'like': 'x'}],
      'scalars': [{'name': 'a', 'type': 'pred'}],
      'implementations': {'Host': {'kind': 'function', 'address': 1, 'parameters': [
        'out', null, {'value': -3, 'type': 'i16'}, {'value': 1.5, 'type': 'f32'},
        {'value': 2, 'type': 'f64'}, {'value': true, 'type': 'pred'},
        {'elements_of': 'x', 'type': 'i64'}, {'dim_of': 'x', 'dim': 31, 'type': 'u8'},
        'a', 'workspace', 'stream', 'x', 'x']}}})");
  const auto& parameters = On(*made, Platform::kHost).parameters;
  EXPECT_THAT(
      KindsOf(On(*made, Platform::kHost)),
      ElementsAre(Kind::kResult, Kind::kNull, Kind::kConstant, Kind::kConstant, Kind::kConstant,
                  Kind::kConstant, Kind::kElements, Kind::kDimension, Kind::kScalar,
                  Kind::kWorkspace, Kind::kStream, Kind::kArgument, Kind::kArgument));
  EXPECT_EQ(parameters[2].bits, 0xfffdu);
  EXPECT_EQ(parameters[3].bits, 0x3fc00000u);
  EXPECT_EQ(parameters[4].bits, 0x4000000000000000u);
  EXPECT_EQ(parameters[5].bits, 1u);
  EXPECT_EQ(parameters[7].dim, 31u);
  EXPECT_EQ(parameters[7].type, DType::kU8);
}

TEST(Definition, TheKeyIsOfTheText) {
  const std::string text = Json(
      "{'name':'k','results':[{'name':'o'}],'implementations':{'Host':{'kind':'function','address':"
      "1}}}");
  const auto one = ParseDefinition(text), again = ParseDefinition(text),
             other = ParseDefinition(text + " ");
  EXPECT_EQ((*one)->key, (*again)->key);
  EXPECT_NE((*one)->key, (*other)->key);
}

// Members around what a case has: `implementation` on the Host, and the other members.
std::string With(std::string_view implementation,
                 std::string_view members =
                     "'results': [{'name': 'out', 'like': 'x'}], "
                     "'arguments': [{'name': 'x'}]",
                 std::string_view platform = "Host") {
  return Json(StrCat("{'name': 'k', ", members, ", 'implementations': {'", platform, "': {",
                     implementation, "}}}"));
}

std::string WithMembers(std::string_view members) {
  return With("'kind': 'function', 'address': 1", members);
}

std::string WithParameter(std::string_view parameter) {
  return With(StrCat("'kind': 'function', 'address': 1, 'parameters': [", parameter, "]"));
}

std::string WithText(std::string_view text, std::string_view members =
                                                "'results': [{'name': "
                                                "'out', 'like': 'x'}]") {
  return With(StrCat("'kind': 'host_source', 'entry': 'f', 'text': '", text, "'"), members);
}

std::string Many(std::string_view before, std::string_view after, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) list += StrCat(i == 0 ? "" : ", ", before, i, after);
  return list;
}

TEST(Definition, WhatIsWrongIsNamed) {
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"", "kernel: not JSON at byte 1"},
      {"{", "kernel: not JSON"},
      {"[]", "kernel: the definition is an array of 0; it must be an object with the members name"},
      {"{}", "kernel: the definition lacks the member 'name'"},
      {Json("{'name': 'k'}"), "kernel: the definition lacks the member 'implementations'"},
      {Json("{'name': 'k', 'name': 'k'}"), "member 'name' is given twice"},
      {WithMembers("'entry': 1"), "kernel: the definition has the unknown member 'entry'"},
      {Json("{'name': 3, 'implementations': {}}"),
       "kernel: name is the int 3; it must be a string"},
      {Json("{'name': '', 'implementations': {}}"), "kernel: name is \"\"; it must be a line"},
      {Json("{'name': 'a\\nb', 'implementations': {}}"), "kernel: name is \"a?b\"; it must be"},
      {Json(StrCat("{'name': '", std::string(201, 'a'), "', 'implementations': {}}")),
       "at most 200 bytes"},
      {Json("{'name': '\xff', 'implementations': {}}"), "kernel: not JSON"},
      {Json("{'name': 'TopK', 'implementations': {}}"),
       "TopK: XLA takes custom calls of this name"},
      {Json("{'name': '__cublas$gemm', 'implementations': {}}"), "for its own"},
      {Json("{'name': 'TopKs', 'implementations': {}}"), "TopKs: implementations is empty"},
      {WithMembers("'doc': 1"), "k: doc is the int 1; it must be a string"},
      {WithMembers("'capture': 1"), "k: capture is the int 1; it must be true or false"},
      {WithMembers("'workspace': 'yes'"), "k: workspace is the string \"yes\""},
      // Results.
      {WithMembers("'results': []"), "k: there is no result; a custom call has at least one"},
      {WithMembers("'results': {}"), "k: results is an object of 0; it must be an array"},
      {WithMembers("'results': ['out']"),
       "k: results[0] is the string \"out\"; it must be an object"},
      {WithMembers("'results': [{'like': 'x'}]"), "k: results[0] lacks the member 'name'"},
      {WithMembers("'results': [{'name': 'a', 'shape': []}]"), "results[0] has the unknown member"},
      {WithMembers("'results': [{'name': '1a'}]"),
       "results[0].name is \"1a\"; it must be an ident"},
      {WithMembers("'results': [{'name': 'a-b'}]"), "results[0].name is \"a-b\""},
      {WithMembers("'results': [{'name': 'grid'}]"), "is \"grid\", which calls use for something"},
      {WithMembers("'results': [{'name': 'a', 'like': 'q'}]"),
       "k: result a: like is \"q\", which is no argument"},
      {WithMembers("'results': [{'name': 'a', 'alias_of': 'q'}]"),
       "k: result a: alias_of is \"q\", which is no argument"},
      {WithMembers("'results': [{'name': 'a', 'dtype': 'f31'}]"),
       "results[0].dtype is \"f31\"; allowed are pred, i8"},
      {WithMembers("'results': [{'name': 'a', 'dtype': ''}]"), "results[0].dtype is \"\"; allowed"},
      {WithMembers("'results': [{'name': 'a', 'alias_of': 'x', 'dtype': 'f32'}]"),
       "results[0] has alias_of and dtype; an alias is of its argument's type"},
      {WithMembers("'results': [{'name': 'a', 'alias_of': 'x', 'like': 'x'}]"),
       "results[0] has alias_of and like"},
      {WithMembers("'results': [{'name': 'a'}, {'name': 'a'}]"),
       "k: 'a' is the name of two arguments, results or scalars"},
      {WithMembers(StrCat("'results': [", Many("{'name': 'r", "'}", 64), "]")),
       "0 arguments and 64 results; at most 64 and 63"},
      // Arguments.
      {WithMembers("'results': [{'name': 'a'}], 'arguments': [{'name': 'a'}]"),
       "'a' is the name of two"},
      {WithMembers("'arguments': [{'name': 'kernel'}]"), "arguments[0].name is \"kernel\", which"},
      {WithMembers("'arguments': [{'name': 'a', 'dtypes': 'f32'}]"),
       "arguments[0].dtypes is the string \"f32\"; it must be an array"},
      {WithMembers("'arguments': [{'name': 'a', 'dtypes': ['f32', 'q']}]"),
       "arguments[0].dtypes[1] is \"q\"; allowed are pred"},
      {WithMembers("'arguments': [{'name': 'a', 'dtypes': [1]}]"),
       "arguments[0].dtypes[0] is the int 1; it must be a string"},
      {WithMembers("'arguments': [{'name': 'a', 'optional': true}, {'name': 'b'}]"),
       "arguments[1] is required but follows an optional one"},
      {WithMembers(StrCat("'results': [{'name': 'a'}], 'arguments': [",
                          Many("{'name': 'r", "'}", 65), "]")),
       "65 arguments and 1 results"},
      // Scalars.
      {WithMembers("'scalars': [{'type': 'f32'}]"), "scalars[0] lacks the member 'name'"},
      {WithMembers("'scalars': [{'name': 'a'}]"),
       "the type of scalar a is not known; give it pred"},
      {WithMembers("'scalars': [{'name': 'a', 'default': 1}]"),
       "the type of scalar a is not known"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'f8e5m2'}]"),
       "the type of scalar a is f8e5m2"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'float'}]"), "scalars[0].type is \"float\""},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'i32', 'default': 1.0}]"),
       "the default of a is the float 1; it must be a i32"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'i8', 'default': 128}]"),
       "the default of a is the int 128; it must be a i8"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'u32', 'default': -1}]"), "must be a u32"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'pred', 'default': 1}]"), "must be a pred"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'f32', 'default': true}]"), "must be a f32"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'f32', 'default': 1e39}]"),
       "it must be a f32: -3.40282e+38 to 3.40282e+38"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'f32', 'default': null}]"), "a is null"},
      {WithMembers("'scalars': [{'name': 'a', 'type': 'i64', 'default': 9223372036854775808}]"),
       "does not fit 64 signed bits"},
      {WithMembers(StrCat("'results': [{'name': 'o'}], 'scalars': [",
                          Many("{'type': 'i32', 'name': 's", "'}", 23), "]")),
       "there are 23 scalars; at most 22"},
      // Implementations.
      {Json("{'name': 'k', 'results': [{'name': 'o'}], 'implementations': {}}"),
       "k: implementations is empty; it must have CUDA, Host or both"},
      {Json("{'name': 'k', 'implementations': []}"), "k: implementations is an array of 0"},
      {Json("{'name': 'k', 'implementations': {'cuda': {}}}"),
       "implementations has the unknown member 'cuda'; allowed are: CUDA, Host"},
      {Json("{'name': 'k', 'implementations': {'Host': 3}}"),
       "implementations.Host is the int 3; it must be an object with a kind: cuda_source"},
      {With("'text': ''"), "implementations.Host lacks the member 'kind', one of cuda_source"},
      {With("'kind': 7"), "implementations.Host.kind is the int 7; it must be one of cuda_source"},
      {With("'kind': 'ptx'"), "implementations.Host.kind is \"ptx\"; allowed are cuda_source"},
      {With("'kind': 'cuda_source', 'text': 'a', 'entry': 'b'"),
       "implementations.Host.kind is \"cuda_source\", which does not run on Host"},
      {With("'kind': 'host_source'", "'doc': ''", "CUDA"), "which does not run on CUDA"},
      {With("'kind': 'host_source', 'entry': 'f'"), "implementations.Host lacks the member 'text'"},
      {With("'kind': 'host_source', 'text': 'f'"), "lacks the member 'entry'"},
      {With("'kind': 'host_source', 'text': '', 'entry': 'f'"),
       "implementations.Host.text is empty or missing; a host_source needs it"},
      {With("'kind': 'host_source', 'text': 'a', 'entry': ''"), "entry is empty or missing"},
      {With("'kind': 'cuda_image', 'image': '', 'entry': 'b'", "'doc': ''", "CUDA"),
       "implementations.CUDA.image is empty or missing; a cuda_image needs it"},
      {With("'kind': 'cuda_image', 'image': '*', 'entry': 'b'", "'doc': ''", "CUDA"),
       "implementations.CUDA.image is not base64"},
      {With("'kind': 'cuda_image', 'image': 'QUJD', 'entry': 'b', 'cluster': [1, 2]", "'doc': ''",
            "CUDA"),
       "implementations.CUDA.cluster is [1,2]; it must be three ints of 1 to 16"},
      {With("'kind': 'cuda_image', 'image': 'QUJD', 'entry': 'b', 'cluster': [0, 1, 17]",
            "'doc': ''", "CUDA"),
       "cluster is [0,1,17]"},
      {With("'kind': 'function'"), "implementations.Host.library is empty or missing"},
      {With("'kind': 'function', 'library': 'a.so'"), "implementations.Host.symbol is empty"},
      {With("'kind': 'tvm_ffi', 'library': 'a.so'"), "symbol is empty or missing; a tvm_ffi"},
      {With("'kind': 'function', 'address': 0"),
       "implementations.Host.address is 0; it must be 1 to"},
      {With("'kind': 'function', 'address': 'x'"),
       "address is the string \"x\"; it must be an int"},
      {With("'kind': 'function', 'address': 1, 'text': 'a'"),
       "implementations.Host has the unknown member 'text'; allowed are: library, symbol, address, "
       "gate, "
       "returns_error, kind, parameters"},
      {With("'kind': 'dlpack', 'address': 1"), "implementations.Host lacks the member 'gate'"},
      {With("'kind': 'legacy', 'address': 1"), "lacks the member 'api_version'"},
      {With("'kind': 'legacy', 'address': 1, 'api_version': 4"),
       "api_version is 4; it must be 1 to 3"},
      {With("'kind': 'host_source', 'text': 'a', 'entry': 'f', 'options': ['-O3', 1]"),
       "implementations.Host.options[1] is the int 1; it must be a string"},
      // Parameters.
      {With("'kind': 'function', 'address': 1, 'parameters': 'x'"),
       "implementations.Host.parameters is the string \"x\"; it must be an array"},
      {WithParameter("'q'"), "implementations.Host.parameters[0] is \"q\", which is no argument, "},
      {WithParameter("'workspace'"), "(workspace: true is missing)"},
      {WithParameter("3"), "parameters[0] is the int 3; it must be a name, null, or an object"},
      {WithParameter("{'value': 1}"), "parameters[0] lacks the member 'type'"},
      {WithParameter("{'type': 'i32'}"),
       "parameters[0] must have one of value, elements_of, and dim"},
      {WithParameter("{'type': 'i32', 'value': 1, 'elements_of': 'x'}"), "must have one of value"},
      {WithParameter("{'type': 'i32', 'dim_of': 'x'}"), "and dim_of with dim"},
      {WithParameter("{'type': 'i32', 'elements_of': 'x', 'dim': 0}"), "and dim_of with dim"},
      {WithParameter("{'type': 'i32', 'dim_of': 'x', 'dim': 32}"), "dim is 32; it must be 0 to 31"},
      {WithParameter("{'type': 'i32', 'elements_of': 'q'}"),
       "parameters[0].elements_of is \"q\", which is no argument"},
      {WithParameter("{'type': 'f8e5m2', 'value': 1}"), "parameters[0] is f8e5m2; give it pred"},
      {WithParameter("{'type': 'i8', 'value': 200}"), "value is the int 200; it must be a i8"},
      {WithParameter("{'type': 'i8', 'value': 1.5}"), "value is the float 1.5; it must be a i8"},
      {WithParameter(Many("{'type': 'i32', 'value': ", "}", 129)), "are 129; at most 128"},
      // What the text declares.
      {WithText("void f(float* x)"), "output out is no parameter of f"},
      {WithText("void f(float* x, float* out)",
                "'results': [{'name': 'out'}], 'scalars': [{'name': 'n', 'type': 'i32'}]"),
       "scalar n is no parameter of f"},
      {With("'kind': 'cuda_image', 'image': 'QUJD', 'entry': 'b', 'aligned': ['q']",
            "'results': [{'name': 'out'}]", "CUDA"),
       "implementations.CUDA.aligned is \"q\", which is no argument"},
      {WithText("void g(float* x, float* out)"), "the source text declares no function 'f'"},
      {WithText("void f(float& x, float* out)"), "parameter 0 of f is a reference"},
      {WithText("void f(T x, float* out)"), "the type of scalar x is not known"},
      {WithText("void f(const float* x, const float* out)"),
       "parameter out of f is a result, but points to const"},
      {WithText("void f(const float* y)", "'results': [{'name': 'y', 'alias_of': 'y'}]"),
       "parameter y of f is a result, but points to const"},
      {WithText("void f(float x, float* out)", "'arguments': [{'name': 'x'}]"),
       "parameter x of f is no pointer, but an array of the definition"},
      {WithText("void f(float* x)", "'scalars': [{'name': 'x', 'type': 'f32'}]"),
       "parameter x of f is a pointer, but a scalar of the definition"},
      {WithText("void f(int n)", "'scalars': [{'name': 'n', 'type': 'i64'}]"),
       "parameter n of f is i32 in the source text but i64 in the definition"},
      {WithText("void f(float* x, float* y)", "'arguments': [{'name': 'x'}]"),
       "parameter y of f is no argument, result or scalar"},
      {WithText("void f(float* x, int grid)"), "a parameter is \"grid\", which calls use"},
      {With("'kind': 'cuda_source', 'entry': 'f', 'text': 'void f(void* stream)'", "'doc': ''",
            "CUDA"),
       "parameter stream of f: a kernel is not given its stream"},
  };
  EXPECT_GE(std::size(cases), 60u);
  for (const auto& c : cases) {
    const auto made = ParseDefinition(c.text);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(made.status().message(), HasSubstr(c.message)) << c.text;
  }
}

TEST(Definition, WhatASourceIncludesIsInTheKey) {
  const TempFolder folder;
  const auto key = [&](const std::string& kind) {
    const auto made = ParseDefinition(
        Json(StrCat("{'name': 'k', 'results': [{'name': 'out'}], 'implementations': {'",
                    kind == "host_source" ? "Host" : "CUDA", "': {'kind': '", kind,
                    "', 'entry': 'f', 'file': '", folder.path("f.cu"),
                    "', 'text': '#include <a.h>\\nvoid f(float* out);', 'options': ['-I",
                    folder.path("lib"), "']}}}")));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? (*made)->key : "";
  };
  for (const std::string kind : {"host_source", "cuda_source"}) {
    std::filesystem::remove_all(folder.path("lib"));
    const std::string bare = key(kind);
    EXPECT_EQ(bare.size(), 18u);
    folder.Write("lib/a.h", "1");
    const std::string first = key(kind);
    EXPECT_EQ(first.substr(0, 19), bare + "+");
    EXPECT_EQ(key(kind), first);
    folder.Write("lib/a.h", "2");
    EXPECT_NE(key(kind), first);
  }
}

TEST(Definition, TheSecondTextAddsNothing) {
  const auto both = [](std::string_view host) {
    return ParseDefinition(Json(StrCat(
        "{'name': 'k', 'results': [{'name': 'out', 'like': 'x'}], 'implementations': {"
        "'CUDA': {'kind': 'cuda_source', 'entry': 'f', 'text': 'void f(float* x, float* out)'},"
        "'Host': {'kind': 'host_source', 'entry': 'f', 'text': '",
        host, "'}}}")));
  };
  EXPECT_TRUE(both("void f(float* out, float* x)").ok());
  EXPECT_THAT(both("void f(float* out, float* x, int n)").status().message(),
              HasSubstr("parameter n of f is no argument, result or scalar"));
}

}  // namespace
}  // namespace xla_gpu::user_kernel
