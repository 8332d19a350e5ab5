#include "src/cli/npy.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeader = 1 << 20;
constexpr size_t kMaxRank = 32;

// NumPy's name, after the byte order: "f4"; empty for what has none (see npy.h).
std::string NumpyName(const DTypeInfo& info) {
  constexpr std::string_view kKinds = "iuf   b";  // by DLPack's code
  if (info.dlpack >= kKinds.size() || kKinds[info.dlpack] == ' ') return "";
  return StrCat(kKinds[info.dlpack], info.size);
}

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// The header is a Python dict literal with three keys: {'descr': '<f4', 'fortran_order': False,
// 'shape': (2, 3), }. This reads such literals, and no others.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  StatusOr<Header> Parse() {
    Header header;
    bool seen[3] = {};
    if (!Take('{')) return Bad("it does not begin with {");
    while (!Take('}')) {
      std::string key;
      if (!TakeString(&key) || !Take(':')) return Bad("a key is missing");
      if (key == "descr") {
        seen[0] = true;
        if (!TakeString(&header.descr)) {
          return Bad("'descr' is no string (structured types are not supported)");
        }
      } else if (key == "fortran_order") {
        seen[1] = true;
        if (!TakeBool(&header.fortran_order)) return Bad("'fortran_order' is no bool");
      } else if (key == "shape") {
        seen[2] = true;
        if (!TakeTuple(&header.shape)) return Bad("'shape' is no tuple of sizes");
      } else {
        return Bad(StrCat("key '", key, "' is unknown"));
      }
      if (!Take(',') && !Peek('}')) return Bad("a comma is missing");
    }
    if (!seen[0] || !seen[1] || !seen[2]) {
      return Bad("'descr', 'fortran_order' or 'shape' is missing");
    }
    return header;
  }

 private:
  static Status Bad(const std::string& why) {
    return InvalidArgument(StrCat("the .npy header is malformed: ", why));
  }
  void SkipSpace() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Peek(char c) {
    SkipSpace();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool Take(char c) { return TakeWord({&c, 1}); }
  bool TakeString(std::string* out) {
    if (!Take('\'')) return false;
    const size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) return false;
    *out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }
  bool TakeBool(bool* out) {
    *out = TakeWord("True");
    return *out || TakeWord("False");
  }
  bool TakeTuple(std::vector<int64_t>* out) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      int64_t value = 0;
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0 || out->size() == kMaxRank) return false;
      out->push_back(value);
      at_ += static_cast<size_t>(end - begin);
      if (!Take(',') && !Peek(')')) return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

StatusOr<DType> ParseDescr(std::string_view descr, DType expected) {
  const std::string_view name =
      descr.find_first_of("<|=") == 0 ? descr.substr(1) : std::string_view();
  const auto named = [name](const DTypeInfo& info) { return name == NumpyName(info); };
  if (const auto dtype = FindDType(named); dtype && !name.empty()) return *dtype;
  if (name == "f1") return DType::kF8E5M2;
  if (name == "V2" && (expected == DType::kBF16 || expected == DType::kInvalid)) {
    return DType::kBF16;
  }
  if (name == "V1" && IsFloat8(expected)) return expected;
  return InvalidArgument(
      StrCat("the .npy dtype is '", descr,
             "'; allowed are, little-endian, bool, int8 to int64, uint8 to uint64, float16, "
             "float32, float64, bfloat16 ('<V2') and, where an fp8 type is expected, '<V1'"));
}

std::string FormatDescr(DType dtype) {
  const std::string name = NumpyName(InfoOf(dtype));
  if (name.empty()) return StrCat("<V", DTypeSize(dtype));
  return StrCat(DTypeSize(dtype) == 1 ? '|' : '<', name);
}

}  // namespace

StatusOr<HostTensor> ParseNpy(std::string_view bytes, DType expected) {
  if (bytes.size() < 10 || !bytes.starts_with(kMagic)) {
    return InvalidArgument("this is no .npy file (it does not begin with \\x93NUMPY)");
  }
  const auto byte = [&bytes](size_t i) {
    return static_cast<size_t>(static_cast<uint8_t>(bytes[i]));
  };
  const size_t major = byte(6);
  if (major < 1 || major > 3) {
    return InvalidArgument(StrCat("the .npy format version is ", major, "; 1 to 3 are allowed"));
  }
  const size_t start = major == 1 ? 10 : 12;
  if (bytes.size() < start) return InvalidArgument("the .npy file ends within its header");
  size_t header_size = byte(8) | byte(9) << 8;
  if (major > 1) header_size |= byte(10) << 16 | byte(11) << 24;
  if (header_size > kMaxHeader || header_size > bytes.size() - start) {
    return InvalidArgument(StrCat("the .npy header has ", header_size,
                                  " bytes, but the file ends or the limit of ", kMaxHeader,
                                  " is reached before"));
  }
  XLA_GPU_ASSIGN_OR_RETURN(Header header, HeaderParser(bytes.substr(start, header_size)).Parse());
  XLA_GPU_ASSIGN_OR_RETURN(const DType dtype, ParseDescr(header.descr, expected));
  if (header.fortran_order && header.shape.size() > 1) {
    return InvalidArgument("the .npy array is in Fortran order; save np.ascontiguousarray of it");
  }

  const std::string_view data = bytes.substr(start + header_size);
  const auto element = static_cast<size_t>(DTypeSize(dtype));
  const bool empty = std::ranges::find(header.shape, 0) != header.shape.end();
  size_t wanted = empty ? 0 : element;
  bool overflow = false;
  for (const int64_t dim : header.shape) {
    overflow |= !empty && __builtin_mul_overflow(wanted, static_cast<size_t>(dim), &wanted);
  }
  if (overflow || wanted != data.size()) {
    return InvalidArgument(StrCat("the .npy file holds ", data.size(), " bytes of data, but ",
                                  TypeToString(dtype, header.shape), " needs ",
                                  overflow ? "more than 2^64" : StrCat(wanted)));
  }
  HostTensor tensor{dtype, std::move(header.shape), {}};
  tensor.data.assign(data.begin(), data.end());
  return tensor;
}

std::string FormatNpy(const HostTensor& tensor) {
  std::string header =
      StrCat("{'descr': '", FormatDescr(tensor.dtype), "', 'fortran_order': False, 'shape': (");
  for (const int64_t dim : tensor.shape) header += StrCat(dim, ", ");
  header += "), }";
  // NumPy aligns the data to 64 bytes by spaces, and ends the header with a newline.
  const size_t start = kMagic.size() + 4;
  header.append(64 - (start + header.size() + 1) % 64, ' ');
  header += '\n';
  std::string bytes(kMagic);
  bytes.append("\x01\x00", 2);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  return bytes;
}

StatusOr<HostTensor> ReadNpy(const std::string& path, DType expected, uint64_t max_data) {
  const uint64_t limit = max_data + kMaxHeader + 12;
  XLA_GPU_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, limit));
  StatusOr<HostTensor> tensor = ParseNpy(bytes, expected);
  if (tensor.ok()) return tensor;
  return Status(tensor.status().code(), StrCat(path, ": ", tensor.status().message()));
}

Status WriteNpy(const std::string& path, const HostTensor& tensor) {
  return WriteFile(path, FormatNpy(tensor));
}

}  // namespace xla_gpu::cli
