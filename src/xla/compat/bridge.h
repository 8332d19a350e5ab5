// Carries an argument struct over the gap between a framework and a plugin of different releases.
#ifndef XLA_GPU_XLA_COMPAT_BRIDGE_H_
#define XLA_GPU_XLA_COMPAT_BRIDGE_H_

#include <array>
#include <cstddef>

#include "src/core/status.h"
#include "src/xla/compat/struct_history.h"

namespace xla_gpu::xla {

// One struct of one call. The plugin gets get(): the framework's own struct where that fits, else a
// copy of a size that the plugin takes; CopyBack() then brings what the plugin wrote to the
// framework.
class BridgedStruct {
 public:
  // `framework` begins with its struct_size, as every PJRT struct; the plugin has PJRT 0.`minor`.
  BridgedStruct(void* framework, const StructHistory& history, int minor);

  // Not OK: the framework asks for something that the plugin does not know. Do not call it.
  const Status& status() const { return status_; }
  void* get() { return copied_ ? copy_.data() : framework_; }
  void CopyBack();

 private:
  void Extend(size_t size);
  void Truncate(size_t size, int minor);

  char* framework_;
  const StructHistory& history_;
  bool copied_ = false;
  size_t framework_size_ = 0;  // of the framework's struct
  size_t common_ = 0;          // bytes that both sides know
  Status status_;
  // Room for the largest struct of the table and what later releases may add.
  alignas(std::max_align_t) std::array<char, 512> copy_;
};

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_COMPAT_BRIDGE_H_
