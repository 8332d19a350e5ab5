// How the argument structs of the PJRT C API grew, release by release.
//
// A plugin refuses an argument struct that is smaller than its own and ignores the end of a larger
// one. So a framework and a plugin of different releases do not fit, in either direction, wherever
// a struct has grown between them. This is the list of those structs; bridge.h uses it.
#ifndef XLA_GPU_XLA_COMPAT_STRUCT_HISTORY_H_
#define XLA_GPU_XLA_COMPAT_STRUCT_HISTORY_H_

#include <cstddef>
#include <span>

namespace xla_gpu::xla {

// What it means that a plugin does not know the members a release added.
enum class Added {
  kInput,   // it would ignore what the framework asks for: only zero (nothing asked) may pass
  kHint,    // for diagnosis only: may be dropped
  kOutput,  // the plugin would fill them: the framework reads zero
};

struct StructSize {
  int since;  // PJRT 0.since
  Added kind;
  size_t size;          // from then on
  const char* members;  // what that release added
};

// One struct, oldest size first: the first is PJRT 0.57, the oldest release supported.
struct StructHistory {
  const char* name;
  std::span<const StructSize> sizes;

  // The size that a plugin of PJRT 0.`minor` requires.
  size_t SizeAt(int minor) const;
};

extern const StructHistory kClientCreateArgs;
extern const StructHistory kExecuteOptions;
extern const StructHistory kCreateViewOfDeviceBufferArgs;
extern const StructHistory kDeserializeAndLoadArgs;
extern const StructHistory kCompiledMemoryStatsArgs;

// All of them, for tests and `xla-gpu doctor`.
std::span<const StructHistory* const> StructHistories();

// The oldest PJRT release that the table begins with, and the newest that it was checked against.
inline constexpr int kOldestBridgedMinor = 57;
inline constexpr int kNewestBridgedMinor = 115;

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_COMPAT_STRUCT_HISTORY_H_
