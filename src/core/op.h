// Op: one operation, declared once and reached through every door. What its arguments, results and
// attributes are stands here and nowhere else; every front end is derived from it.
//
// The way of one call:
//   adapter (decode, no allocation) -> PlanCache (CheckCall and the op's plan factory, once per
//   problem) -> Plan::Run (launch on the given stream or thread pool) -> Status
#ifndef XLA_GPU_CORE_OP_H_
#define XLA_GPU_CORE_OP_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  ThreadPool* thread_pool = nullptr;  // Host: never null in Plan::Run (see RunPlan)
};

// A kernel chosen, compiled and loaded for one exact problem. Immutable: any thread may run it.
class Plan {
 public:
  virtual ~Plan() = default;

  // `call` has the types the plan was made for. On CUDA it only enqueues work on the stream: no
  // allocation, no module load, no synchronisation, so that it may be captured into a graph. (The
  // first call with tensors that start at no multiple of 16 bytes may load kernels:
  // src/cuda/unaligned_plan.h.)
  virtual Status Run(const Call& call, const ExecutionContext& context) const = 0;
};

// A plan whose Run is `run`, which owns all that it needs.
template <typename Function>
StatusOr<std::unique_ptr<Plan>> MakePlan(Function run) {
  class FunctionPlan final : public Plan {
   public:
    explicit FunctionPlan(Function run) : run_(std::move(run)) {}
    Status Run(const Call& call, const ExecutionContext& context) const override {
      return run_(call, context);
    }

   private:
    const Function run_;
  };
  return std::unique_ptr<Plan>(std::make_unique<FunctionPlan>(std::move(run)));
}

// Makes the plan of a call that CheckCall accepted, whose attributes are complete
// (CompleteAttributes); data pointers may be null. `device_ordinal`: the CUDA device (0 on the
// Host).
using PlanFactory =
    std::function<StatusOr<std::unique_ptr<Plan>>(const Call& call, int device_ordinal)>;

// What a value may be of; empty: any.
using DTypes = std::vector<DType>;
// "f32, bf16 or f16".
std::string DTypesText(const DTypes& dtypes);

struct ArgSpec {
  std::string name;
  DTypes dtypes;
  std::string doc;  // shape and meaning
  // Optional arguments follow the required ones; which of them a call brings is told by the
  // reserved string attribute `optional_args`, their names joined by commas in schema order.
  bool optional = false;
  // Often of one element: front ends take a number or a 0-d array for that, and for f32 any
  // floating dtype.
  bool vector = false;
  // Too large for a copy behind the user's back: front ends refuse what is not dense and row-major.
  bool no_copy = false;
};

enum class ResultKind {
  kOutput,   // new
  kAlias,    // shares the buffer of an argument, which is updated in place
  kScratch,  // work space, whose content means nothing: no front end returns it
};
std::string_view ResultKindName(ResultKind kind);  // "output", "alias", "scratch"

struct ResultSpec {
  std::string name;
  std::string doc;
  ResultKind kind = ResultKind::kOutput;
  std::string alias_of = {};  // the argument, of an alias
  // The bool attribute or optional argument with which a call has it; empty: every call. Scratch
  // follows the others and is there where Op::infer says so.
  std::string only_with = {};
  // A front end whose functions have a fixed number of results gives the calls that have this one
  // to a function of their own: "paged_attention_with_lse".
  std::string form = {};
  // Of an output, for front ends that trace with sizes unknown: the argument whose first `rank`
  // dimensions (0: all) are its shape, if there is one; and its dtype where that is not the
  // argument's: a dtype's name, or the kDType attribute that gives it unless empty.
  std::string like = {};
  int rank = 0;
  std::string dtype = {};
};

// The scratch that a kernel asks for: a result, because XLA may replay a call that allocates
// nothing. A call may bring more than is asked, so that a saved program outlives a change of the
// layout.
ResultSpec Workspace();

struct AttrSpec {
  std::string name;
  AttrType type;
  std::string doc;
  std::optional<AttrValue> default_value = {};
  // Front ends write None for a call that leaves it out. With neither this nor a default the
  // attribute is required.
  bool none_is_default = false;
  bool keyword_only = false;  // in front ends that have positional arguments
  DTypes dtypes = {};         // of a kDType, whose value is a dtype's name, or empty by default
  // Follows from the other attributes and the arguments' types (a grid, the types of results): a
  // front end works it out, and its functions have no parameter for it.
  bool derived = false;
  // The environment variable whose "1" makes true the default of this bool: for a front end, when
  // it traces a call; for a call that leaves the attribute out, when the library was loaded.
  std::string environment = {};
};

inline constexpr std::string_view kOptionalArgsAttribute = "optional_args";

// Of the calls of an op that is defined at run time (OpRegistry::Define): its key and, in programs
// that leave this process, its definition.
inline constexpr std::string_view kKernelAttribute = "kernel";
inline constexpr std::string_view kDefinitionAttribute = "definition";

struct Op {
  std::string name;    // "paged_attention"
  std::string target;  // the custom-call target: "xla_gpu_paged_attention"
  std::string doc;
  std::vector<ArgSpec> args;
  std::vector<ResultSpec> results;
  std::vector<AttrSpec> attrs;
  // The remedies that errors of differentiation and of batching (vmap) name.
  std::string instead_of_gradient;
  std::string instead_of_batching;

  // Checks shapes and attribute values (never data; dtypes are checked by then, attributes
  // complete) and returns the types of the results that the call has, a workspace last where the
  // platform needs one.
  std::function<StatusOr<std::vector<TensorSpec>>(const Call& call, Platform platform)> infer;

  PlanFactory make_plan[kNumPlatforms];

  // Of an op that is defined at run time: "saxpy@6b3c0e9ad1f24711", its name and a digest of its
  // definition. Else empty.
  std::string key = {};
  // Whether its CUDA calls only enqueue work, so that they may be captured into a graph.
  bool capturable = true;

  // What OpRegistry finds it by.
  const std::string& id() const { return key.empty() ? name : key; }
};

// A result that a call has.
struct Result {
  const ResultSpec* spec;
  TensorSpec type;
  int alias_of = -1;  // index in Call::args, of an alias
};

// The call's arguments by schema position, null where an optional one is absent.
// Fails where the count or the `optional_args` attribute does not fit the schema.
StatusOr<std::vector<const TensorView*>> BindArguments(const Op& op, const Call& call);

// The call's attributes and the defaults of those that it leaves out.
Attributes CompleteAttributes(const Op& op, const Attributes& attributes);

// Whether calls with these attributes have this result of the schema's; of scratch, whether they
// may.
bool HasResult(const Op& op, const Attributes& attributes, const ResultSpec& spec);
// The index in Call::args of the argument whose buffer the result shares; -1 if it is no alias.
int AliasOf(const Op& op, const Attributes& attributes, const ResultSpec& spec);

// Everything that can be wrong with a call before data is looked at: attributes against the schema,
// argument count and dtypes, what Op::infer checks, result types.
Status CheckCall(const Op& op, Platform platform, const Call& call);

// An error where a result shares bytes with another tensor of the call, so that what is read would
// change under way. A result may be an argument of its own type, whole: the one that the schema
// says it is an alias of, if it says so. Allocates nothing unless it fails.
Status CheckOverlap(const Op& op, const Call& call);

// As CheckCall, but the results are not known yet: returns what they are.
StatusOr<std::vector<Result>> InferResults(const Op& op, Platform platform, const Call& call);
// Their types alone.
StatusOr<std::vector<TensorSpec>> InferTypes(const Op& op, Platform platform, const Call& call);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_OP_H_
