#include "src/ops/user_kernel/cpu/function_call.h"

#include <array>
#include <bit>
#include <utility>

#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

// Both conventions pass integers and addresses in registers of one kind, floats in those of
// another, each in their own order, and what is left over on the stack, 8 bytes each in the order
// of all. So one function type that fills every register and enough of the stack serves every
// signature: what a function does not declare it does not look at, and the caller cleans the stack.
#if defined(__x86_64__)
constexpr size_t kIntRegisters = 6;
#elif defined(__aarch64__)
constexpr size_t kIntRegisters = 8;
#else
#error "the C calling convention of this processor is not written down here"
#endif
constexpr size_t kFloatRegisters = 8;

// The unwinder that is linked into this library fills its tables at its own first throw. Until then
// an exception of a function's, which the process's unwinder brings here, would end the process.
[[maybe_unused]] const bool unwinder_is_ready = [] {
  try {
    throw 0;
  } catch (int) {
    return true;
  }
}();

struct Slots {
  std::array<uint64_t, kIntRegisters> ints{};
  std::array<double, kFloatRegisters> floats{};
  std::array<uint64_t, kMaxParameters> stack{};
};

// An integer narrower than a register, widened as callers may rely on.
uint64_t Widen(DType type, uint64_t bits) {
  switch (type) {
    case DType::kI8:
      return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(bits)));
    case DType::kI16:
      return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(bits)));
    case DType::kI32:
      return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(bits)));
    default:
      return bits;
  }
}

template <size_t, typename T>
using Repeated = T;

template <size_t... i, size_t... f, size_t... s>
int CallWith(const void* function, const Slots& slots, std::index_sequence<i...>,
             std::index_sequence<f...>, std::index_sequence<s...>) {
  using Function = int(Repeated<i, uint64_t>..., Repeated<f, double>..., Repeated<s, uint64_t>...);
  return reinterpret_cast<Function*>(const_cast<void*>(function))(
      slots.ints[i]..., slots.floats[f]..., slots.stack[s]...);
}

}  // namespace

int CallFunction(const void* function, std::span<const DType> types,
                 std::span<const uint64_t> values) {
  Slots slots;
  size_t num_ints = 0, num_floats = 0, num_stack = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    if (IsFloat(types[i])) {
      if (num_floats < kFloatRegisters) {
        slots.floats[num_floats++] = std::bit_cast<double>(values[i]);  // the lowest bytes count
      } else {
        slots.stack[num_stack++] = values[i];
      }
    } else if (num_ints < kIntRegisters) {
      slots.ints[num_ints++] = Widen(types[i], values[i]);
    } else {
      slots.stack[num_stack++] = Widen(types[i], values[i]);
    }
  }
  using Ints = std::make_index_sequence<kIntRegisters>;
  using Floats = std::make_index_sequence<kFloatRegisters>;
  if (num_stack == 0) return CallWith(function, slots, Ints{}, Floats{}, {});
  if (num_stack <= 8)
    return CallWith(function, slots, Ints{}, Floats{}, std::make_index_sequence<8>{});
  return CallWith(function, slots, Ints{}, Floats{}, std::make_index_sequence<kMaxParameters>{});
}

}  // namespace xla_gpu::user_kernel
