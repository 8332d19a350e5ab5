// update_kv_cache on the Host against a scalar loop, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/ops/paged_cache/cpu/for_each_target.h"
#include "src/ops/paged_cache/owned_tensor.h"
#include "src/ops/update_kv_cache/cpu/kernels.h"
#include "src/ops/update_kv_cache/update_kv_cache.h"

namespace xla_gpu::update_kv_cache {
namespace {

using paged_cache::IntegersOf;
using paged_cache::Layout;
using paged_cache::OwnedTensor;

constexpr DType kInputs[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kCaches[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN,
                             DType::kF8E5M2};

float Load(const void* data, DType dtype, int64_t i) {
  return static_cast<float>(LoadAsDouble(data, dtype, i));
}

// Every f16 and bf16 value, and f32 values dense around all rounding boundaries.
void ExpectScalarConversions(const char* target) {
  std::vector<float> f32;
  for (int sign : {1, -1}) {
    for (int exponent = -30; exponent <= 20; ++exponent) {
      for (int i = 0; i < 256; ++i) {
        const float x = std::ldexp(static_cast<float>(sign) * (1.0f + i / 256.0f), exponent);
        f32.insert(f32.end(), {x, std::nextafter(x, 0.0f), std::nextafter(x, 1e30f)});
      }
    }
  }
  f32.insert(f32.end(), {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 1e-38f});
  std::vector<uint16_t> f16(1 << 16);
  for (size_t i = 0; i < f16.size(); ++i) f16[i] = static_cast<uint16_t>(i);
  for (DType from : kInputs) {
    const void* data = from == DType::kF32 ? static_cast<const void*>(f32.data()) : f16.data();
    const int64_t n = static_cast<int64_t>(from == DType::kF32 ? f32.size() : f16.size());
    for (DType to : kCaches) {
      for (float divisor : {1.0f, 0.37f}) {
        OwnedTensor got(to, {n});
        OwnedTensor want(to, {n});
        ConvertRow({from, to, data, got.data.get(), n, divisor});
        for (int64_t i = 0; i < n; ++i) {
          want.Set(i, Load(data, from, i) / divisor);
          const int64_t size = DTypeSize(to);
          const bool both_nan = std::isnan(got.Get(i)) && std::isnan(want.Get(i));
          ASSERT_TRUE(both_nan ||
                      std::memcmp(got.data.get() + i * size, want.data.get() + i * size, size) == 0)
              << target << ": " << DTypeName(from) << " " << Load(data, from, i) << " to "
              << DTypeName(to) << ": " << got.Get(i) << ", expected " << want.Get(i);
        }
      }
    }
  }
}

TEST(ConvertRow, IsTheScalarConversionBitForBit) { ForEachTarget(ExpectScalarConversions); }

constexpr int64_t kPages = 9;

struct UpdateCase {
  UpdateCase(DType input, DType cache_dtype, Layout layout, int64_t tokens, int64_t heads,
             int64_t head_dim, int64_t page_size, DType slot_dtype,
             const std::vector<int64_t>& scale_shape, std::mt19937_64& rng) {
    key = OwnedTensor(input, {tokens, heads, head_dim});
    value = OwnedTensor(input, {tokens, heads, head_dim});
    std::vector<int64_t> shape = {kPages, page_size, heads, head_dim};
    if (layout == Layout::kInterleaved) shape[2] *= 2;
    if (layout == Layout::kStacked) shape.insert(shape.begin(), 2);
    cache = OwnedTensor(cache_dtype, shape);
    if (layout == Layout::kPair) v_cache = OwnedTensor(cache_dtype, shape);
    slots = OwnedTensor(slot_dtype, {tokens});
    std::normal_distribution<double> normal(0, 100);
    for (OwnedTensor* t : {&key, &value, &cache, &v_cache}) {
      for (int64_t i = 0; t->data != nullptr && i < t->size(); ++i) t->Set(i, normal(rng));
    }
    const int64_t num_slots = kPages * page_size;
    for (int64_t i = 0; i < tokens; ++i) {
      // Many tokens share slots; some are skipped; some lie far outside.
      const int64_t wild[] = {-1, num_slots, INT32_MIN, INT32_MAX};
      const int64_t pick = IntegersOf(rng)(0, num_slots + 20);
      const int64_t slot = pick < num_slots ? pick : wild[pick % 4];
      if (slot_dtype == DType::kI32) {
        slots.ints()[i] = static_cast<int32_t>(slot);
      } else {
        reinterpret_cast<int64_t*>(slots.data.get())[i] = pick == num_slots ? INT64_MIN : slot;
      }
    }
    args = {key.view(), value.view(), cache.view(), slots.view()};
    std::string names;
    if (layout == Layout::kPair) {
      names = "v_cache";
      args.push_back(v_cache.view());
    }
    if (!scale_shape.empty()) {
      k_scale = OwnedTensor(DType::kF32, scale_shape);
      v_scale = OwnedTensor(DType::kF32, scale_shape);
      for (int64_t i = 0; i < k_scale.size(); ++i) {
        k_scale.Set(i, std::uniform_real_distribution<double>(0.1, 3)(rng));
        v_scale.Set(i, std::uniform_real_distribution<double>(0.1, 3)(rng));
      }
      names += names.empty() ? "k_scale,v_scale" : ",k_scale,v_scale";
      args.push_back(k_scale.view());
      args.push_back(v_scale.view());
    }
    optional_args = names;
    EXPECT_TRUE(attributes.Add("optional_args", std::string_view(optional_args)).ok());
  }

  // Into the argument's own buffers, or into others.
  void Run(bool in_place, OwnedTensor* out, OwnedTensor* v_out, ThreadPool& pool) {
    std::vector<TensorView> results = {in_place ? cache.view() : out->view()};
    if (v_cache.data != nullptr) results.push_back(in_place ? v_cache.view() : v_out->view());
    ExecutionContext context;
    context.thread_pool = &pool;
    const Status status = RunOp(**OpRegistry::Global().Get("update_kv_cache"), Platform::kHost,
                                {args, results, &attributes}, context);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  OwnedTensor key, value, cache, v_cache, slots, k_scale, v_scale;
  std::vector<TensorView> args;
  std::string optional_args;
  Attributes attributes;
};

OwnedTensor Copy(const OwnedTensor& t) {
  if (t.data == nullptr) return {};
  OwnedTensor copy(t.dtype, t.shape);
  std::memcpy(copy.data.get(), t.data.get(), static_cast<size_t>(t.view().size_bytes()));
  return copy;
}

bool Equal(const OwnedTensor& a, const OwnedTensor& b) {
  return a.data == nullptr ||
         std::memcmp(a.data.get(), b.data.get(), static_cast<size_t>(a.view().size_bytes())) == 0;
}

const std::vector<int64_t> kOne = {1};

// The contract, token by token.
void Expect(const UpdateCase& c, OwnedTensor& cache, OwnedTensor& v_cache) {
  const Problem p = *ProblemFromCall({c.args, {}, &c.attributes});
  OwnedTensor& v_tensor = p.separate_v ? v_cache : cache;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t slot = p.slot_dtype == DType::kI32
                             ? c.slots.ints()[t]
                             : reinterpret_cast<const int64_t*>(c.slots.data.get())[t];
    if (slot < 0 || slot >= p.num_slots()) continue;
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      for (int64_t d = 0; d < p.head_dim; ++d) {
        const int64_t from = (t * p.kv_heads + h) * p.head_dim + d;
        const auto write = [&](const OwnedTensor& input, const OwnedTensor& scale,
                               const paged_cache::CacheLayout& layout, OwnedTensor& to) {
          const int64_t of_slot = scale.shape.size() == 3 ? slot * p.kv_heads : 0;
          const float divisor = scale.data == nullptr
                                    ? 1.0f
                                    : scale.floats()[of_slot + (scale.shape == kOne ? 0 : h)];
          to.Set(layout.At(slot / p.page_size, slot % p.page_size, h) + d,
                 Load(input.data.get(), input.dtype, from) / divisor);
        };
        write(c.key, c.k_scale, p.k, cache);
        write(c.value, c.v_scale, p.v, v_tensor);
      }
    }
  }
}

TEST(UpdateKvCacheHost, WritesSlotsAndNothingElse) {
  std::unique_ptr<ThreadPool> pool = MakeThreadPool(4);
  for (int seed = 0; seed < 400; ++seed) {
    std::mt19937_64 rng(static_cast<uint64_t>(seed));
    const auto in = IntegersOf(rng);
    const int64_t heads = in(1, 3), page_size = in(1, 20);
    const std::vector<int64_t> scale_shapes[] = {{}, kOne, {heads}, {kPages, page_size, heads}};
    UpdateCase c(kInputs[in(0, 2)], kCaches[in(0, 4)], static_cast<Layout>(in(0, 2)),
                 in(0, 3) == 0 ? 0 : in(1, 200), heads, in(1, 70), page_size,
                 in(0, 1) == 0 ? DType::kI32 : DType::kI64, scale_shapes[in(0, 3)], rng);
    OwnedTensor want = Copy(c.cache);
    OwnedTensor want_v = Copy(c.v_cache);
    Expect(c, want, want_v);
    // Functional: the arguments stay as they were.
    const OwnedTensor before = Copy(c.cache);
    OwnedTensor out(c.cache.dtype, c.cache.shape);
    OwnedTensor v_out = Copy(c.v_cache);
    c.Run(false, &out, &v_out, *pool);
    ASSERT_TRUE(Equal(out, want) && Equal(v_out, want_v)) << "seed " << seed;
    ASSERT_TRUE(Equal(c.cache, before)) << "seed " << seed;
    // In place.
    c.Run(true, nullptr, nullptr, *pool);
    ASSERT_TRUE(Equal(c.cache, want) && Equal(c.v_cache, want_v)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace xla_gpu::update_kv_cache
