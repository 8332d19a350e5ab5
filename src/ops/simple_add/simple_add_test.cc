#include "src/ops/simple_add/simple_add.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"

namespace xla_gpu {
namespace {

struct Operands {
  Operands(DType dtype, std::vector<int64_t> dims) : shape(std::move(dims)) {
    for (TensorView* view : {&args[0], &args[1], &result}) {
      *view = TensorView{nullptr, dtype, shape};
      memory.emplace_back(static_cast<size_t>(view->size_bytes()), char{0x7e});
      view->data = memory.back().data();
    }
  }
  Status Run() {
    ExecutionContext context;
    context.thread_pool = &DefaultThreadPool();
    return RunOp(**OpRegistry::Global().Get("simple_add"), Platform::kHost,
                 Call{args, {&result, 1}, &attributes}, context);
  }

  std::vector<int64_t> shape;
  std::vector<std::vector<char>> memory;
  TensorView args[2];
  TensorView result;
  Attributes attributes;
};

const std::vector<std::vector<int64_t>> kShapes = {
    {}, {0}, {1}, {3, 0, 5}, {7, 9}, {2, 3, 4}, {200'001, 1}, {1, 1, 1, 1, 2}};

TEST(SimpleAdd, FloatsOfEveryShape) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& shape : kShapes) {
      Operands t(dtype, shape);
      const int64_t n = t.result.num_elements();
      for (int64_t i = 0; i < n; ++i) {
        StoreFromDouble(t.args[0].data, dtype, i, std::sin(static_cast<double>(i)) * 3);
        StoreFromDouble(t.args[1].data, dtype, i, std::cos(static_cast<double>(i)));
      }
      ASSERT_TRUE(t.Run().ok());
      for (int64_t i = 0; i < n; ++i) {
        double expected = 0;  // the sum rounded once
        StoreFromDouble(
            &expected, dtype, 0,
            LoadAsDouble(t.args[0].data, dtype, i) + LoadAsDouble(t.args[1].data, dtype, i));
        ASSERT_EQ(LoadAsDouble(t.result.data, dtype, i), LoadAsDouble(&expected, dtype, 0))
            << t.result.ToString() << " at " << i;
      }
    }
  }
}

TEST(SimpleAdd, IntegersWrap) {
  for (const auto& shape : kShapes) {
    Operands t(DType::kI32, shape);
    auto* a = t.args[0].data_as<int32_t>();
    auto* b = t.args[1].data_as<int32_t>();
    const int64_t n = t.result.num_elements();
    for (int64_t i = 0; i < n; ++i) {
      a[i] = std::numeric_limits<int32_t>::max() - static_cast<int32_t>(i % 3);
      b[i] = static_cast<int32_t>(i % 5);
    }
    ASSERT_TRUE(t.Run().ok());
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t sum = static_cast<uint32_t>(a[i]) + static_cast<uint32_t>(b[i]);
      ASSERT_EQ(t.result.data_as<uint32_t>()[i], sum) << t.result.ToString() << " at " << i;
    }
  }
}

TEST(SimpleAdd, ResultMayShareAnArgumentsBuffer) {
  Operands t(DType::kF32, {1000});
  for (int64_t i = 0; i < 1000; ++i) {
    t.args[0].data_as<float>()[i] = static_cast<float>(i);
    t.args[1].data_as<float>()[i] = 1.0f;
  }
  t.result.data = t.args[0].data;
  ASSERT_TRUE(t.Run().ok());
  EXPECT_EQ(t.result.data_as<float>()[999], 1000.0f);
}

TEST(SimpleAdd, RefusesOtherTypesAndUnequalShapes) {
  Operands f64(DType::kF64, {2});
  EXPECT_EQ(f64.Run().message(),
            "simple_add: a is f64[2]; its dtype must be f32, bf16, f16 or i32");
  Operands mixed(DType::kF32, {2});
  mixed.args[1].dtype = DType::kI32;
  EXPECT_EQ(mixed.Run().message(),
            "simple_add: a is f32[2] but b is i32[2]; they must be equal in dtype and shape");
}

}  // namespace
}  // namespace xla_gpu
