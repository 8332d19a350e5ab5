#include "src/ops/user_kernel/signature.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The text with comments, literals and preprocessor lines blank, so that what is left is code.
std::string OnlyCode(std::string_view text) {
  std::string code(text);
  const auto blank = [&code](size_t from, size_t to) {
    for (size_t i = from; i < std::min(to, code.size()); ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
  };
  bool line_start = true;
  for (size_t i = 0; i < code.size();) {
    const std::string_view rest = std::string_view(code).substr(i);
    size_t end = i + 1;
    if (rest.starts_with("//")) {
      end = std::min(code.find('\n', i), code.size());
      blank(i, end);
    } else if (rest.starts_with("/*")) {
      const size_t close = code.find("*/", i + 2);
      end = close == code.npos ? code.size() : close + 2;
      blank(i, end);
    } else if (rest[0] == '"' || (rest[0] == '\'' && (i == 0 || !IsWord(code[i - 1])))) {
      while (end < code.size() && code[end] != rest[0] && code[end] != '\n') {
        end += code[end] == '\\' ? 2 : 1;
      }
      end = std::min(end + 1, code.size());
      blank(i, end);
      line_start = false;
    } else if (rest[0] == '#' && line_start) {
      while (end < code.size() && code[end] != '\n') end += code[end] == '\\' ? 2 : 1;
      end = std::min(end, code.size());
      blank(i, end);
    } else if (rest[0] == '\n') {
      line_start = true;
    } else if (rest[0] != ' ' && rest[0] != '\t') {
      line_start = false;
    }
    i = end;
  }
  return code;
}

// Where the bracket that opens at `open` closes, or npos.
size_t ClosingParenthesis(std::string_view code, size_t open) {
  int depth = 0;
  for (size_t i = open; i < code.size(); ++i) {
    if (code[i] == '(') ++depth;
    if (code[i] == ')' && --depth == 0) return i;
  }
  return code.npos;
}

std::vector<std::string_view> SplitParameters(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i == list.size() ? ',' : list[i];
    if (c == '(' || c == '<' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == '>' || c == ']' || c == '}') --depth;
    if (c != ',' || (depth > 0 && i < list.size())) continue;
    parts.push_back(list.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (IsWord(text[i])) {
      while (end < text.size() && (IsWord(text[end]) || text.substr(end, 2) == "::" ||
                                   (text[end] == ':' && text[end - 1] == ':'))) {
        ++end;
      }
    }
    if (std::isspace(static_cast<unsigned char>(text[i])) == 0) {
      words.emplace_back(text.substr(i, end - i));
    }
    i = end;
  }
  return words;
}

DType DTypeOfC(const std::string& type) {
  using enum DType;
  static constexpr std::pair<std::string_view, DType> kTypes[] = {{"float", kF32},
                                                                  {"double", kF64},
                                                                  {"bool", kPred},
                                                                  {"int", kI32},
                                                                  {"signed", kI32},
                                                                  {"signed int", kI32},
                                                                  {"unsigned", kU32},
                                                                  {"unsigned int", kU32},
                                                                  {"short", kI16},
                                                                  {"short int", kI16},
                                                                  {"unsigned short", kU16},
                                                                  {"signed char", kI8},
                                                                  {"char", kI8},
                                                                  {"unsigned char", kU8},
                                                                  {"long", kI64},
                                                                  {"long int", kI64},
                                                                  {"long long", kI64},
                                                                  {"long long int", kI64},
                                                                  {"unsigned long", kU64},
                                                                  {"size_t", kU64},
                                                                  {"unsigned long long", kU64},
                                                                  {"int8_t", kI8},
                                                                  {"int16_t", kI16},
                                                                  {"int32_t", kI32},
                                                                  {"int64_t", kI64},
                                                                  {"uint8_t", kU8},
                                                                  {"uint16_t", kU16},
                                                                  {"uint32_t", kU32},
                                                                  {"uint64_t", kU64},
                                                                  {"uint", kU32},
                                                                  {"half", kF16},
                                                                  {"__half", kF16},
                                                                  {"_Float16", kF16},
                                                                  {"nv_bfloat16", kBF16},
                                                                  {"__nv_bfloat16", kBF16},
                                                                  {"__nv_fp8_e4m3", kF8E4M3FN},
                                                                  {"__nv_fp8_e5m2", kF8E5M2}};
  std::string_view name = type;
  for (const std::string_view space : {"std::", "cuda::std::", "::"}) {
    if (name.starts_with(space)) name.remove_prefix(space.size());
  }
  const auto* found = std::ranges::find(kTypes, name, &std::pair<std::string_view, DType>::first);
  return found == std::end(kTypes) ? kInvalid : found->second;
}

StatusOr<DeclaredParameter> ParseParameter(std::string_view text, std::string_view entry,
                                           size_t position) {
  DeclaredParameter parameter;
  std::vector<std::string> type;
  int depth = 0;
  for (const std::string& word : Words(text.substr(0, text.find('=')))) {
    static constexpr std::string_view kIgnored[] = {
        "__restrict__", "__restrict", "restrict", "volatile", "struct", "__grid_constant__"};
    depth += word == "<" ? 1 : word == ">" ? -1 : 0;
    if (depth == 0 && (word == "*" || word == "[")) parameter.is_pointer = true;
    if (word == "const") parameter.is_const = true;
    const bool plain = IsWord(word[0]) && word != "const";
    if (depth == 0 && plain && std::ranges::find(kIgnored, word) == std::end(kIgnored)) {
      type.push_back(word);
    } else if (word == "<") {
      type.emplace_back("<>");  // a template's: of no C type that is known
    }
  }
  // The name is last; one word alone is a type, as in f(float*).
  if (type.size() < 2 || !IsWord(type.back()[0]) || type.back().find(':') != std::string::npos) {
    return InvalidArgument("parameter ", position, " of ", entry,
                           " has no name in the source text; name it, or give `parameters`");
  }
  parameter.name = std::move(type.back());
  type.pop_back();
  parameter.type = DTypeOfC(StrJoin(type, " "));
  return parameter;
}

}  // namespace

StatusOr<std::vector<DeclaredParameter>> ParseSignature(std::string_view text,
                                                        std::string_view entry) {
  std::string_view name = entry.substr(0, entry.find('<'));
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  if (const size_t colons = name.rfind("::"); colons != name.npos) name.remove_prefix(colons + 2);
  const std::string code = OnlyCode(text);
  for (size_t at = 0; !name.empty() && (at = code.find(name, at)) != code.npos; at += name.size()) {
    const size_t end = at + name.size();
    if ((at > 0 && IsWord(code[at - 1])) || (end < code.size() && IsWord(code[end]))) continue;
    const size_t open = code.find_first_not_of(" \t\r\n", end);
    if (open == code.npos || code[open] != '(') continue;
    // A declaration has its type in front; what follows an operator, a bracket or `return` is a
    // call.
    const size_t before = at == 0 ? code.npos : code.find_last_not_of(" \t\r\n", at - 1);
    if (before == code.npos ||
        !(IsWord(code[before]) || code[before] == '*' || code[before] == '&' ||
          code[before] == ')' || code[before] == '>')) {
      continue;
    }
    if (std::string_view(code).substr(0, before + 1).ends_with("return")) continue;
    const size_t close = ClosingParenthesis(code, open);
    if (close == code.npos) break;
    std::vector<DeclaredParameter> parameters;
    for (const std::string_view part :
         SplitParameters(std::string_view(code).substr(open + 1, close - open - 1))) {
      const std::vector<std::string> words = Words(part);
      if (words.empty() || (words.size() == 1 && words[0] == "void")) continue;
      XLA_GPU_ASSIGN_OR_RETURN(DeclaredParameter parameter,
                               ParseParameter(part, name, parameters.size()));
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }
  return InvalidArgument("the source text declares no function '", name,
                         "'; entry must name a kernel of it (macros are not expanded: where one "
                         "makes the kernel, give `parameters`)");
}

}  // namespace xla_gpu::user_kernel
