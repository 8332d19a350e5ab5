#include "src/ops/paged_cache/cache_shape.h"

#include <cstdint>
#include <tuple>

#include "src/core/ceil_div.h"
#include "src/core/expect.h"
#include "src/core/strings.h"

namespace xla_gpu::paged_cache {
namespace {

constexpr int64_t kMaxKvHeads = 1 << 16;

void SetStrides(CacheShape& shape, int64_t token_stride, int64_t head_stride, int64_t v_offset) {
  shape.k = {0, shape.page_size * token_stride, token_stride, head_stride};
  shape.v = shape.k;
  shape.v.offset = v_offset;
}

Status CheckPages(std::string_view op, const TensorView& kv_cache, const CacheShape& shape) {
  if (shape.page_size >= 1 && shape.page_size <= kMaxIndex && shape.num_pages <= kMaxIndex) {
    return OkStatus();
  }
  return InvalidArgument(op, ": kv_cache is ", kv_cache.ToString(), " with ", shape.num_pages,
                         " pages of ", shape.page_size,
                         " tokens; page_size must be 1 to 2^31-1 and there can be at most "
                         "2^31-1 pages");
}

}  // namespace

DTypes ComputeTypes() { return {DType::kF32, DType::kBF16, DType::kF16}; }

DTypes CacheTypes() {
  return {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN, DType::kF8E5M2};
}

ArgSpec KvCacheArg() {
  return {.name = "kv_cache",
          .dtypes = CacheTypes(),
          .doc =
              "[pages, page_size, 2*kv_heads, head_dim] with K on even and V on odd heads; or "
              "[pages, page_size, kv_heads, head_dim], K alone, with v_cache; or [2, pages, "
              "page_size, kv_heads, head_dim], K then V",
          .no_copy = true};
}

ArgSpec VCacheArg() {
  return {
      .name = "v_cache",
      .dtypes = CacheTypes(),
      .doc = "as kv_cache, [pages, page_size, kv_heads, head_dim]: makes kv_cache the keys alone",
      .optional = true,
      .no_copy = true};
}

ArgSpec ScaleArg(std::string name, std::string_view what) {
  return {.name = std::move(name),
          .dtypes = {DType::kF32},
          .doc = StrCat("[1], [kv_heads] or [pages, page_size, kv_heads]: ", what),
          .optional = true,
          .vector = true};
}

StatusOr<CacheShape> ParseCacheShape(std::string_view op, const TensorView& kv_cache,
                                     const TensorView* v_cache) {
  if (v_cache != nullptr && (kv_cache.rank() != 4 || !kv_cache.SameType(*v_cache))) {
    return InvalidArgument(
        op, ": kv_cache is ", kv_cache.ToString(), " and v_cache is ", v_cache->ToString(),
        "; with v_cache both must be [pages, page_size, kv_heads, head_dim], equal in dtype "
        "and shape");
  }
  const int64_t rank = kv_cache.rank();
  if (rank != 4 && rank != 5) {
    return InvalidArgument(
        op, ": kv_cache is ", kv_cache.ToString(), " of rank ", rank,
        "; it must be [pages, page_size, 2*kv_heads, head_dim], or [pages, page_size, "
        "kv_heads, head_dim] with v_cache, or [2, pages, page_size, kv_heads, head_dim]");
  }
  if (rank == 5 && kv_cache.dim(0) != 2) {
    return Wrong(op, "kv_cache", kv_cache,
                 "of its 5 dimensions the first must be 2 (keys, then values)");
  }
  const int64_t first = rank - 4;
  const int64_t heads = kv_cache.dim(first + 2);
  CacheShape shape{.cache_dtype = kv_cache.dtype,
                   .num_pages = kv_cache.dim(first),
                   .page_size = kv_cache.dim(first + 1),
                   .head_dim = kv_cache.dim(first + 3),
                   .separate_v = v_cache != nullptr};
  const bool interleaved = rank == 4 && !shape.separate_v;
  if (interleaved && heads % 2 != 0) {
    return InvalidArgument(op, ": kv_cache is ", kv_cache.ToString(), " with ", heads,
                           " heads; without v_cache it holds 2*kv_heads, K on even and V on "
                           "odd ones, so the number must be even");
  }
  shape.kv_heads = interleaved ? heads / 2 : heads;
  if (shape.kv_heads < 1 || shape.kv_heads > kMaxKvHeads) {
    return InvalidArgument(op, ": kv_cache is ", kv_cache.ToString(), " with ", shape.kv_heads,
                           " kv heads; allowed are 1 to ", kMaxKvHeads);
  }
  if (shape.head_dim < 1 || shape.head_dim > kMaxHeadDim) {
    return InvalidArgument(op, ": head_dim is ", shape.head_dim, " in kv_cache ",
                           kv_cache.ToString(), "; allowed are 1 to ", kMaxHeadDim);
  }
  XLA_GPU_RETURN_IF_ERROR(CheckPages(op, kv_cache, shape));
  const int64_t v_offset = interleaved        ? shape.head_dim
                           : shape.separate_v ? 0
                                              : kv_cache.num_elements() / 2;
  SetStrides(shape, heads * shape.head_dim, (interleaved ? 2 : 1) * shape.head_dim, v_offset);
  return shape;
}

StatusOr<CacheShape> ParsePackedCacheShape(std::string_view op, const TensorView& kv_cache,
                                           PackedLayout layout, int64_t kv_heads,
                                           int64_t head_dim) {
  const bool side_by_side = layout == PackedLayout::kSideBySide;
  const int64_t packing = 4 / DTypeSize(kv_cache.dtype);
  const int64_t heads = RoundUp(side_by_side ? kv_heads : 2 * kv_heads, packing);
  const int64_t width = side_by_side ? 2 * head_dim : RoundUp(head_dim, 128);
  if (kv_cache.rank() != 5 || kv_cache.dim(2) != heads / packing || kv_cache.dim(3) != packing ||
      kv_cache.dim(4) != width) {
    return Wrong(op, "kv_cache", kv_cache, "for ", kv_heads, " kv heads of head_dim ", head_dim,
                 " in ", DTypeName(kv_cache.dtype), " it must be [pages, page_size, ",
                 heads / packing, ", ", packing, ", ", width, "]: [pages, page_size, align(",
                 side_by_side ? "" : "2*", "kv_heads, packing)/packing, packing, ",
                 side_by_side ? "2*head_dim" : "align(head_dim, 128)",
                 "] with packing = 32 / bits of the dtype");
  }
  CacheShape shape{.cache_dtype = kv_cache.dtype,
                   .num_pages = kv_cache.dim(0),
                   .page_size = kv_cache.dim(1),
                   .kv_heads = kv_heads,
                   .head_dim = head_dim};
  XLA_GPU_RETURN_IF_ERROR(CheckPages(op, kv_cache, shape));
  SetStrides(shape, heads * width, side_by_side ? width : 2 * width,
             side_by_side ? head_dim : width);
  return shape;
}

Status ParseScales(std::string_view op, const TensorView* k_scale, const TensorView* v_scale,
                   CacheShape& cache) {
  for (const auto& [name, scale, size, of_tokens] :
       {std::tuple{"k_scale", k_scale, &cache.k_scale_size, &cache.k_token_scales},
        {"v_scale", v_scale, &cache.v_scale_size, &cache.v_token_scales}}) {
    if (scale == nullptr) continue;
    const TensorSpec tokens{DType::kF32, {cache.num_pages, cache.page_size, cache.kv_heads}};
    *of_tokens = tokens.Matches(*scale);
    if (*of_tokens) continue;
    if (scale->rank() != 1 || (scale->dim(0) != 1 && scale->dim(0) != cache.kv_heads)) {
      return Wrong(op, name, *scale, "it must be f32[1], one for each kv head, f32[",
                   cache.kv_heads, "], or one for each token and kv head in the cache, ",
                   tokens.ToString());
    }
    *size = scale->dim(0);
  }
  return OkStatus();
}

}  // namespace xla_gpu::paged_cache
