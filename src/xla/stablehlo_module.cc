#include "src/xla/stablehlo_module.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iomanip>

#include "src/core/strings.h"
#include "src/xla/mlir_text.h"

namespace xla_gpu::xla {
namespace {

// What a double needs to come back to the same bits; not by printf, which asks the locale.
std::string MlirFloat(double value) {
  if (std::isfinite(value)) return StrCat(std::scientific, std::setprecision(17), value, " : f64");
  uint64_t bits = 0;  // MLIR writes these as bits
  std::memcpy(&bits, &value, sizeof(bits));
  return StrCat("0x", std::hex, std::uppercase, std::setw(16), std::setfill('0'), bits, " : f64");
}

std::string MlirString(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '"' || c == '\\') {
      char escaped[4];
      std::snprintf(escaped, sizeof(escaped), "\\%02X", byte);
      text += escaped;
    } else {
      text += c;
    }
  }
  return text + '"';
}

// @name, quoted where it is no plain name.
std::string MlirSymbol(std::string_view name) {
  const bool plain =
      std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  return plain && std::isdigit(static_cast<unsigned char>(name[0])) == 0
             ? StrCat('@', name)
             : StrCat("@", MlirString(name));
}

// [#stablehlo.output_operand_alias<...>] for the results that are updated in place.
std::string Aliases(const std::vector<Result>& results) {
  std::vector<std::string> aliases;
  for (size_t r = 0; r < results.size(); ++r) {
    if (results[r].alias_of < 0) continue;
    const std::string index = results.size() == 1 ? "" : StrCat(r);
    aliases.push_back(StrCat("#stablehlo.output_operand_alias<output_tuple_indices = [", index,
                             "], operand_index = ", results[r].alias_of,
                             ", operand_tuple_indices = []>"));
  }
  return aliases.empty() ? "" : StrCat(", output_operand_aliases = [", StrJoin(aliases, ", "), "]");
}

}  // namespace

std::string MlirAttribute(const AttrValue& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&value)) return StrCat(*i, " : i64");
  if (const auto* f = std::get_if<double>(&value)) return MlirFloat(*f);
  if (const auto* s = std::get_if<std::string_view>(&value)) return MlirString(*s);
  const auto ints = std::get<std::span<const int64_t>>(value);
  return StrCat("array<i64", ints.empty() ? "" : ": ", StrJoin(ints, ", "), ">");
}

StatusOr<std::string> StableHloModule(const Op& op, Platform platform, const Call& call,
                                      int chain) {
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<Result> results, InferResults(op, platform, call));
  std::vector<TensorSpec> types, outputs;
  for (const Result& result : results) {
    types.push_back(result.type);
    if (result.spec->kind != ResultKind::kScratch) outputs.push_back(result.type);
  }
  if (chain > 1 && !types[0].Matches(call.args[0])) {
    return InvalidArgument(op.name, ": calls cannot be chained: result 0 is ", types[0].ToString(),
                           " but argument 0 is ", call.args[0].ToString());
  }
  const auto arg_type = [](const TensorView& view) { return MlirTensorType(view.spec()); };
  std::string parameters;
  for (size_t i = 0; i < call.args.size(); ++i) {
    parameters += StrCat(i == 0 ? "" : ", ", "%arg", i, ": ", arg_type(call.args[i]));
  }
  Attributes attributes = CompleteAttributes(op, *call.attributes);
  if (!op.key.empty() && attributes.Find(kKernelAttribute) == nullptr) {
    XLA_GPU_RETURN_IF_ERROR(attributes.Add(kKernelAttribute, AttrValue(std::string_view(op.key))));
  }
  const std::string config = StrJoin(attributes.all(), ", ", [](const Attribute& attribute) {
    return StrCat(attribute.name, " = ", MlirAttribute(attribute.value));
  });
  const std::string aliases = Aliases(results);

  std::string text = StrCat("module {\n  func.func public @main(", parameters, ") -> (",
                            StrJoin(outputs, ", ", MlirTensorType), ") {\n");
  const auto value = [&results](int step, size_t i) {
    return results.size() == 1 ? StrCat("%r", step) : StrCat("%r", step, "#", i);
  };
  for (int step = 0; step < chain; ++step) {
    text += StrCat("    %r", step, results.size() == 1 ? "" : StrCat(":", results.size()),
                   " = stablehlo.custom_call ", MlirSymbol(op.target), "(");
    for (size_t i = 0; i < call.args.size(); ++i) {
      text += i == 0 && step > 0 ? value(step - 1, 0) : StrCat(i == 0 ? "" : ", ", "%arg", i);
    }
    text += StrCat(") {api_version = 4 : i32, backend_config = {", config, "}", aliases, "} : (",
                   StrJoin(call.args, ", ", arg_type), ") -> ", results.size() == 1 ? "" : "(",
                   StrJoin(types, ", ", MlirTensorType), results.size() == 1 ? "" : ")", "\n");
  }
  text += "    return ";
  for (size_t i = 0; i < outputs.size(); ++i) text += (i == 0 ? "" : ", ") + value(chain - 1, i);
  return text + " : " + StrJoin(outputs, ", ", MlirTensorType) + "\n  }\n}\n";
}

}  // namespace xla_gpu::xla
