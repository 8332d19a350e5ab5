// Op: one operation, declared once and reached through every door (DESIGN 2).
//
// The way of one call:
//   adapter (decode, no allocation) -> PlanCache (CheckCall and the op's plan factory, once per
//   problem) -> Plan::Run (launch on the given stream or thread pool) -> Status
#ifndef XLA_GPU_CORE_OP_H_
#define XLA_GPU_CORE_OP_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/attributes.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"
#include "src/core/thread_pool.h"

namespace xla_gpu {

enum class Platform : int { kHost = 0, kCuda = 1 };
inline constexpr int kNumPlatforms = 2;

// "Host" and "CUDA", XLA's own names.
std::string_view PlatformName(Platform platform);

// One call: tensors in the order of the op's schema, absent optional ones left out.
struct Call {
  std::span<const TensorView> args;
  std::span<const TensorView> results;
  const Attributes* attributes = nullptr;
};

// What a running kernel may use besides its tensors.
struct ExecutionContext {
  void* stream = nullptr;             // CUDA: the CUstream to launch on
  ThreadPool* thread_pool = nullptr;  // Host: never null
};

// A kernel chosen, compiled and loaded for one exact problem. Immutable: any thread may run it.
class Plan {
 public:
  virtual ~Plan() = default;

  // `call` has the types the plan was made for. On CUDA it only enqueues work on the stream: no
  // allocation, no module load, no synchronisation, so that it may be captured into a graph.
  virtual Status Run(const Call& call, const ExecutionContext& context) const = 0;
};

// Makes the plan of a call that CheckCall accepted; data pointers may be null.
// `device_ordinal`: the CUDA device (0 on the Host).
using PlanFactory = StatusOr<std::unique_ptr<Plan>> (*)(const Call& call, int device_ordinal);

struct ArgSpec {
  std::string name;
  std::string doc;  // dtype, shape and meaning
  // Optional arguments follow the required ones; which of them a call brings is told by the
  // reserved string attribute `optional_args`, their names joined by commas in schema order.
  bool optional = false;
};

struct ResultSpec {
  std::string name;
  std::string doc;
  bool optional = false;      // Op::infer says whether a call has it
  std::string alias_of = {};  // the argument that shares its buffer (updated in place), or empty
};

enum class AttrType { kBool, kInt, kFloat, kString, kIntArray };
std::string_view AttrTypeName(AttrType type);

struct AttrSpec {
  std::string name;
  AttrType type;
  std::string default_text;  // as documentation shows it; empty: the attribute is required
  std::string doc;
};

inline constexpr std::string_view kOptionalArgsAttribute = "optional_args";

struct Op {
  std::string name;    // "paged_attention"
  std::string target;  // the custom-call target: "xla_gpu_paged_attention"
  std::string doc;
  std::vector<ArgSpec> args;
  std::vector<ResultSpec> results;
  std::vector<AttrSpec> attrs;

  // Checks dtypes, shapes and attribute values (never data) and gives the results' types, a
  // workspace included where the platform needs one.
  Status (*infer)(const Call& call, Platform platform, std::vector<TensorSpec>* results) = nullptr;

  PlanFactory make_plan[kNumPlatforms] = {nullptr, nullptr};
};

// The call's arguments by schema position, null where an optional one is absent.
// Fails where the count or the `optional_args` attribute does not fit the schema.
StatusOr<std::vector<const TensorView*>> BindArguments(const Op& op, const Call& call);

// Everything that can be wrong with a call before data is looked at: attributes against the schema,
// argument count, tensor types (Op::infer), result types.
Status CheckCall(const Op& op, Platform platform, const Call& call);

// An error where a result shares bytes with another tensor of the call, so that what is read would
// change under way. A result may be an argument of its own type, whole: the one that the schema
// says it is an alias of, if it says so. Allocates nothing unless it fails.
Status CheckOverlap(const Op& op, const Call& call);

// As CheckCall, but the results are not known yet: gives their types.
StatusOr<std::vector<TensorSpec>> InferResults(const Op& op, Platform platform, const Call& call);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_OP_H_
