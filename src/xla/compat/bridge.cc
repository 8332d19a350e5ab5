#include "src/xla/compat/bridge.h"

#include <algorithm>
#include <cstring>

#include "src/core/strings.h"

namespace xla_gpu::xla {

BridgedStruct::BridgedStruct(void* framework, const StructHistory& history, int minor)
    : framework_(static_cast<char*>(framework)), history_(history) {
  // A missing struct, or one smaller than any release's, is the plugin's to refuse, in its words.
  if (framework == nullptr) return;
  std::memcpy(&framework_size_, framework_, sizeof(framework_size_));
  if (framework_size_ < history.sizes.front().size) return;
  const size_t newest = history.sizes.back().size;
  const size_t needed = history.SizeAt(minor);
  if (framework_size_ < needed) {
    // Zero in members that a later release added means "as before", and a struct that is larger
    // than needed is taken, so a plugin that grew without saying so is served as well.
    Extend(newest);
  } else if (framework_size_ > needed && minor < history.sizes.back().since) {
    Truncate(needed, minor);
  }
}

void BridgedStruct::Extend(size_t size) {
  copied_ = true;
  common_ = framework_size_;
  std::memset(copy_.data(), 0, size);
  std::memcpy(copy_.data(), framework_, common_);
  std::memcpy(copy_.data(), &size, sizeof(size));
}

void BridgedStruct::Truncate(size_t size, int minor) {
  size_t begin = size;
  const auto refuse_if_set = [&](size_t end, const std::string& members) {
    end = std::min(end, framework_size_);
    if (begin < end &&
        std::any_of(framework_ + begin, framework_ + end, [](char c) { return c != 0; })) {
      status_ = Unimplemented(history_.name, ": the framework sets ", members,
                              ", but the plugin has PJRT 0.", minor,
                              " and would ignore it; use a newer plugin (set "
                              "XLA_GPU_PJRT_PLUGIN)");
    }
  };
  for (const StructSize& entry : history_.sizes) {
    if (entry.since <= minor) continue;
    if (entry.kind == Added::kInput) {
      refuse_if_set(entry.size, StrCat(entry.members, ", which PJRT 0.", entry.since, " brought"));
    }
    begin = entry.size;
  }
  // A framework newer than the table: what it adds to a struct of results is one, else a wish.
  const StructSize& newest = history_.sizes.back();
  if (newest.kind != Added::kOutput) {
    refuse_if_set(framework_size_, StrCat("members newer than PJRT 0.", newest.since));
  }
  if (!status_.ok()) return;
  copied_ = true;
  common_ = size;
  std::memcpy(copy_.data(), framework_, common_);
  std::memcpy(copy_.data(), &size, sizeof(size));
}

void BridgedStruct::CopyBack() {
  if (!copied_) return;
  constexpr size_t kHead = sizeof(size_t);  // struct_size stays what it was
  std::memcpy(framework_ + kHead, copy_.data() + kHead, common_ - kHead);
  // Results that the plugin does not know read as zero, not as what lay there.
  for (size_t i = 1; i < history_.sizes.size(); ++i) {
    if (history_.sizes[i].kind != Added::kOutput) continue;
    const bool last = i + 1 == history_.sizes.size();
    const size_t begin = std::max(history_.sizes[i - 1].size, common_);
    const size_t end = last ? framework_size_ : std::min(history_.sizes[i].size, framework_size_);
    if (begin < end) std::memset(framework_ + begin, 0, end - begin);
  }
}

}  // namespace xla_gpu::xla
