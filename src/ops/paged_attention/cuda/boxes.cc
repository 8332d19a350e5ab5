// The boxes in which the tensor copy engine loads keys and values, and what it can load so.
#include <algorithm>

#include "src/cuda/tensor_map.h"
#include "src/ops/paged_attention/cuda/config_parts.h"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"

namespace xla_gpu::paged_attention {
namespace {

int64_t PanelDims(const Problem& problem) {
  return 2 * int64_t{sm90::kPanelDims} / DTypeSize(problem.cache_dtype);
}

// Whether a head's dimensions do not fill panels, so that a box is of one panel.
bool IsPadded(const Problem& problem) { return problem.head_dim % PanelDims(problem) != 0; }

}  // namespace

// Larger boxes load no faster, and bring more of what lies past the end of a sequence.
int BoxTokens(const Problem& problem) {
  return problem.page_size % sm90::kBoxTokens == 0 ? sm90::kBoxTokens : 8;
}

cuda::TensorMapSpec MakeBoxes(const Problem& problem, bool pairs) {
  const int64_t panel = PanelDims(problem);
  const uint64_t element = DTypeSize(problem.cache_dtype);
  const uint64_t token_bytes = problem.k.token_stride * element;
  const uint64_t panels = (pairs ? 2 : 1) * problem.head_dim / panel;
  const uint64_t of_box = pairs ? panels : std::min<uint64_t>(panels, sm90::kBoxPanels);
  const uint64_t groups = problem.page_size / 8;
  constexpr int kWords = sm90::kPanelDims;  // of 16 bits
  if (IsPadded(problem) && !pairs) {
    return {{static_cast<uint64_t>(problem.head_dim), 8, groups,
             static_cast<uint64_t>(problem.num_pages), static_cast<uint64_t>(problem.kv_heads)},
            {token_bytes, 8 * token_bytes, problem.k.page_stride * element,
             problem.k.head_stride * element},
            {kWords, 8, static_cast<uint32_t>(BoxTokens(problem) / 8), 1, 1}};
  }
  return {
      {kWords, 8, (problem.kv_heads - 1) * problem.k.head_stride / panel + panels, groups,
       static_cast<uint64_t>(problem.num_pages)},
      {token_bytes, panel * element, 8 * token_bytes, problem.k.page_stride * element},
      {kWords, 8, static_cast<uint32_t>(of_box), static_cast<uint32_t>(BoxTokens(problem) / 8), 1}};
}

bool ReadsPairs(const Problem& problem) {
  const int64_t bytes = problem.head_dim * DTypeSize(problem.cache_dtype);
  const int64_t panel = PanelDims(problem);
  const bool whole = 2 * problem.head_dim % panel == 0 && problem.k.head_stride % panel == 0;
  return whole && !problem.separate_v && problem.v.offset - problem.k.offset == problem.head_dim &&
         bytes <= int64_t{sm90::kBoxPanels} * 128 && cuda::IsAccepted(MakeBoxes(problem, true));
}

bool BoxesFit(const Problem& problem, const cuda::DeviceInfo& device) {
  if (!device.tensor_maps) return false;
  const CacheLayout& k = problem.k;
  const int64_t panel = PanelDims(problem);
  for (const int64_t stride : {k.page_stride, k.token_stride, k.head_stride}) {
    if (stride < 0) return false;
  }
  const bool whole = problem.page_size % 8 == 0 &&
                     (IsPadded(problem) || k.head_stride % panel == 0) &&
                     k.offset % (panel / 8) == 0 && problem.v.offset % (panel / 8) == 0;
  return whole && problem.num_pages <= kMaxInt && cuda::IsAccepted(MakeBoxes(problem));
}

}  // namespace xla_gpu::paged_attention
