#include "src/ops/paged_attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/float_types.h"

namespace xla_gpu::paged_attention {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

class Reference {
 public:
  Reference(const Problem& problem, const Buffers& buffers, double* out, double* lse)
      : p_(problem), b_(buffers), out_(out), lse_(lse) {}

  void Run() {
    for (int64_t row = 0; row < p_.tokens; ++row) SetRow(row, 0.0, -kInf);
    const int64_t num_seqs = std::clamp<int64_t>(b_.num_seqs[0], 0, p_.max_seqs);
    // Rows that an invalid sequence claims besides a valid one are the valid one's.
    for (const bool valid : {false, true}) {
      for (int64_t s = 0; s < num_seqs; ++s) {
        if (IsValid(s) == valid) RunSequence(s);
      }
    }
  }

 private:
  void SetRow(int64_t row, double out, double lse) {
    std::fill_n(out_ + row * p_.q_heads * p_.head_dim, p_.q_heads * p_.head_dim, out);
    if (lse_ != nullptr) std::fill_n(lse_ + row * p_.q_heads, p_.q_heads, lse);
  }

  int64_t Page(int64_t s, int64_t index) const {
    return b_.block_tables[s * p_.max_pages_per_seq + index];
  }

  bool Sees(int64_t pos, int64_t k) const {
    return (!p_.causal || k <= pos) && (p_.sliding_window == 0 || pos - k < p_.sliding_window);
  }

  bool IsValid(int64_t s) const {
    const int64_t begin = b_.query_start_loc[s];
    const int64_t end = b_.query_start_loc[s + 1];
    const int64_t context = b_.context_lens[s];
    if (begin < 0 || begin > end || end > p_.tokens) return false;
    if (context < 0 || context > p_.max_context()) return false;
    if (begin == end) return true;  // reads nothing
    // The first query row sees the earliest key.
    const int64_t first_pos = context - (end - begin);
    const int64_t first_key =
        p_.sliding_window == 0 ? 0 : std::max<int64_t>(0, first_pos - p_.sliding_window + 1);
    for (int64_t i = first_key / p_.page_size; i * p_.page_size < context; ++i) {
      if (Page(s, i) < 0 || Page(s, i) >= p_.num_pages) return false;
    }
    return true;
  }

  void RunSequence(int64_t s) {
    const int64_t begin = b_.query_start_loc[s];
    const int64_t end = b_.query_start_loc[s + 1];
    if (!IsValid(s)) {
      for (int64_t row = std::max<int64_t>(begin, 0); row < std::min(end, p_.tokens); ++row) {
        SetRow(row, kNaN, kNaN);
      }
      return;
    }
    for (int64_t row = begin; row < end; ++row) {
      SetRow(row, 0.0, -kInf);
      const int64_t pos = b_.context_lens[s] - end + row;
      for (int64_t head = 0; head < p_.q_heads; ++head) RunRow(s, row, head, pos);
    }
  }

  // Element 0 of the key or value of token k.
  int64_t CacheIndex(const CacheLayout& layout, int64_t s, int64_t k, int64_t kv_head) const {
    return layout.At(Page(s, k / p_.page_size), k % p_.page_size, kv_head);
  }

  double TokenScale(const float* scales, int64_t s, int64_t k, int64_t kv_head) const {
    if (scales == nullptr) return 1.0;
    const int64_t slot = Page(s, k / p_.page_size) * p_.page_size + k % p_.page_size;
    const double scale = scales[slot * p_.kv_heads + kv_head];
    return std::isfinite(scale) ? scale : kNaN;
  }

  static double Scale(const float* scale, int64_t size, int64_t kv_head) {
    return size == 0 ? 1.0 : scale[size == 1 ? 0 : kv_head];
  }

  void RunRow(int64_t s, int64_t row, int64_t head, int64_t pos) {
    const int64_t kv_head = head / p_.group_size();
    const int64_t q = (row * p_.q_heads + head) * p_.head_dim;
    std::vector<int64_t> keys;
    std::vector<double> logits;
    for (int64_t k = 0; k < b_.context_lens[s]; ++k) {
      if (!Sees(pos, k)) continue;
      const int64_t index = CacheIndex(p_.k, s, k, kv_head);
      double dot = 0;
      for (int64_t d = 0; d < p_.head_dim; ++d) {
        dot += LoadAsDouble(b_.query, p_.query_dtype, q + d) *
               LoadAsDouble(b_.k_cache, p_.cache_dtype, index + d);
      }
      const double k_scale = Scale(b_.k_scale, p_.k_scale_size, kv_head);
      double x = dot * p_.scale * (std::isfinite(k_scale) ? k_scale : kNaN) *
                 TokenScale(b_.k_token_scales, s, k, kv_head);
      if (p_.soft_cap > 0) x = p_.soft_cap * std::tanh(x / p_.soft_cap);
      keys.push_back(k);
      logits.push_back(x);
    }
    const double sink = p_.has_sinks ? static_cast<double>(b_.sinks[head]) : -kInf;
    double max = sink;
    for (double x : logits) max = std::isnan(x) ? x : std::max(max, x);
    if (max == -kInf) return;  // sees nothing
    double* out = out_ + q;
    double sum = std::exp(sink - max);
    for (size_t i = 0; i < keys.size(); ++i) {
      const double weight = std::exp(logits[i] - max);
      const int64_t index = CacheIndex(p_.v, s, keys[i], kv_head);
      const double scale = TokenScale(b_.v_token_scales, s, keys[i], kv_head);
      for (int64_t d = 0; d < p_.head_dim; ++d) {
        out[d] += weight * (scale * LoadAsDouble(b_.v_cache, p_.cache_dtype, index + d));
      }
      sum += weight;
    }
    const double v_scale = Scale(b_.v_scale, p_.v_scale_size, kv_head);
    for (int64_t d = 0; d < p_.head_dim; ++d) out[d] *= v_scale / sum;
    if (lse_ != nullptr) lse_[row * p_.q_heads + head] = max + std::log(sum);
  }

  const Problem& p_;
  const Buffers& b_;
  double* out_;
  double* lse_;
};

}  // namespace

void PagedAttentionReference(const Problem& problem, const Buffers& buffers, double* out,
                             double* lse) {
  Reference(problem, buffers, out, lse).Run();
}

}  // namespace xla_gpu::paged_attention
