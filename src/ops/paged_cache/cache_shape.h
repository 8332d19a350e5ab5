// The three shapes a paged KV cache may come in, read into strides once, for every op that takes
// one.
#ifndef XLA_GPU_OPS_PAGED_CACHE_CACHE_SHAPE_H_
#define XLA_GPU_OPS_PAGED_CACHE_CACHE_SHAPE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "src/core/op.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace xla_gpu::paged_cache {

// What an i32 index, a page's number say, can tell apart.
inline constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

inline constexpr int64_t kMaxHeadDim = 512;

// What the schemas of ops that take a cache share.
DTypes ComputeTypes();  // f32, bf16, f16: what queries, keys, values and outputs may be
DTypes CacheTypes();    // those and fp8
ArgSpec KvCacheArg();
ArgSpec VCacheArg();  // optional
// An optional factor of the stored keys or values; `what` says which way.
ArgSpec ScaleArg(std::string name, std::string_view what);

// Where the keys (or values) of (page, token in page, kv head) lie: strides in elements, head_dim
// contiguous. `offset` counts from the start of the tensor that holds them.
struct CacheLayout {
  int64_t offset = 0;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  // Element 0 of a head of the `token`-th token in a page.
  int64_t At(int64_t page, int64_t token, int64_t head) const {
    return offset + page * page_stride + token * token_stride + head * head_stride;
  }
};

// The part that the problems of all ops over a cache have.
struct CacheShape {
  DType cache_dtype = DType::kInvalid;  // f32, bf16, f16, f8e4m3fn, f8e5m2
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // 1 to kMaxHeadDim
  CacheLayout k;
  CacheLayout v;
  bool separate_v = false;   // V is a tensor of its own
  int64_t k_scale_size = 0;  // f32 [1] or [kv_heads]; 0: none (1.0)
  int64_t v_scale_size = 0;
  bool k_token_scales = false;  // in their place f32 [num_pages, page_size, kv_heads]
  bool v_token_scales = false;

  bool has_k_scale() const { return k_scale_size > 0 || k_token_scales; }
  bool has_v_scale() const { return v_scale_size > 0 || v_token_scales; }
  bool has_token_scales() const { return k_token_scales || v_token_scales; }
};

// `v_cache` is null where the call has none. Errors begin with `op` and name the argument.
StatusOr<CacheShape> ParseCacheShape(std::string_view op, const TensorView& kv_cache,
                                     const TensorView* v_cache);

// How the TPU kernels' packed caches (ragged paged attention v3) hold K and V. `packing` is the
// number of elements in 32 bits; a packed cache is a plain row-major tensor, so it is strides to
// us.
//   kInterleaved   [pages, page_size, align(2 * kv_heads, packing) / packing, packing,
//                   align(head_dim, 128)]: K of head h at 2 * h of the packed heads, V at 2 * h + 1
//   kSideBySide    [pages, page_size, align(kv_heads, packing) / packing, packing, 128], head_dim
//                   64: K and V in the two halves of a row
enum class PackedLayout { kInterleaved, kSideBySide };

// `kv_heads` and `head_dim` are those of the keys: the padded cache alone does not tell them.
StatusOr<CacheShape> ParsePackedCacheShape(std::string_view op, const TensorView& kv_cache,
                                           PackedLayout layout, int64_t kv_heads, int64_t head_dim);

// What the arguments k_scale and v_scale (null: absent) are, into `cache`, whose shape is known.
Status ParseScales(std::string_view op, const TensorView* k_scale, const TensorView* v_scale,
                   CacheShape& cache);

}  // namespace xla_gpu::paged_cache

#endif  // XLA_GPU_OPS_PAGED_CACHE_CACHE_SHAPE_H_
