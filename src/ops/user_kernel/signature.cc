#include "src/ops/user_kernel/signature.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

constexpr std::string_view kLiteral = "\"\"";

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The end of the literal that the quote at `at` opens.
size_t LiteralEnd(std::string_view text, size_t at) {
  const char quote = text[at];
  if (quote == '"' && at > 0 && text[at - 1] == 'R') {  // R"tag( ... )tag"
    const size_t open = text.find('(', at);
    if (open == text.npos) return text.size();
    const std::string close = StrCat(")", text.substr(at + 1, open - at - 1), "\"");
    const size_t end = text.find(close, open);
    return end == text.npos ? text.size() : end + close.size();
  }
  size_t end = at + 1;
  while (end < text.size() && text[end] != quote && text[end] != '\n') {
    end += text[end] == '\\' ? 2 : 1;
  }
  return std::min(end + 1, text.size());
}

// The end of the line at `at`, with the lines that a backslash joins to it.
size_t LineEnd(std::string_view text, size_t at) {
  for (;;) {
    at = std::min(text.find('\n', at), text.size());
    size_t last = at;
    if (last > 0 && text[last - 1] == '\r') --last;
    if (at == text.size() || last == 0 || text[last - 1] != '\\') return at;
    ++at;
  }
}

// A word (a name or a number), "::", "<<" and the like, or another character.
using Tokens = std::vector<std::string_view>;

// The text's tokens, without comments, literals and preprocessor lines.
Tokens Tokenize(std::string_view text) {
  Tokens tokens;
  bool line_start = true;
  for (size_t i = 0, end = 0; i < text.size(); i = end) {
    const std::string_view rest = text.substr(i);
    end = i + 1;
    if (rest[0] == '\n') {
      line_start = true;
    } else if (std::isspace(static_cast<unsigned char>(rest[0])) != 0) {
      continue;
    } else if (rest.starts_with("//") || (rest[0] == '#' && line_start)) {
      end = LineEnd(text, i);
    } else if (rest.starts_with("/*")) {
      const size_t close = text.find("*/", i + 2);
      end = close == text.npos ? text.size() : close + 2;
    } else if (rest[0] == '"' || rest[0] == '\'') {
      // What stands in front, as in L'x', is the literal's; between digits it is no quote.
      const bool has_prefix = i > 0 && !tokens.empty() && IsWord(text[i - 1]);
      const bool separates = rest[0] == '\'' && has_prefix &&
                             std::isdigit(static_cast<unsigned char>(tokens.back()[0])) != 0;
      if (separates) continue;
      if (has_prefix) tokens.pop_back();
      end = LiteralEnd(text, i);
      tokens.push_back(kLiteral);
      line_start = false;
    } else {
      while (IsWord(rest[0]) && end < text.size() && IsWord(text[end])) ++end;
      for (const std::string_view two : {"::", "<<", "<=", ">=", "->", "&&", "||", "=="}) {
        if (rest.starts_with(two)) end = i + 2;
      }
      tokens.push_back(text.substr(i, end - i));
      line_start = false;
    }
  }
  return tokens;
}

bool IsName(std::string_view token) {
  return IsWord(token[0]) && std::isdigit(static_cast<unsigned char>(token[0])) == 0;
}

// `list` cut at the commas that stand in no bracket. A `<` opens one behind a name.
std::vector<std::span<const std::string_view>> SplitParameters(
    std::span<const std::string_view> list) {
  std::vector<std::span<const std::string_view>> parts;
  std::string open;
  size_t start = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i].size() == 1 ? list[i][0] : ' ';
    if (c == '(' || c == '[' || c == '{' || (c == '<' && i > 0 && IsName(list[i - 1]))) {
      open.push_back(c);
    } else if (c == ')' || c == ']' || c == '}') {
      while (!open.empty() && open.back() == '<') open.pop_back();
      if (!open.empty()) open.pop_back();
    } else if (c == '>' && open.ends_with('<')) {
      open.pop_back();
    } else if (c == ',' && open.empty()) {
      parts.push_back(list.subspan(start, i - start));
      start = i + 1;
    }
  }
  if (start < list.size()) parts.push_back(list.subspan(start));
  return parts;
}

// Of the built-in integers, in any order of their words.
DType IntegerOfC(const Tokens& words) {
  using enum DType;
  const auto count = [&words](std::string_view word) { return std::ranges::count(words, word); };
  const bool is_unsigned = count("unsigned") > 0;
  if (count("signed") + count("unsigned") + count("char") + count("short") + count("int") +
          count("long") !=
      static_cast<ptrdiff_t>(words.size())) {
    return kInvalid;
  }
  if (count("char") > 0) return is_unsigned ? kU8 : kI8;
  if (count("short") > 0) return is_unsigned ? kU16 : kI16;
  if (count("long") > 0) return is_unsigned ? kU64 : kI64;
  return is_unsigned ? kU32 : kI32;
}

DType DTypeOfC(const Tokens& words) {
  using enum DType;
  static constexpr std::pair<std::string_view, DType> kTypes[] = {{"float", kF32},
                                                                  {"double", kF64},
                                                                  {"bool", kPred},
                                                                  {"_Bool", kPred},
                                                                  {"int8_t", kI8},
                                                                  {"int16_t", kI16},
                                                                  {"int32_t", kI32},
                                                                  {"int64_t", kI64},
                                                                  {"uint8_t", kU8},
                                                                  {"uint16_t", kU16},
                                                                  {"uint32_t", kU32},
                                                                  {"uint64_t", kU64},
                                                                  {"size_t", kU64},
                                                                  {"ptrdiff_t", kI64},
                                                                  {"ssize_t", kI64},
                                                                  {"intptr_t", kI64},
                                                                  {"uintptr_t", kU64},
                                                                  {"uint", kU32},
                                                                  {"half", kF16},
                                                                  {"__half", kF16},
                                                                  {"nv_half", kF16},
                                                                  {"_Float16", kF16},
                                                                  {"nv_bfloat16", kBF16},
                                                                  {"__nv_bfloat16", kBF16},
                                                                  {"__bf16", kBF16},
                                                                  {"__nv_fp8_e4m3", kF8E4M3FN},
                                                                  {"__nv_fp8_e5m2", kF8E5M2}};
  if (words.empty()) return kInvalid;
  if (const DType integer = IntegerOfC(words); integer != kInvalid) return integer;
  std::string name = StrJoin(words, "");
  for (const std::string_view space : {"::", "cuda::", "std::"}) {
    if (name.starts_with(space)) name.erase(0, space.size());
  }
  const auto* found = std::ranges::find(kTypes, name, &std::pair<std::string_view, DType>::first);
  return found == std::end(kTypes) ? kInvalid : found->second;
}

// What the addresses of CUDA's vector types are multiples of; 1 for other types.
uint64_t AlignmentOfVector(const Tokens& words) {
  static constexpr std::pair<std::string_view, uint64_t> kElements[] = {
      {"char", 1},  {"uchar", 1}, {"short", 2}, {"ushort", 2},   {"int", 4},       {"uint", 4},
      {"float", 4}, {"long", 8},  {"ulong", 8}, {"longlong", 8}, {"ulonglong", 8}, {"double", 8}};
  if (words.empty()) return 1;
  std::string_view name = words.back();
  for (const std::string_view two : {"half2", "__half2", "nv_bfloat162", "__nv_bfloat162"}) {
    if (name == two) return 4;
  }
  const uint64_t count = name.ends_with('2') ? 2 : name.ends_with('4') ? 4 : 0;
  if (count == 0) return 1;
  name.remove_suffix(1);
  const auto* found =
      std::ranges::find(kElements, name, &std::pair<std::string_view, uint64_t>::first);
  return found == std::end(kElements) ? 1 : std::min<uint64_t>(16, count * found->second);
}

// `types`: those that are parameters of the template.
StatusOr<DeclaredParameter> ParseParameter(std::span<const std::string_view> tokens,
                                           const Tokens& types, std::string_view entry,
                                           size_t position) {
  DeclaredParameter parameter;
  Tokens words;  // of the type, then the name
  int angles = 0, squares = 0, stars = 0;
  const char* problem = nullptr;
  for (size_t i = 0; i < tokens.size() && (tokens[i] != "=" || angles > 0); ++i) {
    static constexpr std::string_view kIgnored[] = {"__restrict__", "__restrict",       "restrict",
                                                    "volatile",     "struct",           "typename",
                                                    "register",     "__grid_constant__"};
    const std::string_view token = tokens[i];
    if (token == "[" && i + 1 < tokens.size() && tokens[i + 1] == "[" && squares == 0) {
      while (i + 1 < tokens.size() && !(tokens[i] == "]" && tokens[i + 1] == "]")) ++i;
      ++i;  // [[an attribute]]
      continue;
    }
    angles += token == "<" ? 1 : token == ">" ? -1 : 0;
    squares += token == "[" ? 1 : token == "]" ? -1 : 0;
    if (token == "<") words.push_back("<>");  // a template's: of no C type that is known
    if (angles > 0 || token == ">") continue;
    if (token == "*" || (token == "[" && squares == 1)) {
      if (stars == 0) {
        parameter.is_const = std::ranges::find(tokens.first(i), "const") != tokens.begin() + i;
      }
      ++stars;
    }
    if (squares > 0 || token == "]") continue;
    if (token == "(") problem = "is a function, or has an attribute";
    if (token == "&" || token == "&&") problem = "is a reference";
    if (token == ".") problem = "stands for any number";
    const bool is_word = IsName(token) || token == "::";
    if (is_word && token != "const" && std::ranges::find(kIgnored, token) == std::end(kIgnored)) {
      words.push_back(token);
    }
  }
  if (stars > 1) problem = "is a pointer to pointers or arrays";
  static constexpr std::string_view kTypeWords[] = {"int",    "char",     "short", "long", "signed",
                                                    "double", "unsigned", "float", "void", "bool"};
  // The name is last; one word alone is a type, as in f(float*).
  const bool has_name = words.size() >= 2 && IsName(words.back()) &&
                        words[words.size() - 2] != "::" &&
                        std::ranges::find(kTypeWords, words.back()) == std::end(kTypeWords);
  if (problem == nullptr && !has_name) problem = "has no name in the source text";
  if (problem != nullptr) {
    return InvalidArgument("parameter ", position, " of ", entry, " ", problem,
                           "; let it be a named pointer or number, or give `parameters`");
  }
  parameter.name = words.back();
  words.pop_back();
  parameter.is_pointer = stars == 1;
  parameter.type = DTypeOfC(words);
  if (parameter.is_pointer) parameter.alignment = AlignmentOfVector(words);
  if (parameter.is_pointer && words.size() == 1 &&
      std::ranges::find(types, words[0]) != types.end()) {
    parameter.type_parameter = words[0];
  }
  return parameter;
}

// Where the scan of a text is: the scopes that are open, and how many of them are bodies, in which
// nothing is declared that is wanted.
class Scopes {
 public:
  // `head`: the tokens since the last `;`, `{` or `}`.
  void Open(std::span<const std::string_view> head, int parentheses) {
    Scope scope{.parentheses = parentheses};
    const auto named = std::ranges::find_if(head, [](std::string_view token) {
      return token == "namespace" || token == "struct" || token == "class";
    });
    const bool is_extern = head.size() == 2 && head[0] == "extern" && head[1] == kLiteral;
    if (parentheses > 0 || std::ranges::find(head, "(") != head.end() ||
        std::ranges::find(head, "=") != head.end() || (named == head.end() && !is_extern)) {
      scope.is_body = true;
    } else if (!is_extern) {
      for (auto at = named + 1; at != head.end() && (IsName(*at) || *at == "::"); ++at) {
        scope.name += *at;
      }
    }
    bodies_ += scope.is_body ? 1 : 0;
    scopes_.push_back(std::move(scope));
  }
  // Returns the parentheses that were open around the scope.
  int Close() {
    if (scopes_.empty()) return 0;
    const Scope last = std::move(scopes_.back());
    scopes_.pop_back();
    bodies_ -= last.is_body ? 1 : 0;
    return last.parentheses;
  }
  bool in_body() const { return bodies_ > 0; }
  // "outer::inner", without those that have no name.
  std::string Name() const {
    std::string name;
    for (const Scope& scope : scopes_) {
      if (!scope.name.empty()) name += (name.empty() ? "" : "::") + scope.name;
    }
    return name;
  }

 private:
  struct Scope {
    std::string name = {};
    bool is_body = false;
    int parentheses = 0;
  };
  std::vector<Scope> scopes_;
  int bodies_ = 0;
};

using Parameters = std::vector<DeclaredParameter>;

// `head`: the tokens of the declaration before its name.
StatusOr<Parameters> ParseList(std::span<const std::string_view> list,
                               std::span<const std::string_view> head, std::string_view entry) {
  Parameters parameters;
  if (list.size() == 1 && list[0] == "void") return parameters;
  Tokens types;
  for (size_t i = 1; i < head.size(); ++i) {
    if (head[i - 1] == "typename" || head[i - 1] == "class") types.push_back(head[i]);
  }
  for (const auto part : SplitParameters(list)) {
    XLA_GPU_ASSIGN_OR_RETURN(DeclaredParameter parameter,
                             ParseParameter(part, types, entry, parameters.size()));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

// What may stand in front of a declared name: the end of its type, or of __launch_bounds__(256).
bool EndsType(std::string_view token) {
  static constexpr std::string_view kNot[] = {"return", "else", "do", "new", "throw", "case"};
  return IsWord(token[0]) ? std::ranges::find(kNot, token) == std::end(kNot)
                          : token == "*" || token == "&" || token == ">" || token == ")";
}

}  // namespace

StatusOr<std::vector<DeclaredParameter>> ParseSignature(std::string_view text,
                                                        std::string_view entry) {
  std::string_view name = entry.substr(0, entry.find('<'));
  name = name.substr(0, name.find_last_not_of(' ') + 1);
  std::string_view wanted_scope;
  if (const size_t colons = name.rfind("::"); colons != name.npos) {
    wanted_scope = name.substr(0, colons);
    if (wanted_scope.starts_with("::")) wanted_scope.remove_prefix(2);
    name.remove_prefix(colons + 2);
  }
  if (name.empty() || !IsName(name)) {
    return InvalidArgument("entry is '", entry,
                           "'; it must name a function, or an instance of a "
                           "template: scale<float>");
  }
  const Tokens tokens = Tokenize(text);
  const std::span<const std::string_view> all(tokens);
  std::optional<Parameters> elsewhere;  // of a declaration in another scope
  std::optional<Status> problem;
  Scopes scopes;
  int parentheses = 0;
  size_t head = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string_view token = all[i];
    if (token == "(") ++parentheses;
    if (token == ")") parentheses = std::max(0, parentheses - 1);
    if (token == "{") scopes.Open(all.subspan(head, i - head), std::exchange(parentheses, 0));
    if (token == "}") parentheses = scopes.Close();
    if (token == "{" || token == "}" || (token == ";" && parentheses == 0)) head = i + 1;
    if (token != name || parentheses > 0 || scopes.in_body() || i == head || i + 1 == all.size() ||
        all[i + 1] != "(") {
      continue;
    }
    size_t first = i;  // of the name with what qualifies it
    std::string scope = scopes.Name();
    while (first >= head + 2 && all[first - 1] == "::" && IsName(all[first - 2])) first -= 2;
    for (size_t k = first; k < i; k += 2)
      scope += (scope.empty() ? "" : "::") + std::string(all[k]);
    if (first == head || !EndsType(all[first - 1])) continue;
    size_t close = i + 1;
    for (int depth = 0; close < all.size(); ++close) {
      depth += all[close] == "(" ? 1 : all[close] == ")" ? -1 : 0;
      if (depth == 0) break;
    }
    if (close == all.size()) break;
    StatusOr<Parameters> parameters =
        ParseList(all.subspan(i + 2, close - i - 2), all.subspan(head, first - head), name);
    if (!parameters.ok()) {
      if (!problem) problem = parameters.status();
    } else if (scope == wanted_scope) {
      return parameters;
    } else if (!elsewhere) {
      elsewhere = *std::move(parameters);
    }
  }
  if (elsewhere) return *std::move(elsewhere);
  if (problem) return *problem;
  return InvalidArgument("the source text declares no function '", name,
                         "'; entry must name one of it (macros are not expanded: where one makes "
                         "the function, give `parameters`)");
}

}  // namespace xla_gpu::user_kernel
