#include "src/cuda/ptxas_log.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::cuda {
namespace {

// The number in front of `what`: "32 registers", "384 bytes smem"; adds up where it comes again.
void Add(std::string_view line, std::string_view what, int64_t& out) {
  for (size_t at = 0; (at = line.find(what, at)) != line.npos; at += what.size()) {
    size_t begin = at;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1])) != 0) --begin;
    int64_t number = 0;
    std::from_chars(line.data() + begin, line.data() + at, number);
    if (number < int64_t{1} << 40) out += number;  // more is no size
  }
}

// The text between quotes.
std::string_view Quoted(std::string_view line) {
  const size_t begin = line.find('\'');
  const size_t end = line.find('\'', begin + 1);
  return begin == line.npos || end == line.npos ? "" : line.substr(begin + 1, end - begin - 1);
}

}  // namespace

std::vector<KernelResources> ParsePtxasLog(std::string_view log) {
  std::vector<KernelResources> kernels;
  bool in_kernel = false;  // not in a function that one calls
  for (const std::string_view line : Lines(log)) {
    if (line.find("Compiling entry function") != line.npos) {
      kernels.push_back({.kernel = std::string(Quoted(line))});
    }
    const size_t of = line.find("Function properties for ");
    if (of != line.npos) in_kernel = !kernels.empty() && line.ends_with(kernels.back().kernel);
    if (kernels.empty()) continue;
    KernelResources& last = kernels.back();
    if (in_kernel) {
      Add(line, " bytes stack frame", last.stack_bytes);
      Add(line, " bytes spill stores", last.spill_store_bytes);
      Add(line, " bytes spill loads", last.spill_load_bytes);
    }
    if (line.find("Used ") == line.npos) continue;
    Add(line, " registers", last.registers);
    Add(line, " barriers", last.barriers);
    Add(line, " bytes smem", last.shared_bytes);
  }
  return kernels;
}

int64_t MaxThreads(const KernelResources& resources, std::string_view ptx) {
  constexpr int64_t kMost = 1024, kRegisters = 65536, kWarp = 32, kGranularity = 256;
  const size_t entry = ptx.find(StrCat(".entry ", resources.kernel, "("));
  if (entry != ptx.npos) {
    const std::string_view head = ptx.substr(entry, ptx.find('{', entry) - entry);
    constexpr std::string_view kBounds = ".maxntid";
    if (const size_t at = head.find(kBounds); at != head.npos) {
      int64_t threads = 1;
      const char* from = head.data() + at + kBounds.size();
      const char* const end = head.data() + head.size();
      for (int64_t size = 0; from != end; ++from) {
        from = std::find_if(from, end, [](char c) { return c != ' ' && c != ','; });
        const auto [rest, error] = std::from_chars(from, end, size);
        if (error != std::errc() || size < 1 || size > kMost) break;
        threads = std::min(kMost, threads * size);
        from = rest;
        if (from == end || *from != ',') break;
      }
      return threads;
    }
  }
  const int64_t of_warp =
      std::max<int64_t>(1, (resources.registers * kWarp + kGranularity - 1) / kGranularity);
  return std::min(kMost, kRegisters / (of_warp * kGranularity) * kWarp);
}

}  // namespace xla_gpu::cuda
