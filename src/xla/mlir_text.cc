#include "src/xla/mlir_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kNone = std::string_view::npos;

size_t SkipSpace(std::string_view text, size_t at) {
  while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

// Which bracket of a text closes which, found in one pass: the text may hold as many brackets as it
// likes, closed or not. Brackets in string literals and comments do not count, nor do the < and >
// of arrows and comparisons.
class Brackets {
 public:
  explicit Brackets(std::string_view text) {
    std::vector<size_t> open;  // indices into pairs_
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '"') {
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
      } else if (c == '/' && text.substr(i).starts_with("//")) {
        i = std::min(text.find('\n', i), text.size() - 1);
      } else if (c == '(' || c == '{' || c == '[' || c == '<') {
        open.push_back(pairs_.size());
        pairs_.emplace_back(i, kNone);
      } else if (c == '-' && text.substr(i).starts_with("->")) {
        ++i;
      } else if (c == ')' || c == '}' || c == ']' || c == '>') {
        const char opener = c == ')' ? '(' : c == '}' ? '{' : c == ']' ? '[' : '<';
        const auto top = [&] { return open.empty() ? '\0' : text[pairs_[open.back()].first]; };
        while (opener != '<' && top() == '<') open.pop_back();
        if (top() != opener) continue;
        pairs_[open.back()].second = i + 1;
        open.pop_back();
      }
    }
  }

  // The position after the bracket that closes the one at `open`; kNone if none does.
  size_t AfterClosing(size_t open) const {
    const auto found = std::ranges::lower_bound(pairs_, open, {}, &Pair::first);
    return found == pairs_.end() || found->first != open ? kNone : found->second;
  }

 private:
  using Pair = std::pair<size_t, size_t>;
  std::vector<Pair> pairs_;  // by their first
};

// The symbol at `at`: @name or @"name"; empty if there is none. Moves `at` behind it.
std::string TakeSymbol(std::string_view text, size_t* at) {
  if (*at >= text.size() || text[*at] != '@') return "";
  size_t begin = *at + 1;
  if (begin < text.size() && text[begin] == '"') {
    std::string name;
    for (size_t i = begin + 1; i < text.size(); ++i) {
      if (text[i] == '"') {
        *at = i + 1;
        return name;
      }
      if (text[i] == '\\' && i + 2 < text.size()) {  // \22, or \" and the like
        unsigned byte = static_cast<unsigned char>(text[++i]);
        const char* digits = text.data() + i;
        unsigned value = 0;
        if (std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
          byte = value;
          ++i;
        }
        name += static_cast<char>(byte);
      } else {
        name += text[i];
      }
    }
    return "";
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

// call_target_name = "X" in an attribute dictionary; empty if there is none.
std::string TargetName(std::string_view attributes) {
  const std::string_view key = "call_target_name = \"";
  const size_t at = attributes.find(key);
  if (at == kNone) return "";
  attributes.remove_prefix(at + key.size());
  return std::string(attributes.substr(0, attributes.find('"')));
}

// What follows "custom_call" at `at`, in one of the forms
//   @X(%a) {api_version = 4 : i32} : ...
//   "(%a) <{api_version = 4 : i32, call_target_name = "X"}> : ...
// Moves `at` behind what it has read, so that no text is read twice.
MlirCustomCall TakeCall(std::string_view text, const Brackets& brackets, size_t* at) {
  MlirCustomCall call;
  const bool generic = *at < text.size() && text[*at] == '"';
  *at = SkipSpace(text, *at + (generic ? 1 : 0));
  if (!generic) {
    call.target = TakeSymbol(text, at);
    *at = SkipSpace(text, *at);
  }
  const size_t operands =
      *at < text.size() && text[*at] == '(' ? brackets.AfterClosing(*at) : kNone;
  if (operands == kNone) return {};  // a comment, or no module that XLA takes
  const size_t begin = *at = SkipSpace(text, operands);
  if (begin >= text.size() || (text[begin] != '{' && (!generic || text[begin] != '<'))) return call;
  const size_t end = brackets.AfterClosing(begin);
  if (end == kNone) return call;
  *at = end;
  const std::string_view attributes = text.substr(begin, end - begin);
  call.api_version = ApiVersion(attributes);
  if (generic) call.target = TargetName(attributes);
  return call;
}

}  // namespace

bool IsMlirBytecode(std::string_view mlir) { return mlir.starts_with("ML\xefR"); }

std::vector<MlirCustomCall> FindMlirCustomCalls(std::string_view mlir) {
  static constexpr std::string_view kOp = "custom_call";
  std::vector<MlirCustomCall> calls;
  if (IsMlirBytecode(mlir)) return calls;
  const Brackets brackets(mlir);
  for (size_t at = mlir.find(kOp); at != kNone; at = mlir.find(kOp, at)) {
    at += kOp.size();
    MlirCustomCall call = TakeCall(mlir, brackets, &at);
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
  const auto dtype = FindDType([rest](const DTypeInfo& info) { return rest == info.mlir; });
  if (!dtype) {
    return Unimplemented("tensor<", text,
                         "> is no type with static sizes and an element "
                         "type that this library knows");
  }
  spec.dtype = *dtype;
  return spec;
}

StatusOr<std::vector<TensorSpec>> MainArguments(std::string_view mlir) {
  static constexpr std::string_view kMain = "@main";
  static constexpr std::string_view kTensor = "tensor<";
  // Calls of @main, if any, have no func shortly before them, or func.call.
  const auto declares = [mlir](size_t at) {
    constexpr size_t kBefore = 40;
    const size_t begin = at < kBefore ? 0 : at - kBefore;
    const std::string_view before = mlir.substr(begin, at - begin);
    const size_t func = before.rfind("func");
    return func != kNone && !before.substr(func).starts_with("func.call");
  };
  const Brackets brackets(mlir);
  size_t open = kNone, end = kNone;
  for (size_t at = mlir.find(kMain); at != kNone && end == kNone; at = mlir.find(kMain, at + 1)) {
    open = SkipSpace(mlir, at + kMain.size());
    const bool takes = open < mlir.size() && mlir[open] == '(' && declares(at);
    end = takes ? brackets.AfterClosing(open) : kNone;  // none in a comment
  }
  if (end == kNone) return InvalidArgument("the module has no func.func @main");
  std::vector<TensorSpec> arguments;
  for (size_t i = open + 1; i < end;) {
    const bool tensor = mlir.substr(i, end - i).starts_with(kTensor);
    const size_t begin = i + (tensor ? kTensor.size() : 1);
    // An argument's attributes may hold types too.
    const size_t close = tensor || mlir[i] == '{' ? brackets.AfterClosing(begin - 1) : kNone;
    if (tensor && close != kNone) {
      XLA_GPU_ASSIGN_OR_RETURN(TensorSpec spec,
                               ParseMlirTensorType(mlir.substr(begin, close - 1 - begin)));
      arguments.push_back(std::move(spec));
    }
    i = close == kNone ? begin : close;
  }
  return arguments;
}

std::string MlirTensorType(const TensorSpec& spec) {
  std::string text = "tensor<";
  for (const int64_t dim : spec.shape) text += StrCat(dim, "x");
  return StrCat(text, InfoOf(spec.dtype).mlir, ">");
}

}  // namespace xla_gpu::xla
