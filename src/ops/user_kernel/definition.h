// Definition: a kernel of the user's as data, and the op that it becomes.
//
// A definition comes as a JSON text (xla_gpu_define_kernel, and the attribute `definition` of calls
// in exported programs):
//
//   {"name": "saxpy",                          the custom-call target; one line of UTF-8
//    "doc": "...",                             optional
//    "arguments": [{"name": "x", "dtypes": ["f32"], "optional": false}, ...],
//    "results": [{"name": "out", "like": "x", "dtype": "f32"}, {"name": "y", "alias_of": "y"}],
//    "scalars": [{"name": "alpha", "type": "f32", "default": 1.0}, ...],
//    "workspace": false,                       whether calls bring scratch memory
//    "capture": true,                          whether CUDA calls only enqueue work
//    "implementations": {"CUDA": {...}, "Host": {...}}}
//
// A result that is neither `like` an argument nor one's alias has the type that the call says by
// the attribute `result_types`. A scalar's type is "pred", an integer's or a float's; without a
// default it is required, `derived` means that a front end works it out. What a source text
// declares besides is added: pointers become arguments (unless `arguments` is given), numbers
// scalars.
//
// An implementation has a `kind` and what that needs:
//
//   cuda_source   text, entry (a name or a name expression: "scale<float, 256>"), file (its name in
//                 messages), options (NVRTC's: "-DN=4", "-I/folder")
//   cuda_image    image (cubin, PTX or fatbin in base64), entry, arch ("sm_90a", for messages)
//   host_source   text (C++), entry, file, options (the compiler's)
//   function      library and symbol, or address: a C function. On CUDA a launcher, whose first
//                 parameter is the stream unless `parameters` says where. returns_error: its int
//                 result, where not 0, is an error
//   tvm_ffi       library and symbol (without "__tvm_ffi_"), or address (a TVMFFIObject of a
//                 function, which lives as long as the process); libtvm_ffi (a path, loaded first
//                 unless the process has one), owned (pass tensors of which the callee may take
//                 references while it runs, as Python's functions do, not views)
//   dlpack        address and gate: int f(DlpackCall*, ...), whose parameters are DLPack tensors to
//                 own (dlpack::UnversionedTensor*; null for an absent one) and numbers. Its result
//                 is 0 or a StatusCode (dlpack_call.h)
//   legacy        library and symbol, or address: an XLA custom call of api_version 1, 2 or 3;
//                 opaque (text). It takes arguments and results, whatever `parameters` says
//   ffi           library and symbol, or address: an XLA FFI handler (its execute stage);
//                 instantiate, prepare, initialize (addresses of its other stages); type_id and
//                 type_info (addresses of what XLA's FFI calls so, of the type of the state that
//                 instantiate makes; handlers of FFI 0.2 and newer need both). It takes
//                 arguments, results and work space as buffers and scalars as attributes, by their
//                 names, whatever `parameters` says
//
// and, of a function that has an address, gate (the address of a Gate, gate.h, that calls go
// through) and, of those that are launched, cluster ([2,1,1]), cooperative, programmatic (dependent
// launch) and aligned (["x"]: arguments and results whose addresses the machine code takes for
// multiples of 16; a call with another is an error, as where a CUDA source declares a pointer to
// vectors, float4*, and the address is none of one).
//
// `parameters` are what the function takes, in order: the name of an argument (its address; null
// where an optional one is absent), of a result or of a scalar; null; {"value": 3, "type": "i32"};
// {"elements_of": "x", "type": "i64"}; {"dim_of": "x", "dim": 0, "type": "i64"}; "workspace" (the
// address of the call's work space); "stream". Left out, they are those of the source's text, or
// arguments, results and scalars in this order. For tvm_ffi, results that are not named (and no
// aliases) are what the function returns: a tensor, or an array of as many (tvm_ffi/call_memory.h).
//
// Calls carry, besides the scalars, what a front end works out for their shapes (Op, derived):
// `grid` and `block` (three ints each; of launches), `shared_memory` (bytes of dynamic shared
// memory), `workspace_bytes` and `result_types`: for each result that needs it a dtype's number,
// the rank and the dimensions.
#ifndef XLA_GPU_OPS_USER_KERNEL_DEFINITION_H_
#define XLA_GPU_OPS_USER_KERNEL_DEFINITION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/op.h"

namespace xla_gpu::user_kernel {

// Of addresses that are said to be aligned: what the widest load or store of a thread needs.
inline constexpr uint64_t kAlignment = 16;

// A parameter of the function that is called or launched.
struct Parameter {
  enum class Kind {
    kArgument,   // address of argument `index` of the schema
    kResult,     // address of result `index` of the schema
    kScalar,     // value of scalar `index`, as `type`
    kConstant,   // `bits`, as `type`
    kElements,   // number of elements of argument `index`, as `type`
    kDimension,  // dimension `dim` of argument `index`, as `type`
    kNull,
    kWorkspace,
    kStream,
  };
  Kind kind = Kind::kNull;
  size_t index = 0;
  size_t dim = 0;
  DType type = DType::kU64;  // of a number; addresses are u64
  uint64_t bits = 0;         // a constant's, in the lowest bytes
  uint64_t alignment = 1;    // of an address: it must be a multiple of this power of 2
  bool declared = false;  // the source text tells that it is an address, or a number of this type
  // Of an address, the elements that the source text declares there; kInvalid: any.
  DType points_to = DType::kInvalid;
  // Of an address, the position of an earlier one to elements of the same type of a template's.
  std::optional<size_t> points_as = {};
};

struct Scalar {
  std::string name;
  DType type = DType::kInvalid;
  std::optional<AttrValue> default_value = {};
  bool derived = false;  // worked out by the front end, from the arguments
  std::string doc = {};
};

struct Implementation {
  enum class Kind {
    kCudaSource,
    kCudaImage,
    kHostSource,
    kFunction,
    kTvmFfi,
    kDlpack,
    kLegacy,
    kFfi
  };
  Kind kind = Kind::kFunction;
  std::string text, file;            // sources
  std::vector<std::string> options;  // of their compiler
  std::string image, arch;           // machine code, decoded
  std::string entry;                 // of sources and images
  std::string library, symbol;       // of functions,
  uint64_t address = 0;              // or this instead
  uint64_t gate = 0;                 // address, or 0
  std::string libtvm_ffi;
  bool owned = false;
  bool returns_error = false;
  int api_version = 0;
  std::string opaque;
  std::array<uint64_t, 3> stages = {};  // addresses of instantiate, prepare, initialize; or 0
  uint64_t type_id = 0, type_info = 0;  // addresses, of the type of their state; or 0
  std::vector<Parameter> parameters;
  std::array<uint32_t, 3> cluster = {1, 1, 1};
  bool cooperative = false;
  bool programmatic = false;

  bool is_source() const { return kind == Kind::kCudaSource || kind == Kind::kHostSource; }
  // Whether the driver launches it with the call's grid and block.
  bool is_launched() const { return kind == Kind::kCudaSource || kind == Kind::kCudaImage; }
};

struct Definition {
  std::string name, doc;
  std::string key;  // name@digest of the text, and +digest of what its sources include
  std::vector<ArgSpec> arguments;
  std::vector<ResultSpec> results;  // outputs and aliases; work space is not listed
  std::vector<Scalar> scalars;
  bool capture = true;
  bool workspace = false;  // calls may bring scratch memory
  std::optional<Implementation> implementations[kNumPlatforms];
};

// Safe on any text; the error begins with "kernel: " or the kernel's name and says which member is
// wrong.
StatusOr<std::shared_ptr<const Definition>> ParseDefinition(std::string_view text);

// The op whose plans run the definition's implementations.
Op MakeOp(std::shared_ptr<const Definition> definition);

// What a plan factory of one kind of implementation is: MakePlan of op.h for one call.
using ImplementationPlan = StatusOr<std::unique_ptr<Plan>>(
    std::shared_ptr<const Definition> definition, Platform platform, const Call& call, int device);
ImplementationPlan MakeLaunchPlan;    // cuda_source, cuda_image
ImplementationPlan MakeFunctionPlan;  // function, host_source
ImplementationPlan MakeTvmFfiPlan;
ImplementationPlan MakeDlpackPlan;
ImplementationPlan MakeLegacyPlan;
ImplementationPlan MakeFfiPlan;

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_DEFINITION_H_
