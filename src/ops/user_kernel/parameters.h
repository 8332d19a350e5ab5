// The values of a function's parameters in one call.
#ifndef XLA_GPU_OPS_USER_KERNEL_PARAMETERS_H_
#define XLA_GPU_OPS_USER_KERNEL_PARAMETERS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/core/dtype.h"
#include "src/core/op.h"
#include "src/ops/user_kernel/definition.h"

namespace xla_gpu::user_kernel {

// The most parameters that a function may have.
inline constexpr size_t kMaxParameters = 128;

// A number in the lowest bytes of 64 bits, as a parameter of this type is passed: rounded to
// nearest where it is a float. `value`: a bool, an int (or a float that is one) or a float.
uint64_t NumberBits(DType type, const AttrValue& value);

// Whether an int is one of this integer type (u64 holds all that an attribute can say); of pred 0
// and 1 are.
bool Fits(DType type, int64_t value);

// Whether a number stays finite when it is rounded to this float type; inf and NaN stay too.
bool Fits(DType type, double value);

// What fits: "-128 to 127".
std::string RangeOf(DType type);

// An error that names the scalar if its value does not fit its type.
Status CheckScalars(const Definition& definition, const Attributes& attributes);

// An error that names an argument or result whose type is not what a parameter takes: other
// elements than the source text points to, a dimension that it lacks or that does not fit.
// `args`: by the schema's position, null where one is absent.
Status CheckParameters(const Definition& definition, const Implementation& implementation,
                       std::span<const TensorView* const> args,
                       std::span<const TensorSpec> results);

// Which tensors of calls with one set of optional arguments the parameters are. Made once for a
// plan; then Fill does without look-ups by name.
class ParameterPlan {
 public:
  struct Step {
    enum class Kind { kNull, kArgument, kResult, kValue, kStream } kind;
    size_t index;  // in the call's arguments or results
    DType type;
    uint64_t value;     // kValue: numbers do not change from call to call of a plan; else 0
    uint64_t mask = 0;  // bits that an aligned address has not
  };

  // `call`: complete (CompleteAttributes).
  ParameterPlan(const Definition& definition, const Implementation& implementation,
                const Call& call);

  size_t size() const { return steps_.size(); }
  std::span<const Step> steps() const { return steps_; }
  DType type(size_t i) const { return steps_[i].type; }
  // Writes a value for each parameter: addresses, and numbers as NumberBits gives them.
  // `values` has room for size() values.
  void Fill(const Call& call, void* stream, std::span<uint64_t> values) const;
  // Of values that Fill wrote, the first address that is no multiple of its parameter's alignment.
  std::optional<size_t> FindMisaligned(std::span<const uint64_t> values) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_PARAMETERS_H_
