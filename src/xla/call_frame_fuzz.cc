// Calls of every Host op, built from fuzz bytes and sent through the doors as a runtime would:
// typed call frames and legacy calls. Most calls are sound
// or nearly so, with buffers of exactly the right size and random contents, so that the kernels run
// and a sanitizer sees each byte that they should not touch; the others have wrong counts, ranks,
// dtypes, sizes, attributes and null pointers. No call may crash.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/core/fuzz_seeds.h"
#include "src/core/op_registry.h"
#include "src/xla/fake_ffi_runtime.h"
#include "src/xla/legacy.h"
#include "src/xla/opaque.h"
#include "src/xla/typed_ffi.h"

namespace xla_gpu::xla {
namespace {

constexpr int64_t kMaxBufferBytes = 1 << 16;  // larger tensors come with a null pointer

constexpr DType kDTypes[] = {DType::kF32,      DType::kBF16,   DType::kF16, DType::kI32,
                             DType::kF8E4M3FN, DType::kF8E5M2, DType::kF64, DType::kI64,
                             DType::kPred,     DType::kU8,     DType::kI8,  DType::kU16,
                             DType::kU32,      DType::kU64,    DType::kI16};
constexpr DType kComputeTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kCacheTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN,
                                 DType::kF8E5M2};

// Dimensions at which sizes overflow or shapes degenerate.
constexpr int64_t kOddDims[] = {0,
                                -1,
                                1,
                                2,
                                3,
                                7,
                                257,
                                1 << 16,
                                int64_t{1} << 31,
                                int64_t{1} << 40,
                                std::numeric_limits<int64_t>::max(),
                                std::numeric_limits<int64_t>::min()};

class CallBuilder {
 public:
  explicit CallBuilder(FuzzedDataProvider& bytes) : bytes_(bytes) {}

  OpaqueCall Build() {
    OpaqueCall call;
    const auto& ops = OpRegistry::Global().ops();
    call.op = ops[Below(ops.size())]->name;
    if (call.op == "paged_attention") {
      PagedAttention(call);
    } else if (call.op == "update_kv_cache") {
      UpdateKvCache(call);
    } else if (call.op == "ragged_paged_attention_v3") {
      RaggedPagedAttentionV3(call);
    } else {
      Elementwise(call);
    }
    if (Chance(3)) Mutate(call);
    AddResults(call);
    return call;
  }

 private:
  size_t Below(size_t n) { return bytes_.ConsumeIntegralInRange<size_t>(0, n - 1); }
  int64_t Int(int64_t low, int64_t high) {
    return bytes_.ConsumeIntegralInRange<int64_t>(low, high);
  }
  bool Chance(int one_in) { return Below(static_cast<size_t>(one_in)) == 0; }
  template <size_t n>
  DType Pick(const DType (&types)[n]) {
    return types[Below(n)];
  }

  void Elementwise(OpaqueCall& call) {
    static constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32};
    TensorSpec spec{Pick(kTypes), {}};
    for (int64_t rank = Int(0, 5); rank > 0; --rank) spec.shape.push_back(Int(0, 6));
    call.args = {spec, spec};
  }

  // The cache in one of its layouts: appends the arguments kv_cache (and later v_cache).
  struct Cache {
    DType dtype;
    int layout;  // 0: K and V interleaved, 1: stacked, 2: a pair
    int64_t pages, page_size, kv_heads, head_dim;
    TensorSpec Spec() const {
      if (layout == 0) return {dtype, {pages, page_size, 2 * kv_heads, head_dim}};
      if (layout == 1) return {dtype, {2, pages, page_size, kv_heads, head_dim}};
      return {dtype, {pages, page_size, kv_heads, head_dim}};
    }
  };
  Cache MakeCache() {
    static constexpr int64_t kHeadDims[] = {1, 8, 5, 16, 33, 64, 128, 256, 512};
    return {Pick(kCacheTypes), static_cast<int>(Below(3)), Int(0, 4), Int(1, 5),
            Int(1, 3),         kHeadDims[Below(9)]};
  }

  // Appends the optional arguments that the bytes choose and names them.
  void Optional(OpaqueCall& call, const Cache& cache, int64_t q_heads) {
    std::string names;
    const auto add = [&](const char* name, TensorSpec spec) {
      names += (names.empty() ? "" : ",") + std::string(name);
      call.args.push_back(std::move(spec));
    };
    if (cache.layout == 2) add("v_cache", cache.Spec());
    if (q_heads > 0 && Chance(3)) add("sinks", {DType::kF32, {q_heads}});
    if (Chance(3)) add("k_scale", {DType::kF32, {Chance(2) ? 1 : cache.kv_heads}});
    if (Chance(3)) add("v_scale", {DType::kF32, {Chance(2) ? 1 : cache.kv_heads}});
    if (!names.empty() || Chance(8)) call.attrs.push_back({"optional_args", names});
  }

  void PagedAttention(OpaqueCall& call) {
    const Cache cache = MakeCache();
    const int64_t tokens = Int(0, 6), max_seqs = Int(1, 3), max_pages = Int(1, 4);
    const int64_t q_heads = cache.kv_heads * Int(1, 3);
    call.args = {{Pick(kComputeTypes), {tokens, q_heads, cache.head_dim}},
                 cache.Spec(),
                 {DType::kI32, {max_seqs}},
                 {DType::kI32, {max_seqs, max_pages}},
                 {DType::kI32, {max_seqs + 1}},
                 {DType::kI32, {1}}};
    if (Chance(4)) call.attrs.push_back({"scale", bytes_.ConsumeFloatingPoint<float>()});
    if (Chance(2)) call.attrs.push_back({"sliding_window", Int(0, 9)});
    if (Chance(2)) call.attrs.push_back({"soft_cap", static_cast<double>(Int(0, 30))});
    if (Chance(2)) call.attrs.push_back({"causal", Chance(2)});
    if (Chance(2)) call.attrs.push_back({"return_lse", Chance(2)});
    if (Chance(2)) {
      call.attrs.push_back({"out_dtype", std::string(DTypeName(Pick(kComputeTypes)))});
    }
    Optional(call, cache, q_heads);
  }

  void UpdateKvCache(OpaqueCall& call) {
    const Cache cache = MakeCache();
    const TensorSpec key{Pick(kComputeTypes), {Int(0, 6), cache.kv_heads, cache.head_dim}};
    call.args = {key, key, cache.Spec(), {Chance(2) ? DType::kI32 : DType::kI64, {key.shape[0]}}};
    Optional(call, cache, 0);
  }

  void RaggedPagedAttentionV3(OpaqueCall& call) {
    static constexpr int64_t kHeadDims[] = {1, 16, 64, 80, 128, 256, 512};
    const DType dtype = Pick(kCacheTypes);
    const bool side_by_side = Chance(2);
    const int64_t kv_heads = Int(1, 3), head_dim = side_by_side ? 64 : kHeadDims[Below(7)];
    const int64_t q_heads = kv_heads * Int(1, 3), tokens = Int(0, 6), max_seqs = Int(1, 3);
    const int64_t packing = 4 / DTypeSize(dtype);
    const int64_t rows = side_by_side ? kv_heads : 2 * kv_heads;
    const TensorSpec keys{dtype, {tokens, kv_heads, head_dim}};
    call.args = {{Pick(kComputeTypes), {tokens, q_heads, head_dim}},
                 keys,
                 keys,
                 {dtype,
                  {Int(0, 4), Int(1, 5), (rows + packing - 1) / packing, packing,
                   (head_dim + 127) / 128 * 128}},
                 {DType::kI32, {max_seqs}},
                 {DType::kI32, {max_seqs * Int(0, 4)}},
                 {DType::kI32, {max_seqs + 1}},
                 {DType::kI32, {3}}};
    call.attrs.push_back({"sm_scale", 0.125});
    if (side_by_side) call.attrs.push_back({"cache_layout", std::string("side_by_side")});
    if (Chance(3)) call.attrs.push_back({"sliding_window", Int(0, 9)});
    if (Chance(3)) call.attrs.push_back({"use_causal_mask", Chance(2)});
    if (Chance(3)) call.attrs.push_back({"update_kv_cache", Chance(2)});
    if (Chance(3)) call.attrs.push_back({"max_query_len", Int(0, 9)});
    if (Chance(3)) {
      call.args.push_back({DType::kF32, {q_heads}});
      call.attrs.push_back({"optional_args", std::string("attention_sink")});
    }
  }

  OpaqueCall::Value RandomValue() {
    switch (Below(5)) {
      case 0:
        return Chance(2);
      case 1:
        return bytes_.ConsumeIntegral<int64_t>();
      case 2:
        return bytes_.ConsumeFloatingPoint<double>();
      case 3:
        return bytes_.ConsumeRandomLengthString(12);
      default:
        return std::vector<int64_t>(Below(4), bytes_.ConsumeIntegral<int64_t>());
    }
  }

  void Mutate(OpaqueCall& call) {
    for (size_t n = 1 + Below(3); n > 0; --n) {
      TensorSpec* arg = call.args.empty() ? nullptr : &call.args[Below(call.args.size())];
      switch (Below(7)) {
        case 0:
          if (arg != nullptr) arg->dtype = Pick(kDTypes);
          break;
        case 1:
          if (arg != nullptr && !arg->shape.empty()) {
            arg->shape[Below(arg->shape.size())] = kOddDims[Below(std::size(kOddDims))];
          }
          break;
        case 2:
          if (arg != nullptr) arg->shape.push_back(Int(0, 3));
          break;
        case 3:
          if (arg != nullptr && !arg->shape.empty()) arg->shape.pop_back();
          break;
        case 4:
          if (!call.args.empty()) call.args.pop_back();
          break;
        case 5:
          call.args.push_back({Pick(kDTypes), {Int(0, 4)}});
          break;
        default:
          if (call.attrs.empty() || Chance(3)) {
            call.attrs.push_back({bytes_.ConsumeRandomLengthString(8), RandomValue()});
          } else {
            call.attrs[Below(call.attrs.size())].value = RandomValue();
          }
      }
    }
  }

  // The results that the op wants, and now and then others.
  void AddResults(OpaqueCall& call) {
    auto attributes = ViewAttributes(call);
    if (!attributes.ok()) return;
    const std::vector<TensorView> args = ViewTensors(call.args);
    auto results = InferTypes(*OpRegistry::Global().Find(call.op), Platform::kHost,
                              Call{args, {}, &*attributes});
    if (results.ok()) call.results = *results;
    if (!Chance(8)) return;
    if (!call.results.empty() && Chance(2)) {
      call.results.pop_back();
    } else {
      call.results.push_back({Pick(kDTypes), {Int(0, 5)}});
    }
  }

  FuzzedDataProvider& bytes_;
};

// The memory of one tensor, exactly as large as its type says.
class Buffer {
 public:
  Buffer(const TensorSpec& spec, FuzzedDataProvider& bytes) {
    int64_t size = DTypeSize(spec.dtype);
    for (int64_t dim : spec.shape) {
      if (dim < 0 || (dim > 0 && size > kMaxBufferBytes / dim)) return;  // no runtime has it
      size *= dim;
    }
    if (bytes.ConsumeIntegralInRange<int>(0, 63) == 0) return;  // null though not empty
    // Empty tensors get an address too, one that must not be touched.
    memory_.reset(new char[static_cast<size_t>(size)]);
    if (spec.dtype == DType::kI32 || spec.dtype == DType::kI64) {
      FillInts(spec.dtype, size, bytes);
    } else {
      std::minstd_rand random(bytes.ConsumeIntegral<uint32_t>());
      for (int64_t i = 0; i < size; ++i)
        memory_[static_cast<size_t>(i)] = static_cast<char>(random());
    }
  }
  void* data() const { return memory_.get(); }

 private:
  // Lengths, pages and slots: mostly small, so that they are often in range.
  void FillInts(DType dtype, int64_t size, FuzzedDataProvider& bytes) {
    const int64_t element = DTypeSize(dtype);
    for (int64_t at = 0; at < size; at += element) {
      const int64_t value = bytes.ConsumeIntegralInRange<int>(0, 9) == 0
                                ? bytes.ConsumeIntegral<int64_t>()
                                : bytes.ConsumeIntegralInRange<int64_t>(-1, 8);
      std::memcpy(memory_.get() + at, &value, static_cast<size_t>(element));  // little-endian
    }
  }

  std::unique_ptr<char[]> memory_;
};

struct Buffers {
  Buffers(const OpaqueCall& call, FuzzedDataProvider& bytes) {
    for (const TensorSpec& spec : call.args) args.emplace_back(spec, bytes);
    for (const TensorSpec& spec : call.results) results.emplace_back(spec, bytes);
    for (const Buffer& buffer : args) arg_data.push_back(buffer.data());
    for (const Buffer& buffer : results) result_data.push_back(buffer.data());
    // Donated buffers: a result that is its argument.
    const bool in_place = bytes.ConsumeBool();
    const bool v3 = call.op == "ragged_paged_attention_v3";
    const size_t arg = v3 ? 3 : 2, result = v3 ? 1 : 0;
    if (in_place && (v3 || call.op == "update_kv_cache") && call.args.size() > arg &&
        call.results.size() > result && call.args[arg] == call.results[result]) {
      result_data[result] = arg_data[arg];
    }
  }
  std::vector<Buffer> args, results;
  std::vector<void*> arg_data, result_data;
};

void AddAttr(FakeCallFrame& frame, const OpaqueCall::Attr& attr, FuzzedDataProvider& bytes) {
  const bool narrow = bytes.ConsumeBool();
  if (const auto* v = std::get_if<bool>(&attr.value)) {
    frame.AddScalar(attr.name, XLA_FFI_DataType_PRED, static_cast<uint8_t>(*v));
  } else if (const auto* v = std::get_if<int64_t>(&attr.value)) {
    if (narrow) frame.AddScalar(attr.name, XLA_FFI_DataType_S32, static_cast<int32_t>(*v));
    if (!narrow) frame.AddScalar(attr.name, XLA_FFI_DataType_S64, *v);
  } else if (const auto* v = std::get_if<double>(&attr.value)) {
    if (narrow) frame.AddScalar(attr.name, XLA_FFI_DataType_F32, static_cast<float>(*v));
    if (!narrow) frame.AddScalar(attr.name, XLA_FFI_DataType_F64, *v);
  } else if (const auto* v = std::get_if<std::string>(&attr.value)) {
    frame.AddString(attr.name, *v);
  } else {
    const auto& ints = std::get<std::vector<int64_t>>(attr.value);
    const std::string data(reinterpret_cast<const char*>(ints.data()), ints.size() * 8);
    if (narrow) frame.AddArray(attr.name, XLA_FFI_DataType_S32, ints.size() * 2, data);
    if (!narrow) frame.AddArray(attr.name, XLA_FFI_DataType_S64, ints.size(), data);
  }
}

// What only a call frame can hold wrong: tokens, dtypes of XLA that we lack, kinds of attributes.
void AddOddities(FakeCallFrame& frame, FuzzedDataProvider& bytes) {
  switch (bytes.ConsumeIntegralInRange<int>(0, 6)) {
    case 0:
      frame.AddToken();
      break;
    case 1:
      frame.AddDictionary("options");
      break;
    case 2:
      frame.AddScalar("scalar", bytes.ConsumeIntegralInRange<int>(-1, 40),
                      bytes.ConsumeIntegral<uint64_t>());
      break;
    case 3:
      frame.AddArray("floats", bytes.ConsumeIntegralInRange<int>(-1, 40), 2, std::string(32, 'x'));
      break;
    case 4:
      frame.AddArg(nullptr, bytes.ConsumeIntegral<int32_t>(), {1, 2});
      break;
    case 5:
      frame.AddResult(nullptr, XLA_FFI_DataType_F32, {3}, /*null_dims=*/true);
      break;
    default:
      frame.AddArg(nullptr, XLA_FFI_DataType_F32, std::vector<int64_t>(40, 1));
  }
}

void RunTyped(const Op& op, const OpaqueCall& call, const Buffers& buffers,
              FuzzedDataProvider& bytes) {
  const bool instantiate = bytes.ConsumeIntegralInRange<int>(0, 7) == 0;
  FakeCallFrame frame(instantiate ? XLA_FFI_ExecutionStage_INSTANTIATE
                                  : XLA_FFI_ExecutionStage_EXECUTE);
  frame.context().num_threads = bytes.ConsumeIntegralInRange<int>(1, 3);
  for (size_t i = 0; i < call.args.size(); ++i) {
    frame.AddArg(instantiate ? nullptr : buffers.arg_data[i], static_cast<int>(call.args[i].dtype),
                 call.args[i].shape);
  }
  for (size_t i = 0; i < call.results.size(); ++i) {
    frame.AddResult(instantiate ? nullptr : buffers.result_data[i],
                    static_cast<int>(call.results[i].dtype), call.results[i].shape);
  }
  for (const OpaqueCall::Attr& attr : call.attrs) AddAttr(frame, attr, bytes);
  if (bytes.ConsumeIntegralInRange<int>(0, 7) == 0) AddOddities(frame, bytes);
  XLA_FFI_CallFrame* built = frame.frame();
  switch (bytes.ConsumeIntegralInRange<int>(0, 31)) {  // counts that no array backs
    case 0:
      built->args.size = -1;
      break;
    case 1:
      built->rets.size = std::numeric_limits<int64_t>::max();
      break;
    case 2:
      built->attrs.size = 1 << 20;
      break;
    default:
      break;
  }
  XLA_FFI_Error* error = TypedHandler(op, Platform::kHost)(built);
  if (error != nullptr && TakeMessage(error).empty()) std::abort();
}

void RunLegacy(const Op& op, const OpaqueCall& call, Buffers& buffers) {
  auto text = EncodeOpaque(call);
  if (!text.ok()) return;
  using HostUnified = void (*)(void*, const void**, const char*, size_t, void*);
  auto* handler = reinterpret_cast<HostUnified>(*LegacyHandler(op, Platform::kHost, 3));
  void* out = call.results.size() == 1 ? buffers.result_data[0]
                                       : static_cast<void*>(buffers.result_data.data());
  handler(out, const_cast<const void**>(buffers.arg_data.data()), text->data(), text->size(),
          nullptr);
}

void RunOne(FuzzedDataProvider& bytes) {
  const OpaqueCall call = CallBuilder(bytes).Build();
  const Op& op = *OpRegistry::Global().Find(call.op);
  Buffers buffers(call, bytes);
  if (bytes.ConsumeBool()) {
    RunTyped(op, call, buffers, bytes);
  } else {
    RunLegacy(op, call, buffers);
  }
}

std::vector<std::string> Seeds() {
  std::mt19937 random(1);
  std::vector<std::string> seeds;
  for (int i = 0; i < 256; ++i) {
    std::string& seed = seeds.emplace_back(64 + i, '\0');
    for (char& c : seed) c = static_cast<char>(random());
  }
  return seeds;
}

}  // namespace
}  // namespace xla_gpu::xla

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  xla_gpu::WriteSeedsIfAsked(*argc, *argv, xla_gpu::xla::Seeds());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  xla_gpu::xla::RunOne(bytes);
  return 0;
}
