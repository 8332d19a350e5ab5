// PjrtArgs<T>: a zeroed PJRT argument struct with room for members that newer plugins append.
#ifndef XLA_GPU_XLA_PJRT_ARGS_H_
#define XLA_GPU_XLA_PJRT_ARGS_H_

namespace xla_gpu::xla {

// A plugin refuses a struct smaller than its own ("Unexpected PJRT_ExecuteOptions size: expected
// 112, got 80") and takes a larger one. Appended members mean "as before" when they are zero, so
// one binary serves older and newer plugins by always passing a zero tail.
template <typename T>
class PjrtArgs {
 public:
  PjrtArgs() { storage_.args.struct_size = sizeof(storage_); }
  T* get() { return &storage_.args; }
  T* operator->() { return &storage_.args; }

 private:
  struct {
    T args{};
    char tail[256] = {};
  } storage_;
};

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_PJRT_ARGS_H_
