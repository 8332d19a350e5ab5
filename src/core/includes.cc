#include "src/core/includes.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu {

std::vector<std::string> Includes(std::string_view text, bool bracketed) {
  std::vector<std::string> paths;
  for (std::string_view line : Lines(text)) {
    auto skip_spaces = [&line] {
      line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
    };
    skip_spaces();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip_spaces();
    if (!line.starts_with("include")) continue;
    line.remove_prefix(7);
    skip_spaces();
    const char close = line.starts_with('"') ? '"' : bracketed && line.starts_with('<') ? '>' : 0;
    if (close == 0) continue;
    line.remove_prefix(1);
    if (size_t end = line.find(close); end != line.npos) paths.emplace_back(line.substr(0, end));
  }
  return paths;
}

std::vector<std::string> IncludedTexts(const std::string& source,
                                       const std::vector<std::string>& options) {
  constexpr uint64_t kMaxFile = uint64_t{16} << 20;
  std::vector<std::string> folders, texts = {source};
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string& option = options[i];
    for (const std::string_view flag : {"--include-path=", "-isystem", "-iquote", "-I"}) {
      if (!option.starts_with(flag)) continue;
      const bool is_apart = option.size() == flag.size() && i + 1 < options.size();
      folders.push_back(is_apart ? options[i + 1] : option.substr(flag.size()));
    }
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (const std::string& include : Includes(texts[i], /*bracketed=*/true)) {
      for (const std::string& folder : folders) {
        const std::string path = StrCat(folder, "/", include);
        if (!seen.insert(path).second) continue;
        if (auto text = ReadFile(path, kMaxFile); text.ok()) texts.push_back(*std::move(text));
      }
    }
  }
  texts.erase(texts.begin());
  return texts;
}

}  // namespace xla_gpu
