// simple_add on a GPU against the Host, bit for bit; skipped where there is no GPU.
#include <gtest/gtest.h>

#include <random>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/cuda/gpu_testing.h"

namespace xla_gpu {
namespace {

using cuda::DeviceBuffer;

Status Add(Platform platform, DType dtype, int64_t n, void* a, void* b, void* c, void* stream) {
  const TensorView args[] = {{a, dtype, Shape(&n, 1)}, {b, dtype, Shape(&n, 1)}};
  const TensorView results[] = {{c, dtype, Shape(&n, 1)}};
  const Attributes attributes;
  ExecutionContext context;
  context.stream = stream;
  context.thread_pool = &DefaultThreadPool();
  return RunOp(*OpRegistry::Global().Find("simple_add"), platform, {args, results, &attributes},
               context);
}

struct Case {
  DType dtype;
  int64_t n;
  int64_t offset;  // elements by which the tensors begin past an aligned address
};

class SimpleAddGpuTest : public cuda::GpuTest, public testing::WithParamInterface<Case> {};

TEST_P(SimpleAddGpuTest, EqualsTheHost) {
  const auto [dtype, n, offset] = GetParam();
  const auto size = static_cast<size_t>(DTypeSize(dtype));
  std::mt19937 random(1);
  std::vector<uint8_t> a((n + offset) * size), b(a.size()), expected(a.size(), 0);
  for (auto* bytes : {&a, &b}) {
    for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(random());
  }
  // NaNs are equal to none, and their payloads are nobody's promise: keep exponents below all ones.
  if (dtype != DType::kI32) {
    for (size_t i = size - 1; i < a.size(); i += size) a[i] &= 0xbb, b[i] &= 0xbb;
  }
  const size_t skip = offset * size;
  ASSERT_TRUE(Add(Platform::kHost, dtype, n, a.data() + skip, b.data() + skip,
                  expected.data() + skip, nullptr)
                  .ok());
  DeviceBuffer<uint8_t> device_a(a), device_b(b), device_c(std::vector<uint8_t>(a.size(), 0));
  const Status status = Add(Platform::kCuda, dtype, n, device_a.data() + skip,
                            device_b.data() + skip, device_c.data() + skip, nullptr);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(device_c.ToHost(), expected);
  EXPECT_TRUE(device_c.GuardsIntact());
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI32}) {
    for (int64_t n : {0, 1, 3, 7, 8, 1023, 1024, 1025, 1'000'003}) {
      for (int64_t offset : {0, 1}) cases.push_back({dtype, n, offset});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, SimpleAddGpuTest, testing::ValuesIn(Cases()), [](const auto& info) {
  return std::string(DTypeName(info.param.dtype)) + "_" + std::to_string(info.param.n) + "_at_" +
         std::to_string(info.param.offset);
});

class SimpleAddGraphTest : public cuda::GpuTest {};

TEST_F(SimpleAddGraphTest, RunsInAGraph) {
  DeviceBuffer<float> a({1, 2}), b({3, 4}), c(2);
  cuda::Stream stream;
  auto add = [&] {
    const Status status =
        Add(Platform::kCuda, DType::kF32, 2, a.data(), b.data(), c.data(), stream.get());
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  add();  // the plan is made, as by XLA's first run
  stream.Synchronize();
  cuda::Graph graph(stream, add);
  a.CopyFrom({5, 6});
  graph.Launch(stream);
  stream.Synchronize();
  EXPECT_EQ(c.ToHost(), (std::vector<float>{8, 10}));
}

}  // namespace
}  // namespace xla_gpu
