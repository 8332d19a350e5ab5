// all_reduce on all GPUs of the machine at once, bit for bit; skipped where there is none.
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/cuda/gpu_call_testing.h"
#include "src/ops/all_reduce/exchange.cuh"

namespace xla_gpu::all_reduce {
namespace {

using cuda::Bytes;

class AllReduceGpuTest : public cuda::GpuTest {};

// A device's part of a call.
struct Part {
  Part(DType dtype, size_t elements, std::mt19937_64& rng) : x(elements * Size(dtype)) {
    for (char& byte : x) byte = static_cast<char>(rng());  // of all kinds of numbers
    if (rng() % 4 == 0) std::fill(x.begin(), x.end(), '\xff');
    if (elements > 0 && rng() % 4 == 0) StoreFromDouble(x.data(), dtype, 0, -0.0);
    const auto shift = rng() % 3 == 0 ? rng() % 8 * Size(dtype) : 0;
    in = std::make_unique<cuda::DeviceBuffer<char>>(x, cuda::TestGuards(), shift);
    out = std::make_unique<cuda::DeviceBuffer<char>>(x.size(), cuda::TestGuards(), shift);
  }
  static size_t Size(DType dtype) { return static_cast<size_t>(DTypeSize(dtype)); }

  Bytes x;
  std::unique_ptr<cuda::DeviceBuffer<char>> in, out;
  cuda::Stream stream;
};

TEST_F(AllReduceGpuTest, IsTheSumOnEachDevice) {
  const cuda::DriverApi& driver = **cuda::GetDriver();
  const int count = std::min(*cuda::DeviceCount(), kMostDevices);
  std::vector<int> devices;
  std::string list;
  for (int device = count; device-- > 0;) {
    devices.push_back(device);
    list += StrCat(list.empty() ? "" : ",", device);
  }
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("devices", std::string_view(list)).ok());
  const Op& op = **OpRegistry::Global().Get("all_reduce");
  for (const uint64_t seed : cuda::Seeds(3 * cuda::CasesPerKind())) {
    std::mt19937_64 rng(seed);
    const DType dtype = std::vector{DType::kBF16, DType::kF16, DType::kF32}[rng() % 3];
    const size_t size = Part::Size(dtype);
    const size_t most = rng() % 4 == 0 ? kMostBytes / size : 40000;
    const size_t elements = rng() % 8 == 0 ? most : rng() % (most + 1);
    const int64_t shape[] = {static_cast<int64_t>(elements)};
    std::vector<std::unique_ptr<Part>> parts;
    for (const int device : devices) {
      const cuda::ScopedPrimaryContext scope(driver, device);
      parts.push_back(std::make_unique<Part>(dtype, elements, rng));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const cuda::ScopedPrimaryContext scope(driver, devices[i]);
      const TensorView x{parts[i]->in->data(), dtype, shape};
      const TensorView out{parts[i]->out->data(), dtype, shape};
      const Status status = RunOp(op, Platform::kCuda, {{&x, 1}, {&out, 1}, &attributes},
                                  {.stream = parts[i]->stream.get()});
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const cuda::ScopedPrimaryContext scope(driver, devices[i]);
      parts[i]->stream.Synchronize();
      EXPECT_TRUE(parts[i]->out->GuardsIntact()) << "seed " << seed;
      const Bytes got = parts[i]->out->ToHost();
      int wrong = 0;
      for (int64_t at = 0; at < shape[0]; ++at) {
        float sum = -0.0F;
        for (const auto& part : parts) {
          sum += static_cast<float>(LoadAsDouble(part->x.data(), dtype, at));
        }
        uint32_t rounded = 0;
        StoreFromDouble(&rounded, dtype, 0, static_cast<double>(sum));
        const double want = LoadAsDouble(&rounded, dtype, 0);
        const double is = LoadAsDouble(got.data(), dtype, at);
        wrong += std::isnan(want) ? !std::isnan(is)
                                  : is != want || std::signbit(is) != std::signbit(want);
      }
      EXPECT_EQ(wrong, 0) << "of " << elements << " on device " << devices[i] << ", seed " << seed;
    }
    for (size_t i = parts.size(); i-- > 0;) {  // each in its context
      const cuda::ScopedPrimaryContext scope(driver, devices[i]);
      parts[i].reset();
    }
  }
}

}  // namespace
}  // namespace xla_gpu::all_reduce
