#include "src/ops/user_kernel/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/core/float_types.h"
#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

double AsDouble(const AttrValue& value) {
  if (const auto* held = std::get_if<double>(&value)) return *held;
  if (const auto* held = std::get_if<int64_t>(&value)) return static_cast<double>(*held);
  return std::get<bool>(value) ? 1 : 0;
}

int64_t AsInt(const AttrValue& value) {
  if (const auto* held = std::get_if<int64_t>(&value)) return *held;
  if (const auto* held = std::get_if<double>(&value)) return static_cast<int64_t>(*held);
  return std::get<bool>(value) ? 1 : 0;
}

// Whether a pointer to elements of `declared` is one to elements of `dtype`, too: of f16, bf16, fp8
// and pred the text may have the bits.
bool PointsTo(DType declared, DType dtype) {
  if (declared == DType::kInvalid || declared == dtype) return true;
  const bool is_bits = dtype == DType::kPred || (IsFloat(dtype) && DTypeSize(dtype) <= 2);
  return is_bits && InfoOf(declared).dlpack == kDlpackUInt &&
         DTypeSize(declared) == DTypeSize(dtype);
}

}  // namespace

bool Fits(DType type, int64_t value) {
  if (type == DType::kPred) return value == 0 || value == 1;
  const int bits = 8 * static_cast<int>(DTypeSize(type));
  if (InfoOf(type).dlpack == kDlpackUInt) {
    return value >= 0 && (bits == 64 || value < int64_t{1} << bits);
  }
  return bits == 64 || (value >= -(int64_t{1} << (bits - 1)) && value < int64_t{1} << (bits - 1));
}

bool Fits(DType type, double value) {
  uint64_t bits = 0;
  StoreFromDouble(&bits, type, 0, value);
  return !std::isfinite(value) || std::isfinite(LoadAsDouble(&bits, type, 0));
}

uint64_t NumberBits(DType type, const AttrValue& value) {
  uint64_t bits = 0;
  if (IsFloat(type)) {
    StoreFromDouble(&bits, type, 0, AsDouble(value));
  } else {
    const int64_t number = type == DType::kPred ? AsInt(value) != 0 : AsInt(value);
    std::memcpy(&bits, &number, static_cast<size_t>(DTypeSize(type)));
  }
  return bits;
}

std::string RangeOf(DType type) {
  if (!IsFloat(type)) {
    int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
    while (!Fits(type, low)) low /= 2;
    while (!Fits(type, high)) high /= 2;
    return StrCat(low, " to ", high);
  }
  const uint64_t largest = NumberBits(type, std::numeric_limits<double>::infinity()) - 1;
  const double high = LoadAsDouble(&largest, type, 0);
  return StrCat(-high, " to ", high, ", inf and nan");
}

Status CheckScalars(const Definition& definition, const Attributes& attributes) {
  for (const Scalar& scalar : definition.scalars) {
    const AttrValue* value = attributes.Find(scalar.name);
    if (value == nullptr || scalar.type == DType::kPred) continue;
    const auto* number = std::get_if<int64_t>(value);
    const bool is_float = IsFloat(scalar.type);
    if (is_float ? Fits(scalar.type, AsDouble(*value))
                 : number == nullptr || Fits(scalar.type, *number)) {
      continue;
    }
    const std::string came = number == nullptr ? StrCat(AsDouble(*value)) : StrCat(*number);
    return InvalidArgument(definition.name, ": ", scalar.name, " is ", came, ", which its type ",
                           DTypeName(scalar.type), " does not hold; allowed are ",
                           RangeOf(scalar.type));
  }
  return OkStatus();
}

Status CheckParameters(const Definition& definition, const Implementation& implementation,
                       std::span<const TensorView* const> args,
                       std::span<const TensorSpec> results) {
  // Of an address; kInvalid if there is no array for it.
  const auto dtype_of = [&](const Parameter& parameter) {
    if (parameter.kind == Parameter::Kind::kResult) return results[parameter.index].dtype;
    const bool is_given =
        parameter.kind == Parameter::Kind::kArgument && args[parameter.index] != nullptr;
    return is_given ? args[parameter.index]->dtype : DType::kInvalid;
  };
  const auto told = [&](const Parameter& parameter) {
    const bool is_result = parameter.kind == Parameter::Kind::kResult;
    return is_result ? StrCat(definition.results[parameter.index].name, " is ",
                              results[parameter.index].ToString())
                     : StrCat(definition.arguments[parameter.index].name, " is ",
                              args[parameter.index]->ToString());
  };
  for (const Parameter& parameter : implementation.parameters) {
    if (const DType dtype = dtype_of(parameter); dtype != DType::kInvalid) {
      if (!PointsTo(parameter.points_to, dtype)) {
        return InvalidArgument(definition.name, ": ", told(parameter),
                               ", but the source text has a pointer to ",
                               DTypeName(parameter.points_to));
      }
      if (!parameter.points_as) continue;
      const Parameter& other = implementation.parameters[*parameter.points_as];
      const DType as = dtype_of(other);
      if (PointsTo(as, dtype) || PointsTo(dtype, as)) continue;
      return InvalidArgument(definition.name, ": ", told(other), " but ", told(parameter),
                             "; the source text has pointers to one type of its template there");
    }
    const bool is_dim = parameter.kind == Parameter::Kind::kDimension;
    if (!is_dim && parameter.kind != Parameter::Kind::kElements) continue;
    const TensorView* arg = args[parameter.index];
    if (arg == nullptr) continue;
    const std::string& name = definition.arguments[parameter.index].name;
    const auto dim = static_cast<int64_t>(parameter.dim);
    if (is_dim && dim >= arg->rank()) {
      return InvalidArgument(definition.name, ": ", name, " is ", arg->ToString(),
                             ", but the kernel takes its dimension ", dim);
    }
    const int64_t value = is_dim ? arg->dim(dim) : arg->num_elements();
    if (IsFloat(parameter.type) || Fits(parameter.type, value)) continue;
    return InvalidArgument(definition.name, ": ", name, " is ", arg->ToString(), "; ",
                           is_dim ? StrCat("its dimension ", dim) : "its number of elements",
                           " does not fit the kernel's parameter, of type ",
                           DTypeName(parameter.type));
  }
  return OkStatus();
}

ParameterPlan::ParameterPlan(const Definition& definition, const Implementation& implementation,
                             const Call& call) {
  // Positions in the call of the schema's arguments, -1 where one is absent.
  std::vector<int> positions;
  int next = 0;
  std::string_view present = call.attributes->GetString(kOptionalArgsAttribute);
  for (const ArgSpec& arg : definition.arguments) {
    bool here = true;
    if (arg.optional) {
      here = present.substr(0, present.find(',')) == arg.name;
      if (here) present.remove_prefix(std::min(present.size(), arg.name.size() + 1));
    }
    positions.push_back(here ? next++ : -1);
  }
  for (const Parameter& parameter : implementation.parameters) {
    Step step{Step::Kind::kValue, 0, parameter.type, parameter.bits};
    const Step null{Step::Kind::kNull, 0, parameter.type, 0};
    const int position = parameter.index < positions.size() ? positions[parameter.index] : -1;
    const TensorView* arg = position < 0 ? nullptr : &call.args[static_cast<size_t>(position)];
    switch (parameter.kind) {
      case Parameter::Kind::kArgument:
        step = null;
        if (arg != nullptr) {
          step.kind = Step::Kind::kArgument;
          step.index = static_cast<size_t>(position);
        }
        break;
      case Parameter::Kind::kResult:
        step = {Step::Kind::kResult, parameter.index, parameter.type, 0};
        break;
      case Parameter::Kind::kWorkspace:  // the last result, if the call has one
        step = null;
        if (call.results.size() > definition.results.size()) {
          step = {Step::Kind::kResult, definition.results.size(), parameter.type, 0};
        }
        break;
      case Parameter::Kind::kStream:
        step.kind = Step::Kind::kStream;
        break;
      case Parameter::Kind::kScalar: {
        const AttrValue* value = call.attributes->Find(definition.scalars[parameter.index].name);
        if (value != nullptr) step.value = NumberBits(parameter.type, *value);
        break;
      }
      case Parameter::Kind::kElements:
        if (arg != nullptr) step.value = NumberBits(parameter.type, AttrValue(arg->num_elements()));
        break;
      case Parameter::Kind::kDimension:
        if (arg != nullptr && static_cast<int64_t>(parameter.dim) < arg->rank()) {
          step.value =
              NumberBits(parameter.type, AttrValue(arg->dim(static_cast<int64_t>(parameter.dim))));
        }
        break;
      case Parameter::Kind::kNull:
        step = null;
        break;
      case Parameter::Kind::kConstant:
        break;
    }
    step.mask = parameter.alignment - 1;
    steps_.push_back(step);
  }
}

void ParameterPlan::Fill(const Call& call, void* stream, std::span<uint64_t> values) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    switch (step.kind) {
      case Step::Kind::kArgument:
        values[i] = reinterpret_cast<uint64_t>(call.args[step.index].data);
        break;
      case Step::Kind::kResult:
        values[i] = reinterpret_cast<uint64_t>(call.results[step.index].data);
        break;
      case Step::Kind::kStream:
        values[i] = reinterpret_cast<uint64_t>(stream);
        break;
      case Step::Kind::kNull:
      case Step::Kind::kValue:
        values[i] = step.value;
        break;
    }
  }
}

std::optional<size_t> ParameterPlan::FindMisaligned(std::span<const uint64_t> values) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if ((values[i] & steps_[i].mask) != 0) return i;
  }
  return std::nullopt;
}

}  // namespace xla_gpu::user_kernel
