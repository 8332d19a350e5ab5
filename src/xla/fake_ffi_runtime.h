// A small XLA FFI runtime for tests and fuzzers: the API table that a handler calls back into, and
// a call frame put together by hand. What it builds obeys c_api.h; whether it makes sense is the
// test's.
#ifndef XLA_GPU_XLA_FAKE_FFI_RUNTIME_H_
#define XLA_GPU_XLA_FAKE_FFI_RUNTIME_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "src/core/attributes.h"
#include "src/core/tensor_view.h"
#include "xla/ffi/api/c_api.h"

// The runtime's own types, opaque in c_api.h.
struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};
struct XLA_FFI_ExecutionContext {
  void* stream = nullptr;
  int64_t num_threads = 0;  // of the runtime's pool; 0: it has none
};

namespace xla_gpu::xla {

inline const XLA_FFI_Api* FakeFfiApi() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api api{};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->message, args->errc};
    };
    api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->message.c_str();
    };
    api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
    api.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      args->stream = args->ctx->stream;
      return nullptr;
    };
    api.XLA_FFI_ThreadPool_NumThreads =
        [](XLA_FFI_ThreadPool_NumThreads_Args* args) -> XLA_FFI_Error* {
      if (args->ctx->num_threads == 0) {
        return new XLA_FFI_Error{"no thread pool", XLA_FFI_Error_Code_UNIMPLEMENTED};
      }
      *args->num_threads = args->ctx->num_threads;
      return nullptr;
    };
    api.XLA_FFI_ThreadPool_Schedule = [](XLA_FFI_ThreadPool_Schedule_Args* args) -> XLA_FFI_Error* {
      args->task(args->data);  // at once: a pool may run a task before Schedule returns
      return nullptr;
    };
    return api;
  }();
  return &api;
}

// A call frame and everything it points to. Stays where it is, as the frame points into it.
class FakeCallFrame {
 public:
  explicit FakeCallFrame(XLA_FFI_ExecutionStage stage) : stage_(stage) {}
  FakeCallFrame(const FakeCallFrame&) = delete;
  FakeCallFrame& operator=(const FakeCallFrame&) = delete;

  // `dtype`: an XLA_FFI_DataType. `null_dims`: pass no dimensions, whatever the rank.
  void AddArg(void* data, int dtype, std::vector<int64_t> dims, bool null_dims = false) {
    args_.push_back(MakeBuffer(data, dtype, std::move(dims), null_dims));
    arg_types_.push_back(XLA_FFI_ArgType_BUFFER);
  }
  void AddResult(void* data, int dtype, std::vector<int64_t> dims, bool null_dims = false) {
    results_.push_back(MakeBuffer(data, dtype, std::move(dims), null_dims));
    result_types_.push_back(XLA_FFI_RetType_BUFFER);
  }
  // Tokens are buffers' place holders of another type number, with no buffer behind.
  void AddToken() {
    args_.push_back(nullptr);
    arg_types_.push_back(static_cast<XLA_FFI_ArgType>(0));
  }

  template <typename T>
  void AddScalar(std::string name, int dtype, T value) {
    const std::string& bytes =
        texts_.emplace_back(reinterpret_cast<const char*>(&value), sizeof(value));
    scalars_.push_back({static_cast<XLA_FFI_DataType>(dtype), const_cast<char*>(bytes.data())});
    AddAttr(std::move(name), XLA_FFI_AttrType_SCALAR, &scalars_.back());
  }
  void AddString(std::string name, std::string value) {
    const std::string& text = texts_.emplace_back(std::move(value));
    spans_.push_back({text.data(), text.size()});
    AddAttr(std::move(name), XLA_FFI_AttrType_STRING, &spans_.back());
  }
  // `bytes`: size elements of this dtype; an empty array has no data.
  void AddArray(std::string name, int dtype, size_t size, std::string bytes) {
    const std::string& data = texts_.emplace_back(std::move(bytes));
    arrays_.push_back({static_cast<XLA_FFI_DataType>(dtype), size,
                       size == 0 ? nullptr : const_cast<char*>(data.data())});
    AddAttr(std::move(name), XLA_FFI_AttrType_ARRAY, &arrays_.back());
  }
  void AddDictionary(std::string name) {
    dictionary_.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
    AddAttr(std::move(name), XLA_FFI_AttrType_DICTIONARY, &dictionary_);
  }

  XLA_FFI_ExecutionContext& context() { return context_; }

  // Valid until the next Add.
  XLA_FFI_CallFrame* frame() {
    frame_ = {};
    frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame_.api = FakeFfiApi();
    frame_.ctx = &context_;
    frame_.stage = stage_;
    frame_.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(args_.size()),
                   arg_types_.data(), args_.data()};
    frame_.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(results_.size()),
                   result_types_.data(), results_.data()};
    frame_.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                    nullptr,
                    static_cast<int64_t>(attrs_.size()),
                    attr_types_.data(),
                    attr_names_.data(),
                    attrs_.data()};
    return &frame_;
  }

 private:
  void* MakeBuffer(void* data, int dtype, std::vector<int64_t> dims, bool null_dims) {
    std::vector<int64_t>& kept = dims_.emplace_back(std::move(dims));
    XLA_FFI_Buffer& buffer = buffers_.emplace_back();
    buffer.struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    buffer.dtype = static_cast<XLA_FFI_DataType>(dtype);
    buffer.data = data;
    buffer.rank = static_cast<int64_t>(kept.size());
    buffer.dims = null_dims ? nullptr : kept.data();
    return &buffer;
  }
  void AddAttr(std::string name, XLA_FFI_AttrType type, void* value) {
    const std::string& kept = texts_.emplace_back(std::move(name));
    spans_.push_back({kept.data(), kept.size()});
    attr_names_.push_back(&spans_.back());
    attr_types_.push_back(type);
    attrs_.push_back(value);
  }

  XLA_FFI_ExecutionStage stage_;
  XLA_FFI_ExecutionContext context_;
  XLA_FFI_CallFrame frame_{};
  // Deques: what is in them never moves.
  std::deque<std::vector<int64_t>> dims_;
  std::deque<XLA_FFI_Buffer> buffers_;
  std::deque<std::string> texts_;
  std::deque<XLA_FFI_ByteSpan> spans_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<XLA_FFI_Array> arrays_;
  XLA_FFI_Attrs dictionary_{};
  std::vector<void*> args_, results_, attrs_;
  std::vector<XLA_FFI_ArgType> arg_types_;
  std::vector<XLA_FFI_RetType> result_types_;
  std::vector<XLA_FFI_AttrType> attr_types_;
  std::vector<XLA_FFI_ByteSpan*> attr_names_;
};

// The message of an error, which is freed; "" for none.
inline std::string TakeMessage(XLA_FFI_Error* error) {
  if (error == nullptr) return "";
  std::string message = std::move(error->message);
  delete error;
  return message;
}

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_FAKE_FFI_RUNTIME_H_
