#include "src/xla/hlo_proto.h"

#include <cstdint>

namespace xla_gpu::xla {
namespace {

// The fields of one message, in their order on the wire.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  // Moves to the next field; false at the end, and at what is no protobuf (then !ok()).
  bool Next() {
    if (rest_.empty() || !ok_) return false;
    const uint64_t tag = Varint();
    number_ = tag >> 3;
    value_ = 0;
    bytes_ = {};
    is_bytes_ = (tag & 7) == kBytes;
    switch (tag & 7) {
      case kVarint:
        value_ = Varint();
        break;
      case kFixed64:
        Take(8);
        break;
      case kBytes:
        bytes_ = Take(Varint());
        break;
      case kFixed32:
        Take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }
  uint64_t number() const { return number_; }
  uint64_t value() const { return value_; }  // of a varint field
  bool is_bytes() const { return is_bytes_; }
  std::string_view bytes() const { return bytes_; }  // of a length-delimited one

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  bool empty() const { return rest_.empty() || !ok_; }

 private:
  enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      size = 0;
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  std::string_view bytes_;
  uint64_t number_ = 0;
  uint64_t value_ = 0;
  bool is_bytes_ = false;
  bool ok_ = true;
};

// A repeated int64 field, packed or not, appended to `out`; false if it is none.
bool AppendInts(const Fields& field, std::vector<int64_t>& out) {
  if (!field.is_bytes()) {
    out.push_back(static_cast<int64_t>(field.value()));
    return true;
  }
  Fields packed(field.bytes());
  while (!packed.empty()) out.push_back(static_cast<int64_t>(packed.Varint()));
  return packed.ok();
}

// A ShapeProto.
std::optional<TensorSpec> Shape(std::string_view bytes) {
  enum : uint64_t { kElementType = 2, kDimensions = 3, kIsDynamicDimension = 6 };
  TensorSpec spec;
  std::vector<int64_t> dynamic;
  bool ok = true;
  Fields field(bytes);
  while (field.Next()) {
    if (field.number() == kElementType) spec.dtype = DTypeFromInt(static_cast<int>(field.value()));
    if (field.number() == kDimensions) ok = ok && AppendInts(field, spec.shape);
    if (field.number() == kIsDynamicDimension) ok = ok && AppendInts(field, dynamic);
  }
  for (const int64_t is_dynamic : dynamic) {
    if (is_dynamic != 0) return std::nullopt;
  }
  if (!ok || !field.ok() || DTypeSize(spec.dtype) == 0) return std::nullopt;
  return spec;
}

// The last message of field `number`; empty if there is none.
std::string_view Message(std::string_view bytes, uint64_t number) {
  std::string_view found;
  Fields field(bytes);
  while (field.Next()) {
    if (field.number() == number) found = field.bytes();
  }
  return field.ok() ? found : std::string_view();
}

}  // namespace

std::optional<std::vector<std::optional<TensorSpec>>> HloParameters(std::string_view proto,
                                                                    bool with_config) {
  enum : uint64_t { kHloModule = 1, kHostProgramShape = 4, kParameters = 1 };
  const std::string_view module = with_config ? Message(proto, kHloModule) : proto;
  const std::string_view program_shape = Message(module, kHostProgramShape);
  // It has a result at least.
  if (program_shape.empty()) return std::nullopt;
  std::vector<std::optional<TensorSpec>> parameters;
  Fields field(program_shape);
  while (field.Next()) {
    if (field.number() == kParameters) parameters.push_back(Shape(field.bytes()));
  }
  if (!field.ok()) return std::nullopt;
  return parameters;
}

}  // namespace xla_gpu::xla
