#include "src/xla/mlir_text.h"

#include <cctype>
#include <charconv>

#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kNone = std::string_view::npos;

struct ElementType {
  std::string_view mlir;
  DType dtype;
};
constexpr ElementType kElementTypes[] = {
    {"i1", DType::kPred},   {"i8", DType::kI8},         {"i16", DType::kI16},
    {"i32", DType::kI32},   {"i64", DType::kI64},       {"ui8", DType::kU8},
    {"ui16", DType::kU16},  {"ui32", DType::kU32},      {"ui64", DType::kU64},
    {"f16", DType::kF16},   {"f32", DType::kF32},       {"f64", DType::kF64},
    {"bf16", DType::kBF16}, {"f8E5M2", DType::kF8E5M2}, {"f8E4M3FN", DType::kF8E4M3FN}};

size_t SkipSpace(std::string_view text, size_t at) {
  while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

// The position after the bracket that closes the one at `open`; kNone if none does. Brackets in
// string literals and comments do not count, nor does the > of an arrow.
size_t AfterClosing(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') ++i;
      }
    } else if (c == '/' && text.substr(i).starts_with("//")) {
      i = std::min(text.find('\n', i), text.size() - 1);
    } else if (c == '(' || c == '{' || c == '[' || c == '<') {
      ++depth;
    } else if (c == '-' && text.substr(i).starts_with("->")) {
      ++i;
    } else if (c == ')' || c == '}' || c == ']' || c == '>') {
      if (--depth == 0) return i + 1;
    }
  }
  return kNone;
}

// The symbol at `at`: @name or @"name"; empty if there is none. Moves `at` behind it.
std::string TakeSymbol(std::string_view text, size_t* at) {
  if (*at >= text.size() || text[*at] != '@') return "";
  size_t begin = *at + 1;
  if (begin < text.size() && text[begin] == '"') {
    const size_t end = text.find('"', begin + 1);
    if (end == kNone) return "";
    *at = end + 1;
    return std::string(text.substr(begin + 1, end - begin - 1));
  }
  size_t end = begin;
  while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) ||
                               std::string_view("_$.-").find(text[end]) != kNone)) {
    ++end;
  }
  *at = end;
  return std::string(text.substr(begin, end - begin));
}

// The integer after "api_version = " in an attribute dictionary, else StableHLO's default.
int ApiVersion(std::string_view attributes) {
  const std::string_view key = "api_version";
  const size_t at = attributes.find(key);
  if (at == kNone) return 1;
  size_t digits = SkipSpace(attributes, at + key.size());
  if (digits >= attributes.size() || attributes[digits] != '=') return 1;
  digits = SkipSpace(attributes, digits + 1);
  int value = 1;
  std::from_chars(attributes.data() + digits, attributes.data() + attributes.size(), value);
  return value;
}

// "stablehlo.custom_call"(%a) <{api_version = 4 : i32, call_target_name = "X"}> : ...
MlirCustomCall GenericCall(std::string_view rest) {
  MlirCustomCall call;
  const size_t open = rest.find('(');
  const size_t operands = open == kNone ? kNone : AfterClosing(rest, open);
  if (operands == kNone) return call;
  const size_t begin = SkipSpace(rest, operands);
  if (begin >= rest.size() || (rest[begin] != '<' && rest[begin] != '{')) return call;
  const size_t end = AfterClosing(rest, begin);
  const std::string_view attributes = rest.substr(begin, end == kNone ? kNone : end - begin);
  call.api_version = ApiVersion(attributes);
  const std::string_view key = "call_target_name = \"";
  const size_t at = attributes.find(key);
  if (at == kNone) return call;
  const size_t name = at + key.size();
  call.target = attributes.substr(name, attributes.find('"', name) - name);
  return call;
}

// stablehlo.custom_call @X(%a) {api_version = 4 : i32} : ...
MlirCustomCall PrettyCall(std::string_view rest) {
  MlirCustomCall call;
  size_t at = SkipSpace(rest, 0);
  call.target = TakeSymbol(rest, &at);
  at = SkipSpace(rest, at);
  if (call.target.empty() || at >= rest.size() || rest[at] != '(') return call;
  const size_t operands = AfterClosing(rest, at);
  if (operands == kNone) return call;
  const size_t begin = SkipSpace(rest, operands);
  if (begin >= rest.size() || rest[begin] != '{') return call;
  const size_t end = AfterClosing(rest, begin);
  call.api_version = ApiVersion(rest.substr(begin, end == kNone ? kNone : end - begin));
  return call;
}

}  // namespace

bool IsMlirBytecode(std::string_view mlir) { return mlir.starts_with("ML\xefR"); }

std::vector<MlirCustomCall> FindMlirCustomCalls(std::string_view mlir) {
  static constexpr std::string_view kOp = "custom_call";
  std::vector<MlirCustomCall> calls;
  if (IsMlirBytecode(mlir)) return calls;
  for (size_t at = mlir.find(kOp); at != kNone; at = mlir.find(kOp, at + 1)) {
    const std::string_view rest = mlir.substr(at + kOp.size());
    MlirCustomCall call = rest.starts_with("\"") ? GenericCall(rest) : PrettyCall(rest);
    if (!call.target.empty()) calls.push_back(std::move(call));
  }
  return calls;
}

StatusOr<TensorSpec> ParseMlirTensorType(std::string_view text) {
  TensorSpec spec;
  std::string_view rest = text.substr(0, text.find(','));  // an encoding may follow
  while (!rest.empty() && std::isdigit(static_cast<unsigned char>(rest[0]))) {
    int64_t dim = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), dim);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (error != std::errc() || !rest.starts_with("x")) break;
    rest.remove_prefix(1);
    spec.shape.push_back(dim);
  }
  while (!rest.empty() && rest.back() == ' ') rest.remove_suffix(1);
  for (const ElementType& type : kElementTypes) {
    if (rest == type.mlir) spec.dtype = type.dtype;
  }
  if (spec.dtype == DType::kInvalid) {
    return Unimplemented(StrCat("tensor<", text,
                                "> is no type with static sizes and an element "
                                "type that this library knows"));
  }
  return spec;
}

StatusOr<std::vector<TensorSpec>> MainArguments(std::string_view mlir) {
  static constexpr std::string_view kMain = "@main(";
  static constexpr std::string_view kTensor = "tensor<";
  size_t at = mlir.find(kMain);
  // Calls of @main, if any, have no func before them.
  while (at != kNone && mlir.substr(0, at).rfind("func") + 40 < at) at = mlir.find(kMain, at + 1);
  const size_t open = at == kNone ? kNone : at + kMain.size() - 1;
  const size_t end = open == kNone ? kNone : AfterClosing(mlir, open);
  if (end == kNone) return InvalidArgument("the module has no func.func @main");
  const std::string_view signature = mlir.substr(open, end - open);
  std::vector<TensorSpec> arguments;
  for (size_t i = 0; i < signature.size();) {
    if (signature[i] == '{' && i > 0) {  // an argument's attributes may hold types too
      i = AfterClosing(signature, i);
      if (i == kNone) break;
      continue;
    }
    if (!signature.substr(i).starts_with(kTensor)) {
      ++i;
      continue;
    }
    const size_t begin = i + kTensor.size();
    const size_t close = AfterClosing(signature, begin - 1);
    if (close == kNone) break;
    XLA_GPU_ASSIGN_OR_RETURN(TensorSpec spec,
                             ParseMlirTensorType(signature.substr(begin, close - 1 - begin)));
    arguments.push_back(std::move(spec));
    i = close;
  }
  return arguments;
}

std::string MlirTensorType(const TensorSpec& spec) {
  std::string text = "tensor<";
  for (const int64_t dim : spec.shape) text += StrCat(dim, "x");
  for (const ElementType& type : kElementTypes) {
    if (spec.dtype == type.dtype) text += type.mlir;
  }
  return text + ">";
}

}  // namespace xla_gpu::xla
