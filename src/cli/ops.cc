// `xla-gpu ops`: schemas and the support matrix, made from the registry.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/cli.h"
#include "src/cli/program.h"
#include "src/core/op_registry.h"
#include "src/core/schema_json.h"
#include "src/core/strings.h"
#include "src/xla/handlers.h"

namespace xla_gpu::cli {
namespace {

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

// An argument, result or attribute.
struct Row {
  const char* kind;
  std::string name;
  bool optional = false;
  std::string doc;
  std::string type = {};           // of an attribute
  std::string default_value = {};  // of an attribute that has one
  const char* without = "";        // of one that has none: "none", "required"
};

std::vector<Row> Rows(const Op& op) {
  std::vector<Row> rows;
  for (const ArgSpec& arg : op.args) {
    rows.push_back(
        {"argument", arg.name, arg.optional, StrCat(DTypesText(arg.dtypes), " ", arg.doc)});
  }
  for (const ResultSpec& result : op.results) {
    const std::string alias =
        result.alias_of.empty() ? "" : StrCat("; shares the buffer of ", Code(result.alias_of));
    rows.push_back({"result", result.name,
                    !result.only_with.empty() || result.kind == ResultKind::kScratch,
                    result.doc + alias});
  }
  for (const AttrSpec& attr : op.attrs) {
    std::string doc = attr.dtypes.empty() ? "" : StrCat(DTypesText(attr.dtypes), "; ");
    doc += attr.doc;
    if (!attr.environment.empty()) doc += StrCat("; ", attr.environment, "=1 makes it the default");
    rows.push_back({"attribute", attr.name, false, doc, std::string(AttrTypeName(attr.type)),
                    attr.default_value ? AttrToString(*attr.default_value) : "",
                    attr.none_is_default ? "none" : "required"});
  }
  return rows;
}

void PrintMarkdown(const std::vector<const Op*>& ops) {
  std::printf("| op | custom-call target | Host | CUDA |\n|---|---|---|---|\n");
  for (const Op* op : ops) {
    std::printf("| %s | %s | %s | %s |\n", Code(op->name).c_str(), Code(op->target).c_str(),
                Doors(*op, Platform::kHost).c_str(), Doors(*op, Platform::kCuda).c_str());
  }
  for (const Op* op : ops) {
    std::printf("\n## %s\n\n%s\n", op->name.c_str(), op->doc.c_str());
    std::string_view kind;
    for (const Row& row : Rows(*op)) {
      if (row.kind != kind) {
        std::printf("\n| %s |%s |\n|---|%s---|\n", row.kind,
                    row.type.empty() ? "" : " type | default |",
                    row.type.empty() ? "" : "---|---|");
      }
      kind = row.kind;
      std::printf("| %s%s |", Code(row.name).c_str(), row.optional ? " (optional)" : "");
      if (!row.type.empty()) {
        std::printf(" %s | %s |", row.type.c_str(),
                    row.default_value.empty() ? row.without : Code(row.default_value).c_str());
      }
      std::printf(" %s |\n", Cell(row.doc).c_str());
    }
  }
}

void PrintText(const std::vector<const Op*>& ops) {
  for (const Op* op : ops) {
    std::printf("%s%s (custom-call target %s)\n  %s\n", op == ops[0] ? "" : "\n", op->name.c_str(),
                op->target.c_str(), op->doc.c_str());
    for (const Platform platform : {Platform::kHost, Platform::kCuda}) {
      std::printf("  %-9s  %s\n", std::string(PlatformName(platform)).c_str(),
                  Doors(*op, platform).c_str());
    }
    for (const Row& row : Rows(*op)) {
      std::string note = row.optional ? " (optional)" : "";
      if (!row.type.empty()) {
        note =
            StrCat(" (", row.type, ", ",
                   row.default_value.empty() ? row.without : "default " + row.default_value, ")");
      }
      std::printf("  %-9s  %s%s: %s\n", row.kind, row.name.c_str(), note.c_str(), row.doc.c_str());
    }
  }
}

void PrintJson(const std::vector<const Op*>& ops) {
  auto all = nlohmann::ordered_json::parse(OpsToJson(OpRegistry::Global()));
  std::erase_if(all.get_ref<nlohmann::ordered_json::array_t&>(), [&](const auto& json) {
    return std::ranges::none_of(ops, [&](const Op* op) { return json["name"] == op->name; });
  });
  std::printf("%s\n", all.dump(2).c_str());
}

int Ops(const Invocation& invocation) {
  std::vector<std::string> names;
  bool json = false, markdown = false;
  if (const auto code = invocation.Parse({
          {"NAME", "", &names, "an op's name or custom-call target; default: every op"},
          {"--json", "", &json, "print JSON"},
          {"--markdown", "", &markdown, "print Markdown, the table of platforms first"},
      })) {
    return *code;
  }
  if (json && markdown) return invocation.WrongUsage("one of --json and --markdown is allowed");
  std::vector<const Op*> ops;
  for (const std::string& name : names) {
    const auto op = FindOp(name);
    if (!op.ok()) return invocation.WrongUsage(op.status().message());
    ops.push_back(*op);
  }
  if (names.empty()) {
    for (const auto& op : OpRegistry::Global().ops()) ops.push_back(op.get());
    // The order of registration is the linker's.
    std::ranges::sort(ops, {}, &Op::name);
  }
  (json ? PrintJson : markdown ? PrintMarkdown : PrintText)(ops);
  return 0;
}

XLA_GPU_CLI_COMMAND("ops", "the ops: arguments, results, attributes, custom-call targets",
                    "ops simple_add", Ops);

}  // namespace
}  // namespace xla_gpu::cli
