// simple_add on the Host: a plain loop over the elements.
#include <cstdint>

#include "src/core/float_types.h"
#include "src/core/host_rows.h"
#include "src/ops/simple_add/simple_add.h"

namespace xla_gpu {
namespace {

constexpr int64_t kBlock = 1 << 16;  // elements a task; a small tensor stays in the caller's thread

template <typename T, typename Add>
void AddBlocks(const Call& call, ThreadPool& pool, Add add) {
  const T* a = call.args[0].data_as<T>();
  const T* b = call.args[1].data_as<T>();
  T* c = call.results[0].data_as<T>();
  const int64_t n = call.results[0].num_elements();
  ParallelForRanges(pool, n, kBlock, [=](int64_t i, int64_t end) {
    for (; i < end; ++i) c[i] = add(a[i], b[i]);
  });
}

Status Add(const Call& call, const ExecutionContext& context) {
  ThreadPool& pool = *context.thread_pool;
  switch (call.results[0].dtype) {
    case DType::kF32:
      AddBlocks<float>(call, pool, [](float x, float y) { return x + y; });
      break;
    case DType::kI32:  // unsigned: overflow wraps, as XLA's addition does
      AddBlocks<uint32_t>(call, pool, [](uint32_t x, uint32_t y) { return x + y; });
      break;
    case DType::kBF16:
      AddBlocks<uint16_t>(call, pool, [](uint16_t x, uint16_t y) {
        return FloatToBF16(BF16ToFloat(x) + BF16ToFloat(y));
      });
      break;
    default:  // f16: Infer allows nothing else
      AddBlocks<uint16_t>(call, pool, [](uint16_t x, uint16_t y) {
        return FloatToF16(F16ToFloat(x) + F16ToFloat(y));
      });
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Plan>> MakeSimpleAddHostPlan(const Call& call, int device_ordinal) {
  return MakePlan(Add);
}

}  // namespace xla_gpu
