#include "src/xla/hlo_text.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

constexpr size_t kNone = std::string_view::npos;

struct ApiVersionName {
  std::string_view hlo;
  int number;
  const char* text;
};
constexpr ApiVersionName kApiVersions[] = {
    {"API_VERSION_UNSPECIFIED", 0, "unspecified"},
    {"API_VERSION_ORIGINAL", 1, "original"},
    {"API_VERSION_STATUS_RETURNING", 2, "status returning"},
    {"API_VERSION_STATUS_RETURNING_UNIFIED", 3, "status returning, unified"},
    {"API_VERSION_TYPED_FFI", 4, "typed FFI"}};

// What follows `key` in the instruction outside string literals, up to one of `ends`.
std::string_view Field(std::string_view line, std::string_view key, std::string_view ends) {
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && quoted) {
      ++i;
    } else if (!quoted && line.substr(i).starts_with(key)) {
      const std::string_view rest = line.substr(i + key.size());
      return rest.substr(0, rest.find_first_of(ends));
    } else if (line[i] == '"') {
      quoted = !quoted;
    }
  }
  return {};
}

// The text within the braces that begin `text`.
std::string_view Braced(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return text.substr(1, i - 1);
  }
  return {};
}

bool ParseLine(std::string_view line, HloCustomCall* call) {
  // "  ROOT %name = f32[4]{0} custom-call(...), custom_call_target=..."
  const size_t equals = line.find(" = ");
  const size_t opcode = line.find(" custom-call(");
  if (equals == kNone || opcode == kNone || opcode < equals + 3) return false;
  std::string_view name = line.substr(0, equals);
  name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
  if (name.starts_with("ROOT ")) name.remove_prefix(5);
  // No name, or a longer text that only mentions a call.
  if (name.empty() || name.find(' ') != kNone) return false;
  call->name = name;
  call->type = line.substr(equals + 3, opcode - equals - 3);
  call->target = Field(line, "custom_call_target=\"", "\"");
  const std::string_view version = Field(line, "api_version=", ", ");
  for (const ApiVersionName& known : kApiVersions) {
    if (version == known.hlo) call->api_version = known.number;
  }
  const std::string_view key = "output_to_operand_aliasing=";
  const std::string_view aliasing = Field(line, key, "");
  if (!aliasing.empty()) call->aliasing = Braced(aliasing);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  call->line = line;
  return true;
}

}  // namespace

std::vector<HloCustomCall> FindHloCustomCalls(std::string_view hlo) {
  std::vector<HloCustomCall> calls;
  for (size_t begin = 0; begin < hlo.size();) {
    const size_t end = std::min(hlo.find('\n', begin), hlo.size());
    HloCustomCall call;
    if (ParseLine(hlo.substr(begin, end - begin), &call)) calls.push_back(std::move(call));
    begin = end + 1;
  }
  return calls;
}

std::string ApiVersionText(int api_version) {
  for (const ApiVersionName& known : kApiVersions) {
    if (api_version == known.number) return StrCat(api_version, " (", known.text, ")");
  }
  return StrCat(api_version);
}

StatusOr<std::vector<HloModuleText>> ReadHloDump(const std::string& folder) {
  constexpr uint64_t kMaxText = uint64_t{1} << 30;
  std::vector<HloModuleText> modules;
  for (const std::string& path : ListFolder(folder)) {
    if (!path.ends_with("after_optimizations.txt")) continue;
    XLA_GPU_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxText));
    modules.push_back({std::filesystem::path(path).filename().string(), std::move(text)});
  }
  if (modules.empty()) {
    return NotFound("dump folder ", folder,
                    " holds no *after_optimizations.txt; make it with XLA_FLAGS="
                    "\"--xla_dump_to=FOLDER --xla_dump_hlo_as_text\"");
  }
  return modules;
}

}  // namespace xla_gpu::xla
