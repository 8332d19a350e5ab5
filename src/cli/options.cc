#include "src/cli/options.h"

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

bool IsDashed(const std::string& arg) { return arg.size() > 1 && arg[0] == '-'; }

// -I, whose value may follow at once: -Ifolder.
bool IsLetter(const Option& option) {
  const std::string_view name = option.name;
  return name.size() == 2 && name[0] == '-' && name[1] != '-';
}

template <typename T>
bool Holds(const Option& option) {
  return std::holds_alternative<T*>(option.target);
}

bool IsRepeatable(const Option& option) {
  return Holds<std::vector<int64_t>>(option) || Holds<std::vector<std::string>>(option);
}

Status Set(const Option& option, const std::string& text) {
  if (!option.allowed.empty() && std::ranges::find(option.allowed, text) == option.allowed.end()) {
    return InvalidArgument(StrCat(option.name, " is '", text, "'; allowed: ",
                                  StrJoin(option.allowed, ", "), DidYouMean(text, option.allowed)));
  }
  if (auto* const* one = std::get_if<std::string*>(&option.target)) {
    **one = text;
  } else if (auto* const* many = std::get_if<std::vector<std::string>*>(&option.target)) {
    (*many)->push_back(text);
  } else {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < option.min ||
        number > option.max) {
      return InvalidArgument(StrCat(option.name, " is '", text,
                                    "'; it must be a whole number from ", option.min, " to ",
                                    option.max));
    }
    if (auto* const* numbers = std::get_if<std::vector<int64_t>*>(&option.target)) {
      (*numbers)->push_back(number);
    } else {
      *std::get<int64_t*>(option.target) = number;
    }
  }
  return OkStatus();
}

// Insertions, deletions, replacements and swaps of neighbours that make one word the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      d[i][j] = i == 0 || j == 0 ? i + j
                                 : std::min({d[i - 1][j] + 1, d[i][j - 1] + 1,
                                             d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

Status ParseOptions(const Args& args, const std::vector<Option>& options) {
  std::vector<std::string> names = {"--help"};
  for (const Option& option : options) {
    if (*option.help != '\0' && IsDashed(option.name)) names.push_back(option.name);
  }
  std::vector<const Option*> given;
  const auto came = [&given](const Option& option) {
    return std::ranges::find(given, &option) != given.end();
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const bool dashed = IsDashed(args[i]);
    const bool joined = std::ranges::any_of(
        options, [&](const Option& o) { return IsLetter(o) && args[i].starts_with(o.name); });
    const size_t equals = dashed && !joined ? args[i].find('=') : std::string::npos;
    const std::string name = args[i].substr(0, joined ? 2 : equals);
    const auto option = std::ranges::find_if(options, [&](const Option& o) {
      return dashed ? name == o.name : !IsDashed(o.name) && (IsRepeatable(o) || !came(o));
    });
    if (option == options.end()) {
      if (dashed)
        return InvalidArgument(StrCat("option ", name, " is unknown", DidYouMean(name, names)));
      const bool takes_some =
          std::ranges::any_of(given, [](auto* o) { return !IsDashed(o->name); });
      return InvalidArgument(
          StrCat("argument ", args[i], takes_some ? " is one too many" : " is unknown"));
    }
    given.push_back(&*option);
    if (Holds<bool>(*option)) {
      if (equals != std::string::npos) return InvalidArgument(StrCat(name, " takes no value"));
      *std::get<bool*>(option->target) = true;
      continue;
    }
    std::string value = args[i];
    if (joined && value.size() > 2) {
      value.erase(0, 2);
    } else if (equals != std::string::npos) {
      value.erase(0, equals + 1);
    } else if (dashed) {
      if (i + 1 == args.size() || args[i + 1].starts_with("--")) {
        return InvalidArgument(
            StrCat(name, " needs a value",
                   option->allowed.empty() ? "" : "; allowed: ", StrJoin(option->allowed, ", ")));
      }
      value = args[++i];
    }
    XLA_GPU_RETURN_IF_ERROR(Set(*option, value));
  }
  for (const Option& option : options) {
    if (!IsDashed(option.name) && !IsRepeatable(option) && !came(option)) {
      return InvalidArgument(StrCat(option.name, " is missing"));
    }
  }
  return OkStatus();
}

std::string UsageText(const std::vector<Option>& options) {
  std::string usage;
  bool any = false;
  for (const Option& option : options) {
    any |= IsDashed(option.name);
    if (IsDashed(option.name)) continue;
    usage += IsRepeatable(option) ? StrCat(" [", option.name, "]...") : StrCat(" ", option.name);
  }
  return usage + (any ? " [OPTIONS]" : "");
}

std::string HelpText(const std::vector<Option>& options) {
  constexpr size_t kWidth = 26;
  std::string text;
  for (const Option& option : options) {
    if (*option.help == '\0') continue;
    std::string left = option.name;
    if (*option.value != '\0') left += StrCat(" ", option.value);
    if (IsDashed(option.name) && IsRepeatable(option)) left += "...";
    text += "  " + left;
    text += left.size() > kWidth ? StrCat("\n", std::string(kWidth + 4, ' '))
                                 : std::string(kWidth + 2 - left.size(), ' ');
    text += option.help;
    if (Holds<int64_t>(option)) {
      text += StrCat("; default ", *std::get<int64_t*>(option.target));
    } else if (Holds<std::string>(option) && !std::get<std::string*>(option.target)->empty()) {
      text += StrCat("; default ", *std::get<std::string*>(option.target));
    }
    text += "\n";
  }
  return text.empty() ? "" : text + "\n";
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  size_t least = std::max<size_t>(2, word.size() / 3 + 1);  // more than this is another word
  for (const std::string& candidate : candidates) {
    // The beginning of a name stands for it.
    const bool begins = word.size() > 2 && candidate.starts_with(word);
    const size_t distance = begins ? 0 : EditDistance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    best = &candidate;
  }
  return best == nullptr ? "" : StrCat("; did you mean ", *best, "?");
}

}  // namespace xla_gpu::cli
