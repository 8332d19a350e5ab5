// The exported TVM-FFI functions against a libtvm_ffi of the test's own: right calls, and whatever
// else may come. tests/tvm_ffi calls them from Python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "src/core/op_registry.h"
#include "src/ops/user_kernel/tvm_ffi/fake_tvm_ffi.h"

// NOLINTNEXTLINE(bugprone-reserved-identifier)
#define XLA_GPU_TVM_FFI_FUNCTION(op)                                          \
  extern "C" int __tvm_ffi_##op(void*, const xla_gpu::tvm_ffi::Any*, int32_t, \
                                xla_gpu::tvm_ffi::Any*);
#include "tvm_ffi_functions.inc"
#undef XLA_GPU_TVM_FFI_FUNCTION

namespace xla_gpu {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::StartsWith;
using tvm_ffi::Any;

const struct {
  const char* name;
  tvm_ffi::Function call;
} kFunctions[] = {
#define XLA_GPU_TVM_FFI_FUNCTION(op) {#op, __tvm_ffi_##op},
#include "tvm_ffi_functions.inc"
#undef XLA_GPU_TVM_FFI_FUNCTION
};

// The error of a call, "kind: message", or "".
std::string Call(tvm_ffi::Function function, const std::vector<Any>& args) {
  Any result{.type_index = tvm_ffi::kNone, .i = 0};
  const int failed = function(nullptr, args.data(), static_cast<int32_t>(args.size()), &result);
  EXPECT_EQ(result.type_index, tvm_ffi::kNone);
  EXPECT_EQ(failed != 0, tvm_ffi::environment.raised.has_value());
  if (failed == 0) return "";
  const tvm_ffi::Raised raised = *std::exchange(tvm_ffi::environment.raised, std::nullopt);
  return raised.kind + ": " + raised.message;
}

Any Pointer(dlpack::Tensor& tensor) {
  Any any{.type_index = tvm_ffi::kTensorPtr, .i = 0};
  any.pointer = &tensor;
  return any;
}

Any Int(int64_t value) { return {.type_index = tvm_ffi::kInt, .i = value}; }

TEST(TvmFfiFunctions, EveryOpIsOne) {
  ASSERT_EQ(std::size(kFunctions), OpRegistry::Global().ops().size());
  for (const auto& function : kFunctions) {
    EXPECT_THAT(Call(function.call, {}),
                StartsWith(std::string("ValueError: ") + function.name + ": 0 values came"));
  }
}

TEST(TvmFfiFunctions, RunsWithOffsetsAndWithoutStrides) {
  float a[] = {0, 1, 2, 3}, b[] = {10, 20, 30}, c[3] = {};
  int64_t shape[] = {3}, strides[] = {1};
  const dlpack::DataType f32 = dlpack::TypeOf(DType::kF32);
  dlpack::Tensor ta{a, {dlpack::kCpu, 0}, 1, f32, shape, nullptr, sizeof(float)};
  dlpack::Tensor tb{b, {dlpack::kCpu, 0}, 1, f32, shape, strides, 0};
  dlpack::Tensor tc{c, {dlpack::kCpu, 0}, 1, f32, shape, strides, 0};
  EXPECT_EQ(Call(__tvm_ffi_simple_add, {Pointer(ta), Pointer(tb), Pointer(tc)}), "");
  EXPECT_THAT(c, ElementsAre(11, 22, 33));
}

// Values of every kind in every place: an error of a known kind, never a crash.
TEST(TvmFfiFunctions, AnythingMayCome) {
  std::mt19937 random(1);
  const auto below = [&random](size_t n) { return random() % n; };
  alignas(64) static char memory[1 << 12];
  int64_t shapes[][4] = {{1, 1, 1, 1},
                         {2, 2, 2, 2},
                         {0, 3, 1, 2},
                         {-1, 2, 2, 2},
                         {int64_t{1} << 40, int64_t{1} << 40, 2, 1},
                         {4, 1, 4, 1}};
  int64_t strides[][4] = {{1, 1, 1, 1}, {8, 4, 2, 1}, {1, 2, 4, 8}};
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kI32, DType::kU8, DType::kF64};
  const char* const texts[] = {"f32", "bf16", "", "interleaved", "\xff"};
  for (int round = 0; round < 20000; ++round) {
    const auto& function = kFunctions[below(std::size(kFunctions))];
    const Op& op = *OpRegistry::Global().Find(function.name);
    std::array<dlpack::Tensor, 40> tensors;
    std::vector<Any> args;
    const bool right_count = below(4) != 0;
    const size_t count =
        right_count ? op.args.size() + 1 + below(op.attrs.size() + 2) : below(tensors.size());
    for (size_t i = 0; i < count; ++i) {
      const bool is_tensor = i < op.args.size() + 1 ? below(8) != 0 : below(8) == 0;
      Any any{.type_index = tvm_ffi::kNone, .i = 0};
      if (is_tensor) {
        tensors[i] = {.data = memory + 64 * below(4),
                      .device = {static_cast<int32_t>(below(30) == 0 ? below(5) : 1), 0},
                      .rank = static_cast<int32_t>(below(5)),
                      .dtype = dlpack::TypeOf(dtypes[below(std::size(dtypes))]),
                      .shape = shapes[below(std::size(shapes))],
                      .strides = below(2) == 0 ? nullptr : strides[below(std::size(strides))],
                      .byte_offset = 0};
        any = Pointer(tensors[i]);
      } else {
        switch (below(7)) {
          case 0:
            any = Int(static_cast<int64_t>(below(5)) - 2);
            break;
          case 1:
            any = {.type_index = tvm_ffi::kBool, .i = 1};
            break;
          case 2:
            any.type_index = tvm_ffi::kFloat;
            any.f = 0.5;
            break;
          case 3:
            any.type_index = tvm_ffi::kRawString;
            any.text = texts[below(std::size(texts))];
            break;
          case 4:
            any.type_index = tvm_ffi::kDataType;
            any.dtype = {static_cast<uint8_t>(below(15)), 32, 1};
            break;
          case 5:
            any.type_index = static_cast<int32_t>(below(200)) + 80;  // an object that none knows
            break;
          default:
            break;
        }
      }
      args.push_back(any);
    }
    EXPECT_THAT(Call(function.call, args),
                AnyOf("", StartsWith("ValueError: "), StartsWith("NotImplementedError: "),
                      StartsWith("RuntimeError: cuda")));
  }
}

TEST(TvmFfiFunctions, ListsAreOfInts) {
  const Any list = tvm_ffi::ArrayOf({Int(1), Any{.type_index = tvm_ffi::kNone, .i = 0}});
  std::vector<Any> args(17, Any{.type_index = tvm_ffi::kNone, .i = 0});
  float zero = 0;
  int64_t shape[] = {1};
  dlpack::Tensor tensor{&zero, {dlpack::kCpu, 0}, 1, dlpack::TypeOf(DType::kF32),
                        shape, nullptr,           0};
  for (size_t i = 0; i < 6; ++i) args[i] = Pointer(tensor);
  args[12] = list;
  EXPECT_EQ(Call(__tvm_ffi_paged_attention, args),
            "ValueError: paged_attention: scale is a value of type index 71; it must be float or "
            "None");
  tvm_ffi::TVMFFIObjectDecRef(list.object);
}

}  // namespace
}  // namespace xla_gpu
