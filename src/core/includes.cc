#include "src/core/includes.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "src/core/file.h"

namespace xla_gpu {
namespace {

namespace fs = std::filesystem;

// Behind spaces and comments, which the preprocessor takes for a space.
void SkipSpaces(std::string_view& line) {
  for (;;) {
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
    if (!line.starts_with("/*")) return;
    const size_t end = line.find("*/", 2);
    line.remove_prefix(end == line.npos ? line.size() : end + 2);
  }
}

bool Take(std::string_view& line, std::string_view word) {
  if (!line.starts_with(word)) return false;
  line.remove_prefix(word.size());
  return true;
}

// The X of "X" and <X> at the start of `text`.
std::optional<std::string> Quoted(std::string_view text, bool bracketed) {
  const char close = text.starts_with('"') ? '"' : bracketed && text.starts_with('<') ? '>' : 0;
  const size_t end = close == 0 ? text.npos : text.find(close, 1);
  if (end == text.npos) return std::nullopt;
  return std::string(text.substr(1, end - 1));
}

std::string WithoutContinuations(std::string_view text) {
  std::string joined;
  for (const std::string_view line : Lines(text)) {
    const bool goes_on = line.ends_with('\\');
    joined.append(line.substr(0, line.size() - (goes_on ? 1 : 0)));
    if (!goes_on) joined += '\n';
  }
  return joined;
}

class Collector {
 public:
  explicit Collector(const std::vector<std::string>& options) {
    for (size_t i = 0; i < options.size(); ++i) {
      for (const std::string_view flag :
           {"--include-path", "--include-directory", "-isystem", "-idirafter", "-iquote", "-I"}) {
        std::string_view folder = options[i];
        if (!Take(folder, flag)) continue;
        Take(folder, "=");
        if (folder.empty() && i + 1 < options.size()) folder = options[i + 1];
        folders_.emplace_back(folder);
      }
    }
  }

  // What the options name: "-include", "a.h"; --pre-include=a.h; -DCONFIG="a.h"; a.o
  void AddNamed(std::string_view option) {
    for (const size_t start : {size_t{0}, option.find('=') + 1}) {
      const std::string_view name = option.substr(start);
      const std::optional<std::string> quoted = Quoted(name, /*bracketed=*/true);
      AddInclude(quoted ? *quoted : std::string(name), "");
    }
  }

  void AddIncludes(const std::string& text, const fs::path& folder) {
    for (const std::string& include : Includes(text, /*bracketed=*/true)) {
      AddInclude(include, folder);
    }
  }

  std::vector<std::string> Follow() {
    for (size_t i = 0; i < texts_.size(); ++i) {
      const std::string text = texts_[i];
      AddIncludes(text, fs::path(paths_[i]).parent_path());
    }
    return std::move(texts_);
  }

 private:
  void AddInclude(const std::string& name, const fs::path& folder) {
    if (name.empty()) return;
    Add(folder / name);
    for (const std::string& other : folders_) Add(fs::path(other) / name);
  }

  void Add(const fs::path& path) {
    constexpr uint64_t kMaxFile = uint64_t{256} << 20;
    if (!seen_paths_.insert(path.string()).second) return;
    const auto file = RegularFile::Open(path.string());
    // By its number too: a file may have paths without end, "../a/../a/b.h".
    if (!file.ok() || !seen_.insert({file->info().st_dev, file->info().st_ino}).second) return;
    auto text = file->ReadAll(kMaxFile);
    if (!text.ok()) return;
    texts_.push_back(*std::move(text));
    paths_.push_back(path.string());
  }

  std::vector<std::string> folders_, texts_, paths_;  // a text's path
  std::set<std::string> seen_paths_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

}  // namespace

std::vector<std::string> Includes(std::string_view text, bool bracketed) {
  std::vector<std::string> paths;
  const std::string joined = WithoutContinuations(text);
  for (std::string_view line : Lines(joined)) {
    SkipSpaces(line);
    if (!Take(line, "#")) continue;
    SkipSpaces(line);
    if (bracketed && Take(line, "define")) {  // #define CONFIG "a.h", for #include CONFIG
      SkipSpaces(line);
      line.remove_prefix(std::min(line.size(), line.find_first_of(" \t/")));
    } else if (!Take(line, "include_next") && !Take(line, "include") && !Take(line, "import")) {
      continue;
    }
    SkipSpaces(line);
    if (auto path = Quoted(line, bracketed)) paths.push_back(*std::move(path));
  }
  return paths;
}

std::vector<std::string> IncludedTexts(const std::string& text, const std::string& file,
                                       const std::vector<std::string>& options) {
  Collector collector(options);
  collector.AddIncludes(text, fs::path(file).parent_path());
  for (const std::string& option : options) collector.AddNamed(option);
  return collector.Follow();
}

}  // namespace xla_gpu
