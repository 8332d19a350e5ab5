// `xla-gpu ops`: schemas and the support matrix, made from the registry.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/cli.h"
#include "src/core/op_registry.h"
#include "src/core/schema_json.h"
#include "src/core/strings.h"
#include "src/xla/handlers.h"

namespace xla_gpu::cli {
namespace {

// By name: the order of registration is the linker's.
std::vector<const Op*> SortedOps() {
  std::vector<const Op*> ops;
  for (const auto& op : OpRegistry::Global().ops()) ops.push_back(op.get());
  std::ranges::sort(ops, {}, &Op::name);
  return ops;
}

// How an op is reached on a platform, or "-" without a kernel. Host calls of versions 1 and 2 carry
// no configuration, so theirs lies in an alias of the target (xla_gpu_alias).
std::string Doors(const Op& op, Platform platform) {
  if (op.make_plan[static_cast<int>(platform)] == nullptr) return "-";
  std::vector<std::string> versions;
  for (int version = 1; version <= 4; ++version) {
    const bool direct = xla::HandlerAddress(op, platform, version).ok();
    versions.push_back(StrCat(version, direct ? "" : " (alias)"));
  }
  return StrCat("custom call ", StrJoin(versions, ", "), "; C ABI");
}

// A cell of a Markdown table holds no bar and no line break.
std::string Cell(const std::string& text) {
  std::string cell;
  for (char c : text) {
    if (c == '|') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

std::string Code(std::string_view text) { return StrCat("`", text, "`"); }

std::string Doc(const ArgSpec& arg) { return StrCat(DTypesText(arg.dtypes), " ", arg.doc); }

const char* Optional(const ResultSpec& result) {
  const bool always = result.only_with.empty() && result.kind != ResultKind::kScratch;
  return always ? "" : " (optional)";
}

std::string Default(const AttrSpec& attr) {
  if (attr.default_value.has_value()) return AttrToString(*attr.default_value);
  return attr.none_is_default ? "none" : "required";
}

std::string Doc(const AttrSpec& attr) {
  std::string doc = attr.dtypes.empty() ? "" : StrCat(DTypesText(attr.dtypes), "; ");
  doc += attr.doc;
  if (!attr.environment.empty()) doc += StrCat("; ", attr.environment, "=1 makes it the default");
  return doc;
}

void PrintMatrix() {
  std::printf("| op | custom-call target | Host | CUDA |\n|---|---|---|---|\n");
  for (const Op* op : SortedOps()) {
    std::printf("| %s | %s | %s | %s |\n", Code(op->name).c_str(), Code(op->target).c_str(),
                Doors(*op, Platform::kHost).c_str(), Doors(*op, Platform::kCuda).c_str());
  }
}

void PrintMarkdown() {
  PrintMatrix();
  for (const Op* op : SortedOps()) {
    std::printf("\n## %s\n\n%s\n", op->name.c_str(), op->doc.c_str());
    std::printf("\n| argument | |\n|---|---|\n");
    for (const ArgSpec& arg : op->args) {
      std::printf("| %s%s | %s |\n", Code(arg.name).c_str(), arg.optional ? " (optional)" : "",
                  Cell(Doc(arg)).c_str());
    }
    std::printf("\n| result | |\n|---|---|\n");
    for (const ResultSpec& result : op->results) {
      const std::string alias =
          result.alias_of.empty() ? "" : StrCat("; shares the buffer of ", Code(result.alias_of));
      std::printf("| %s%s | %s%s |\n", Code(result.name).c_str(), Optional(result),
                  Cell(result.doc).c_str(), alias.c_str());
    }
    if (op->attrs.empty()) continue;
    std::printf("\n| attribute | type | default | |\n|---|---|---|---|\n");
    for (const AttrSpec& attr : op->attrs) {
      const std::string fallback =
          attr.default_value.has_value() ? Code(Default(attr)) : Default(attr);
      std::printf("| %s | %s | %s | %s |\n", Code(attr.name).c_str(),
                  std::string(AttrTypeName(attr.type)).c_str(), fallback.c_str(),
                  Cell(Doc(attr)).c_str());
    }
  }
}

void PrintText() {
  for (const Op* op : SortedOps()) {
    std::printf("%s (custom-call target %s)\n  %s\n", op->name.c_str(), op->target.c_str(),
                op->doc.c_str());
    for (int p = 0; p < kNumPlatforms; ++p) {
      const auto platform = static_cast<Platform>(p);
      std::printf("  %-4s  %s\n", std::string(PlatformName(platform)).c_str(),
                  Doors(*op, platform).c_str());
    }
    for (const ArgSpec& arg : op->args) {
      std::printf("  arg     %s%s: %s\n", arg.name.c_str(), arg.optional ? " (optional)" : "",
                  Doc(arg).c_str());
    }
    for (const ResultSpec& result : op->results) {
      std::printf("  result  %s%s: %s\n", result.name.c_str(), Optional(result),
                  result.doc.c_str());
    }
    for (const AttrSpec& attr : op->attrs) {
      std::printf("  attr    %s (%s, %s): %s\n", attr.name.c_str(),
                  std::string(AttrTypeName(attr.type)).c_str(), Default(attr).c_str(),
                  Doc(attr).c_str());
    }
    std::printf("\n");
  }
}

int RunOps(const Args& args) {
  if (args.empty()) {
    PrintText();
  } else if (args == Args{"--json"}) {
    std::printf("%s\n",
                nlohmann::ordered_json::parse(OpsToJson(OpRegistry::Global())).dump(2).c_str());
  } else if (args == Args{"--markdown"}) {
    PrintMarkdown();
  } else {
    std::fprintf(stderr,
                 "xla-gpu ops: unknown argument '%s'; usage: xla-gpu ops [--json | --markdown]\n",
                 args.back().c_str());
    return 2;
  }
  return 0;
}

XLA_GPU_CLI_COMMAND("ops", "ops [--json | --markdown]",
                    "The ops: schemas, custom-call targets, platforms and API versions.", RunOps);

}  // namespace
}  // namespace xla_gpu::cli
