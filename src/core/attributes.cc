#include "src/core/attributes.h"

#include <algorithm>
#include <memory>

#include "src/core/strings.h"

namespace xla_gpu {

std::string_view AttrTypeName(AttrType type) {
  constexpr std::string_view kNames[] = {"bool", "int", "float", "string", "int array", "dtype"};
  return kNames[static_cast<size_t>(type)];
}

std::string AttrToString(const AttrValue& value) {
  static constexpr size_t kShown = 100;  // of what may be long
  struct Printer {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return StrCat(v); }
    std::string operator()(std::string_view v) const {
      return StrCat('"', v.substr(0, kShown), v.size() > kShown ? "..." : "", '"');
    }
    std::string operator()(std::span<const int64_t> v) const {
      return StrCat("[", StrJoin(v.first(std::min(v.size(), kShown)), ","),
                    v.size() > kShown ? ",..." : "", "]");
    }
  };
  return std::visit(Printer{}, value);
}

Status Attributes::Add(std::string_view name, AttrValue value) {
  if (Find(name) != nullptr) {
    return InvalidArgument("attribute '", name, "' is given twice");
  }
  if (size_ == kMaxAttributes) {
    return InvalidArgument("attribute '", name, "' is one too many: at most ", kMaxAttributes,
                           " attributes are allowed");
  }
  std::construct_at(items_ + size_++, Attribute{name, value});
  return OkStatus();
}

void Attributes::Remove(std::string_view name) {
  const auto end = std::remove_if(items_, items_ + size_,
                                  [name](const Attribute& item) { return item.name == name; });
  size_ = static_cast<size_t>(end - items_);
}

const AttrValue* Attributes::Find(std::string_view name) const {
  for (const Attribute& item : all()) {
    if (item.name == name) return &item.value;
  }
  return nullptr;
}

bool Attributes::GetBool(std::string_view name, bool fallback) const {
  const bool* held = std::get_if<bool>(Find(name));
  return held == nullptr ? fallback : *held;
}

int64_t Attributes::GetInt(std::string_view name, int64_t fallback) const {
  const int64_t* held = std::get_if<int64_t>(Find(name));
  return held == nullptr ? fallback : *held;
}

double Attributes::GetFloat(std::string_view name, double fallback) const {
  const AttrValue* value = Find(name);
  if (const int64_t* held = std::get_if<int64_t>(value)) return static_cast<double>(*held);
  const double* held = std::get_if<double>(value);
  return held == nullptr ? fallback : *held;
}

std::string_view Attributes::GetString(std::string_view name, std::string_view fallback) const {
  const auto* held = std::get_if<std::string_view>(Find(name));
  return held == nullptr ? fallback : *held;
}

}  // namespace xla_gpu
