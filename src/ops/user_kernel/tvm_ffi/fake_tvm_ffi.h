// A libtvm_ffi for tests, in the test's own program: its functions that calls need, done simply.
// Included by one file of a test.
#ifndef XLA_GPU_OPS_USER_KERNEL_TVM_FFI_FAKE_TVM_FFI_H_
#define XLA_GPU_OPS_USER_KERNEL_TVM_FFI_FAKE_TVM_FFI_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/core/tvm_ffi.h"

namespace xla_gpu::tvm_ffi {

struct Raised {
  std::string kind, message;
};

// This thread's environment.
struct FakeEnvironment {
  dlpack::AllocateFn allocate = nullptr;
  std::map<std::pair<int32_t, int32_t>, void*> streams;
  std::optional<Raised> raised;
};
inline thread_local FakeEnvironment environment;

inline int64_t num_objects = 0;  // that live

struct FakeObject {
  FakeObject() { ++num_objects; }
  FakeObject(const FakeObject&) = delete;
  FakeObject& operator=(const FakeObject&) = delete;
  virtual ~FakeObject() { --num_objects; }
};

// An object whose cell lies where the ABI has it: right after the header.
template <typename Cell>
struct FakeObjectOf : FakeObject {
  struct Layout {
    Object header;
    Cell cell;
  };
  explicit FakeObjectOf(int32_t type_index, const Cell& cell = {})
      : layout{{1, type_index, 0, nullptr}, cell} {}
  Layout layout;
};

// Objects by the address that callers have of them.
inline std::map<void*, std::unique_ptr<FakeObject>>& Objects() {
  static auto* objects = new std::map<void*, std::unique_ptr<FakeObject>>;
  return *objects;
}

template <typename Made>
auto* Publish(std::unique_ptr<Made> made) {
  auto* const address = &made->layout;
  Objects()[address] = std::move(made);
  return address;
}

struct FakeTensor final : FakeObjectOf<dlpack::Tensor> {
  explicit FakeTensor(dlpack::ManagedTensor* managed)
      : FakeObjectOf(kTensor, managed->tensor), managed(managed) {}
  ~FakeTensor() override { managed->deleter(managed); }
  dlpack::ManagedTensor* const managed;
};

struct FakeArray final : FakeObjectOf<SequenceCell> {
  explicit FakeArray(std::vector<Any> given) : FakeObjectOf(kArray), items(std::move(given)) {
    layout.cell = {items.data(), static_cast<int64_t>(items.size())};
  }
  ~FakeArray() override;
  const std::vector<Any> items;
};

struct FakeError final : FakeObjectOf<ErrorCell> {
  explicit FakeError(Raised given) : FakeObjectOf(67), raised(std::move(given)) {
    layout.cell = {{raised.kind.data(), raised.kind.size()},
                   {raised.message.data(), raised.message.size()},
                   {}};
  }
  const Raised raised;
};

// A function that returns false where it has raised an error.
using FakeBody = std::function<bool(std::span<const Any> args, Any* result)>;
struct FakeFunction final : FakeObjectOf<FunctionCell> {
  explicit FakeFunction(FakeBody given)
      : FakeObjectOf(kFunction, {&FakeFunction::Run}), body(std::move(given)) {}
  static int Run(void* self, const Any* args, int32_t num_args, Any* result) {
    const auto& function = static_cast<FakeFunction&>(*Objects().at(self));
    return function.body({args, static_cast<size_t>(num_args)}, result) ? 0 : -1;
  }
  const FakeBody body;
};

inline bool Raise(const std::string& kind, const std::string& message) {
  environment.raised = Raised{kind, message};
  return false;
}

extern "C" {
#define FAKE __attribute__((visibility("default"), used)) inline

FAKE int TVMFFIObjectIncRef(void* object) {
  return ++static_cast<Object*>(object)->reference_counts, 0;
}
FAKE int TVMFFIObjectDecRef(void* object) {
  if (--static_cast<Object*>(object)->reference_counts == 0) {
    const std::unique_ptr<FakeObject> last = std::move(Objects().at(object));
    Objects().erase(object);
  }
  return 0;
}
FAKE void TVMFFIErrorMoveFromRaised(void** error) {
  *error = nullptr;
  if (!environment.raised) return;
  *error = Publish(std::make_unique<FakeError>(*std::exchange(environment.raised, {})));
}
FAKE void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  Raise(kind, message);
}
FAKE int TVMFFITensorFromDLPackVersioned(dlpack::ManagedTensor* tensor, int32_t, int32_t,
                                         void** object) {
  *object = Publish(std::make_unique<FakeTensor>(tensor));
  return 0;
}
FAKE int TVMFFIEnvSetStream(int32_t type, int32_t id, void* stream, void** previous) {
  void*& current = environment.streams[{type, id}];
  if (previous != nullptr) *previous = current;
  current = stream;
  return 0;
}
FAKE void* TVMFFIEnvGetStream(int32_t type, int32_t id) { return environment.streams[{type, id}]; }
FAKE int TVMFFIEnvSetDLPackManagedTensorAllocator(dlpack::AllocateFn allocate, int,
                                                  dlpack::AllocateFn* previous) {
  if (previous != nullptr) *previous = environment.allocate;
  environment.allocate = allocate;
  return 0;
}
FAKE int TVMFFIEnvTensorAlloc(dlpack::Tensor* prototype, void** tensor) {
  if (environment.allocate == nullptr) return Raise("RuntimeError", "no allocator"), -1;
  dlpack::ManagedTensor* made = nullptr;
  const auto set_error = [](void*, const char* kind, const char* text) { Raise(kind, text); };
  if (environment.allocate(prototype, &made, nullptr, set_error) != 0) return -1;
  return TVMFFITensorFromDLPackVersioned(made, 0, 0, tensor);
}

#undef FAKE
}  // extern "C"

inline FakeArray::~FakeArray() {
  for (const Any& item : items) {
    if (item.type_index >= kFirstObject) TVMFFIObjectDecRef(item.object);
  }
}

// A tensor from the environment's allocator, as a value that owns it; None after an error.
inline Any Allocate(dlpack::Device device, DType dtype, std::vector<int64_t> shape) {
  dlpack::Tensor prototype = {};
  prototype.device = device;
  prototype.dtype = dlpack::TypeOf(dtype);
  prototype.rank = static_cast<int32_t>(shape.size());
  prototype.shape = shape.data();
  void* tensor = nullptr;
  if (TVMFFIEnvTensorAlloc(&prototype, &tensor) != 0) return {.type_index = kNone, .i = 0};
  Any made{.type_index = kTensor, .i = 0};
  made.object = static_cast<Object*>(tensor);
  return made;
}

inline dlpack::Tensor& TensorOf(const Any& any) {
  if (any.type_index == kTensorPtr) return *static_cast<dlpack::Tensor*>(any.pointer);
  return CellOf<dlpack::Tensor>(any.object);
}

inline Any ArrayOf(std::vector<Any> items) {
  Any made{.type_index = kArray, .i = 0};
  made.object = &Publish(std::make_unique<FakeArray>(std::move(items)))->header;
  return made;
}

}  // namespace xla_gpu::tvm_ffi

#endif  // XLA_GPU_OPS_USER_KERNEL_TVM_FFI_FAKE_TVM_FFI_H_
