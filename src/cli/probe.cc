// xla-gpu probe: what each XLA runtime of this machine really accepts.
//
// Each runtime is probed in child processes, which write one JSON line when they begin a cell and
// one when they have its outcome. A cell that kills the child is marked so, and another child goes
// on with the next cell.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "src/cli/child_process.h"
#include "src/cli/cli.h"
#include "src/cli/json.h"
#include "src/cli/probe_cell.h"
#include "src/cli/program.h"
#include "src/core/file.h"
#include "src/core/strings.h"
#include "src/xla/pjrt_discovery.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

using nlohmann::json;

constexpr int kCellTimeoutS = 120;  // a CUDA client on a loaded machine takes long to come up

// ---- The child ----

void Say(const json& message) {
  std::printf("%s\n", JsonText(message).c_str());
  std::fflush(stdout);
}

Status TryCells(const std::string& path, size_t first) {
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, xla::PjrtPlugin::Load(path));
  XLA_GPU_ASSIGN_OR_RETURN(const xla::RuntimeFacts facts, xla::LearnRuntime(*plugin));
  json runtime = {{"pjrt", plugin->pjrt_version().ToString()},
                  {"ffi", facts.takes_typed() ? facts.ffi.ToString() : ""},
                  {"ffi_told", facts.ffi_told},
                  {"typed", facts.takes_typed()},
                  {"untyped", facts.takes_untyped()}};
  Say({{"runtime", runtime}});
  XLA_GPU_ASSIGN_OR_RETURN(const auto client, xla::PjrtClient::Create(plugin));
  runtime["platform"] = client->platform_name();
  runtime["device"] = client->device_kind();
  Say({{"runtime", runtime}});
  const std::vector<ProbeCell> cells = AllProbeCells();
  for (size_t i = first; i < cells.size(); ++i) {
    Say({{"begin", i}});
    const ProbeOutcome outcome = TryProbeCell(*client, cells[i]);
    Say({{"cell", i},
         {"ok", outcome.ok},
         {"result", outcome.result},
         {"message", outcome.message}});
  }
  return OkStatus();
}

// ---- The parent ----

struct Runtime {
  std::string title;
  std::vector<std::string> command;  // gets the number of the first cell as its last argument
  std::string path;
  json facts = json::object();
  std::string unusable;
  std::vector<ProbeOutcome> outcomes;
};

// The lines that XLA logs as errors; the rest of stderr is of no interest.
std::string ErrorLines(const std::string& text) {
  std::string lines;
  for (const std::string_view line : Lines(text)) {
    // "E0000 00:00:17...] text", "F1121 ...", "2026-11-21 10:00:00.1: E file:1] text"
    const bool dated = line.size() > 28 && (line[28] == 'E' || line[28] == 'F');
    const bool lettered =
        line.size() > 1 && (line[0] == 'E' || line[0] == 'F') && line[1] >= '0' && line[1] <= '9';
    if (dated || lettered) lines.append(lines.empty() ? "" : "\n").append(line);
  }
  return lines;
}

void Probe(Runtime& runtime, const std::function<void(size_t)>& progress) {
  const size_t count = AllProbeCells().size();
  runtime.outcomes.assign(count, {false, "not tried", ""});
  for (size_t next = 0; next < count;) {
    size_t current = count;  // the cell under way; count: none
    std::vector<std::string> command = runtime.command;
    command.push_back(StrCat(next));
    const auto end = RunLines(command, kCellTimeoutS, [&](const std::string& line) {
      const json message = ParseObject(line);  // empty for a library's own chatter
      if (message.contains("runtime") && message["runtime"].is_object()) {
        runtime.facts = message["runtime"];
      }
      ReadMember(message, "unusable", &runtime.unusable);
      size_t cell = 0;
      if (ReadMember(message, "begin", &cell)) {
        const bool begins = cell == next && current == count;
        if (begins) current = cell;
        return begins;
      }
      ProbeOutcome outcome;
      if (!ReadMember(message, "cell", &cell) || cell != current ||
          !ReadMember(message, "ok", &outcome.ok) ||
          !ReadMember(message, "result", &outcome.result) ||
          !ReadMember(message, "message", &outcome.message)) {
        return false;
      }
      runtime.outcomes[cell] = std::move(outcome);
      next = cell + 1;
      current = count;
      progress(next);
      return true;
    });
    if (!end.ok()) {
      runtime.unusable = end.status().message();
      return;
    }
    if (!runtime.unusable.empty() || next >= count) return;
    const std::string log = ErrorLines(end->err);
    const std::string how = StrCat("it ", end->HowItEnded(), log.empty() ? "" : "\n", log);
    if (current == count) {  // it ended between cells
      runtime.unusable = StrCat(runtime.facts.contains("platform") ? "the probe ended early: "
                                                                   : "its client does not start: ",
                                how);
      return;
    }
    runtime.outcomes[current] = {false, end->timed_out ? "timeout" : "crash", how};
    next = current + 1;
  }
}

// ---- Output ----

// `notes`: the texts that were printed, each once, and their numbers.
void PrintMatrix(const Runtime& runtime, std::map<std::string, size_t>& notes) {
  const std::vector<ProbeCell> cells = AllProbeCells();
  std::string fresh;
  std::printf("  %-10s", "platform");
  for (int api = 0; api <= 4; ++api) std::printf("  %-18s", StrCat("API ", api).c_str());
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i % 5 == 0) std::printf("\n  %-10s", cells[i].platform.c_str());
    const ProbeOutcome& outcome = runtime.outcomes[i];
    std::string text = outcome.result;
    if (!outcome.message.empty()) {
      // The target's name differs from cell to cell and would make every text another one.
      std::string message = outcome.message;
      for (size_t at; (at = message.find(cells[i].target())) != std::string::npos;) {
        message.replace(at, cells[i].target().size(), "TARGET");
      }
      const auto [note, is_new] = notes.emplace(message, notes.size() + 1);
      if (is_new) fresh += StrCat("  [", note->second, "] ", message, "\n");
      text += StrCat(" [", note->second, "]");
    }
    std::printf("  %-18s", text.c_str());
  }
  std::printf("\n%s", fresh.c_str());
}

void Print(const Runtime& runtime, std::map<std::string, size_t>& notes) {
  std::printf("%s\n", runtime.title.c_str());
  if (!runtime.path.empty()) std::printf("  %s\n", runtime.path.c_str());
  const auto text = [&](const char* key) {
    std::string value;
    ReadMember(runtime.facts, key, &value);
    return value;
  };
  bool ffi_told = true;
  ReadMember(runtime.facts, "ffi_told", &ffi_told);
  if (!runtime.facts.empty()) {
    std::string line = text("pjrt").empty() ? text("version") : StrCat("PJRT ", text("pjrt"));
    if (!text("ffi").empty()) {
      line += StrCat(", FFI ", text("ffi"), ffi_told ? "" : " (concluded from its age)");
    }
    if (!text("platform").empty()) {
      line += StrCat(", platform '", text("platform"), "', device '", text("device"), "'");
    }
    std::printf("  %s\n", line.c_str());
  }
  if (!runtime.unusable.empty()) {
    std::printf("  cannot be used: %s\n\n", runtime.unusable.c_str());
    return;
  }
  PrintMatrix(runtime, notes);
  std::printf("\n");
}

json ToJson(const Runtime& runtime) {
  json result = runtime.facts;
  result["runtime"] = runtime.title;
  result["path"] = runtime.path;
  if (!runtime.unusable.empty()) result["unusable"] = runtime.unusable;
  result["cells"] = json::array();
  const std::vector<ProbeCell> cells = AllProbeCells();
  for (size_t i = 0; runtime.unusable.empty() && i < cells.size(); ++i) {
    result["cells"].push_back({{"platform", cells[i].platform},
                               {"api_version", cells[i].api_version},
                               {"ok", runtime.outcomes[i].ok},
                               {"result", runtime.outcomes[i].result},
                               {"message", runtime.outcomes[i].message}});
  }
  return result;
}

Runtime PluginRuntime(const xla::FoundPlugin& plugin) {
  Runtime runtime;
  runtime.title =
      plugin.package.empty() ? plugin.path : StrCat(plugin.package, " ", plugin.version);
  runtime.path = plugin.path;
  runtime.command = {SelfPath(), "probe", "--child", plugin.path, "--first"};
  return runtime;
}

// The active environment's Python, or the one on PATH where none is active or it is gone.
std::string ActivePython() {
  if (const std::string environment = Env("VIRTUAL_ENV"); !environment.empty()) {
    std::string python = StrCat(environment, "/bin/python");
    if (access(python.c_str(), X_OK) == 0) return python;
  }
  return "python3";
}

// JAX's own runtimes, where a Python with jax and this package is there.
void AddJax(std::vector<Runtime>& runtimes) {
  const std::string python = ActivePython();
  // `python -c` and `-m` look for modules in the current folder first, where a jax.py may lie. (The
  // option for this, -P, is not in Python 3.10.)
  const std::string safe_path = "import sys\nif sys.path[:1] == ['']: del sys.path[0]\n";
  const auto there = RunLines({python, "-c", safe_path + "import jax, xla_gpu.jax"}, kCellTimeoutS,
                              [](const std::string&) { return false; });
  if (!there.ok() || there->exit_code != 0) return;
  for (const char* backend : {"cpu", "cuda"}) {
    if (std::string(backend) == "cuda" && !xla::MachineHasNvidiaGpu()) continue;
    Runtime runtime;
    runtime.title = StrCat("JAX, backend ", backend);
    runtime.command = {python, "-c",
                       safe_path +
                           "import runpy\n"
                           "runpy.run_module('xla_gpu.jax._probe', run_name='__main__')",
                       backend};
    runtimes.push_back(std::move(runtime));
  }
}

int ProbeAll(const Invocation& invocation) {
  bool as_json = false, no_jax = false;
  std::vector<std::string> names;
  std::string child;
  int64_t first = 0;
  if (const auto code = invocation.Parse({
          PluginsOption(&names),
          {"--no-jax", "", &no_jax, "leave out JAX's own runtimes"},
          {"--json", "", &as_json, "print JSON"},
          {"--child", "PATH", &child, ""},
          {"--first", "CELL", &first, "", {}, 0},
      })) {
    return *code;
  }
  if (!child.empty()) {
    const Status status = TryCells(child, static_cast<size_t>(first));
    if (!status.ok()) Say({{"unusable", status.message()}});
    return status.ok() ? 0 : 1;
  }

  std::vector<xla::FoundPlugin> plugins;
  if (names.empty()) plugins = xla::FindPjrtPlugins();
  for (const std::string& name : names) {
    const auto plugin = xla::ChoosePjrtPlugin(name);
    if (!plugin.ok()) return invocation.Fail(plugin.status());
    plugins.push_back(*plugin);
  }
  std::vector<Runtime> runtimes;
  for (const xla::FoundPlugin& plugin : plugins) runtimes.push_back(PluginRuntime(plugin));
  if (!no_jax && names.empty()) AddJax(runtimes);
  if (runtimes.empty()) return invocation.Fail(xla::ChoosePjrtPlugin("").status());

  json all = json::array();
  std::map<std::string, size_t> notes;
  bool any = false;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  for (Runtime& runtime : runtimes) {
    Probe(runtime, [&](size_t done) {
      if (!terminal) return;
      std::fprintf(stderr, "\r%s: %zu of %zu%s", runtime.title.c_str(), done,
                   runtime.outcomes.size(), done == runtime.outcomes.size() ? "\n" : "");
    });
    for (const ProbeOutcome& outcome : runtime.outcomes) any |= outcome.ok;
    if (as_json) {
      all.push_back(ToJson(runtime));
    } else {
      Print(runtime, notes);
    }
  }
  if (as_json) std::printf("%s\n", JsonText(all, 2).c_str());
  return any ? 0 : 1;
}

XLA_GPU_CLI_COMMAND("probe", "try every platform name and API version in every XLA found",
                    "probe --plugin cpu", ProbeAll);

}  // namespace
}  // namespace xla_gpu::cli
