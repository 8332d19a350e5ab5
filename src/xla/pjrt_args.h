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

// The Status of a function of the plugin's table, called with these PjrtArgs; an error begins with
// the function's name.
#define XLA_GPU_PJRT_CALL(plugin, function, args) \
  (plugin).TakeError((plugin).api()->function((args).get()), #function)

#endif  // XLA_GPU_XLA_PJRT_ARGS_H_
