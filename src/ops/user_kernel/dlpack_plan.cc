// dlpack: a function that takes DLPack tensors to own, as Python's functions on torch tensors do.
#include "src/ops/user_kernel/dlpack_call.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "src/core/strings.h"
#include "src/ops/user_kernel/cpu/function_call.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

// What the tensors of a call share, as long as one of them is there.
struct Loan {
  std::shared_ptr<const std::vector<int64_t>> dims;  // shapes and strides
  std::atomic<int64_t> in_use = 0;
};

struct LentTensor {
  dlpack::UnversionedTensor managed;
  std::shared_ptr<Loan> loan;

  static LentTensor* Make(const dlpack::Tensor& type, uint64_t address,
                          const std::shared_ptr<Loan>& loan) {
    auto* const made = new LentTensor{{type, nullptr, Delete}, loan};
    made->managed.tensor.data = reinterpret_cast<void*>(address);
    made->managed.context = made;
    loan->in_use.fetch_add(1);
    return made;
  }
  static void Delete(dlpack::UnversionedTensor* self) {
    const std::unique_ptr<LentTensor> tensor(static_cast<LentTensor*>(self->context));
    tensor->loan->in_use.fetch_sub(1);
  }
};

class DlpackPlan final : public Plan {
 public:
  DlpackPlan(const Definition& definition, Platform platform, const Call& call, int device)
      : parameters_(definition, *definition.implementations[static_cast<size_t>(platform)], call),
        device_(platform == Platform::kHost ? dlpack::Device{dlpack::kCpu, 0}
                                            : dlpack::Device{dlpack::kCuda, device}) {
    const Implementation& implementation =
        *definition.implementations[static_cast<size_t>(platform)];
    function_ = reinterpret_cast<const void*>(implementation.address);
    types_.push_back(DType::kU64);  // the DlpackCall
    auto dims = std::make_shared<std::vector<int64_t>>();
    for (const ParameterPlan::Step& step : parameters_.steps()) {
      using Kind = ParameterPlan::Step::Kind;
      if (step.kind == Kind::kArgument || step.kind == Kind::kResult) {
        const TensorView& view =
            (step.kind == Kind::kResult ? call.results : call.args)[step.index];
        const auto rank = static_cast<int32_t>(view.rank());
        tensors_.push_back(
            {types_.size(), {nullptr, device_, rank, dlpack::TypeOf(view.dtype), {}, {}, 0}});
        dims->insert(dims->end(), view.shape.begin(), view.shape.end());
        dims->resize(dims->size() + view.shape.size());
      }
      types_.push_back(step.type);
    }
    int64_t* next = dims->data();
    for (auto& [position, type] : tensors_) {
      type.shape = std::exchange(next, next + type.rank);
      type.strides = std::exchange(next, next + type.rank);
      dlpack::FillStrides(type.shape, type.rank, type.strides);
    }
    dims_ = std::move(dims);
  }

  Status Run(const Call& call, const ExecutionContext& context) const override {
    std::array<uint64_t, kMaxParameters + 1> values;
    parameters_.Fill(call, context.stream, std::span(values).subspan(1));
    const auto loan = std::make_shared<Loan>();
    loan->dims = dims_;
    DlpackCall frame;
    frame.stream = context.stream;
    frame.device = device_;
    frame.in_use = &loan->in_use;
    frame.taken = 0;
    frame.error[0] = frame.error[sizeof(frame.error) - 1] = '\0';
    values[0] = reinterpret_cast<uint64_t>(&frame);
    for (const auto& [position, type] : tensors_) {
      uint64_t& value = values[position];
      value = reinterpret_cast<uint64_t>(&LentTensor::Make(type, value, loan)->managed);
    }
    const int result = CallFunction(function_, types_, std::span(values).first(types_.size()));
    for (size_t i = static_cast<size_t>(frame.taken); i < tensors_.size(); ++i) {
      LentTensor::Delete(
          reinterpret_cast<dlpack::UnversionedTensor*>(values[tensors_[i].position]));
    }
    if (result == 0 && frame.taken != static_cast<int64_t>(tensors_.size())) {
      return Internal("the function ended without taking its tensors");
    }
    if (result != 0) return Status(static_cast<StatusCode>(result), frame.error);
    if (const int64_t kept = loan->in_use; kept != 0) {
      return FailedPrecondition("the function keeps ", kept,
                                " of the call's tensors, whose memory is the call's alone; "
                                "it must copy what it wants to keep");
    }
    return OkStatus();
  }

 private:
  struct TensorParameter {
    size_t position;      // in the function's parameters
    dlpack::Tensor type;  // without data
  };

  const ParameterPlan parameters_;
  const dlpack::Device device_;
  const void* function_ = nullptr;
  std::vector<DType> types_;
  std::vector<TensorParameter> tensors_;
  std::shared_ptr<const std::vector<int64_t>> dims_;
};

}  // namespace

StatusOr<std::unique_ptr<Plan>> MakeDlpackPlan(std::shared_ptr<const Definition> definition,
                                               Platform platform, const Call& call, int device) {
  return std::unique_ptr<Plan>(std::make_unique<DlpackPlan>(*definition, platform, call, device));
}

}  // namespace xla_gpu::user_kernel
