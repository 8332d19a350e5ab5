#include "src/ops/paged_attention/cuda/tuning.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/core/file.h"
#include "src/core/json_tree.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/cuda/cache_admin.h"
#include "src/cuda/disk_cache.h"

namespace xla_gpu::paged_attention {
namespace {

constexpr uint64_t kMaxBytes = 16 << 20;
constexpr std::string_view kKey = "paged_attention's tuning table";

// Null where XLA_GPU_TUNING is unset.
const char* File() { return std::getenv("XLA_GPU_TUNING"); }

TuningTable ReadForCalls() {
  StatusOr<TuningTable> table = TuningTable::Read();
  if (table.ok()) return *std::move(table);
  LogWarningOnce(StrCat(table.status().message(), " (no table of xla-gpu tune is used)"));
  return {};
}

}  // namespace

StatusOr<TuningTable> TuningTable::Parse(std::string_view text) {
  XLA_GPU_ASSIGN_OR_RETURN(json::Node root, json::Parse(text));
  XLA_GPU_ASSIGN_OR_RETURN(const json::Reader all,
                           json::Reader::Open("the table", root, {"xla_gpu", "choices"}, 2));
  std::string version;
  XLA_GPU_RETURN_IF_ERROR(all.Read("xla_gpu", version));
  if (version != XLA_GPU_VERSION) {
    return FailedPrecondition("the table is of xla_gpu ", json::Excerpt(version), ", and this is ",
                              XLA_GPU_VERSION,
                              ", whose kernels are others: run xla-gpu tune again");
  }
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<json::Node>* const items, all.Items("choices"));
  TuningTable table;
  for (size_t i = 0; i < items->size(); ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(const json::Reader item,
                             json::Reader::Open(StrCat("choices[", i, "]"), (*items)[i],
                                                {"device", "problem", "launches"}, 3));
    std::string device, problem, launches;
    XLA_GPU_RETURN_IF_ERROR(item.Read("device", device));
    XLA_GPU_RETURN_IF_ERROR(item.Read("problem", problem));
    XLA_GPU_RETURN_IF_ERROR(item.Read("launches", launches));
    table.choices[{std::move(device), std::move(problem)}] = std::move(launches);
  }
  return table;
}

std::string TuningTable::ToJson() const {
  auto items = nlohmann::ordered_json::array();
  for (const auto& [of, launches] : choices) {
    items.push_back({{"device", of.first}, {"problem", of.second}, {"launches", launches}});
  }
  const nlohmann::ordered_json all = {{"xla_gpu", XLA_GPU_VERSION}, {"choices", items}};
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string TuningTable::Place() {
  if (File() != nullptr) return File();
  const std::string folder = cuda::DiskCache::DefaultFolder();
  return folder.empty() ? "" : StrCat("the kernel cache ", folder);
}

StatusOr<TuningTable> TuningTable::Read() {
  std::string text;
  if (File() == nullptr) {
    XLA_GPU_ASSIGN_OR_RETURN(text, cuda::ReadKept(kKey));
  } else if (access(File(), F_OK) == 0) {
    XLA_GPU_ASSIGN_OR_RETURN(text, ReadFile(File(), kMaxBytes));
  }
  if (text.empty()) return TuningTable();
  StatusOr<TuningTable> table = Parse(text);
  if (table.ok()) return table;
  return Status(table.status().code(), StrCat(Place(), ": ", table.status().message()));
}

Status TuningTable::Write() const {
  if (Place().empty()) {
    return FailedPrecondition(
        "there is no place for the table: XLA_GPU_TUNING is empty, or it is "
        "unset and there is no cache of kernels");
  }
  if (File() == nullptr) {
    return cuda::Keep(kKey, StrCat(kKey, ", ", choices.size(), " problems"), ToJson());
  }
  // Renamed, so that nobody reads half of it.
  const std::string temp = StrCat(File(), ".", getpid(), ".tmp");
  XLA_GPU_RETURN_IF_ERROR(WriteFile(temp, ToJson()));
  if (std::rename(temp.c_str(), File()) == 0) return OkStatus();
  Status status = Unavailable(File(), ": cannot be written: ", std::strerror(errno));
  unlink(temp.c_str());
  return status;
}

std::string Describe(const cuda::DeviceInfo& device) {
  return StrCat(device.name, ", ", device.Arch(), ", ", device.num_sms, " multiprocessors");
}

StatusOr<Config> TunedConfig(const Problem& problem, const cuda::DeviceInfo& device,
                             const TuningTable& table) {
  const auto found = table.choices.empty()
                         ? table.choices.end()
                         : table.choices.find({Describe(device), Describe(problem)});
  if (found == table.choices.end()) return ChooseConfig(problem, device);
  XLA_GPU_ASSIGN_OR_RETURN(std::vector<Config> all, Alternatives(problem, device));
  const auto chosen = std::ranges::find(all, found->second, NameOf);
  if (chosen != all.end()) {
    chosen->tuned = true;
    return *chosen;
  }
  LogWarningOnce(StrCat("the table of xla-gpu tune says '", json::Excerpt(found->second), "' for ",
                        found->first.second, " on ", found->first.first, ", which is none of ",
                        StrJoin(all, ", ", NameOf), "; it is ignored"));
  return all[0];
}

StatusOr<Config> TunedConfig(const Problem& problem, const cuda::DeviceInfo& device) {
  static const TuningTable* const table = new TuningTable(ReadForCalls());
  return TunedConfig(problem, device, *table);
}

}  // namespace xla_gpu::paged_attention
