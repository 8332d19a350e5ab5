// paged_attention on the Host.
#include <vector>

#include "src/core/float_types.h"
#include "src/ops/paged_attention/paged_attention.h"
#include "src/ops/paged_attention/reference.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

class HostPlan final : public Plan {
 public:
  explicit HostPlan(const Problem& problem) : problem_(problem) {}

  Status Run(const Call& call, const ExecutionContext& context) const override {
    const Buffers buffers = BuffersFromCall(problem_, call);
    const int64_t rows = problem_.tokens * problem_.q_heads;
    std::vector<double> out(rows * problem_.head_dim);
    std::vector<double> lse(rows);
    PagedAttentionReference(problem_, buffers, out.data(), lse.data());
    for (size_t i = 0; i < out.size(); ++i) {
      StoreFromDouble(buffers.out, problem_.out_dtype, i, out[i]);
    }
    for (size_t i = 0; problem_.return_lse && i < lse.size(); ++i) buffers.lse[i] = lse[i];
    return OkStatus();
  }

 private:
  const Problem problem_;
};

}  // namespace
}  // namespace paged_attention

StatusOr<std::unique_ptr<Plan>> MakePagedAttentionHostPlan(const Call& call, int device_ordinal) {
  XLA_GPU_ASSIGN_OR_RETURN(auto problem, paged_attention::ProblemFromCall(call));
  return std::unique_ptr<Plan>(std::make_unique<paged_attention::HostPlan>(problem));
}

}  // namespace xla_gpu
