#include "src/cli/tune_shape.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <numeric>
#include <random>

#include "src/core/ceil_div.h"
#include "src/core/float_types.h"
#include "src/core/host_tensor.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/tuning.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace xla_gpu::cli {
namespace {

// So that a slip of the keyboard does not fill the machine.
constexpr double kMaxBytes = 64e9;
constexpr double kNoise = 0.02;
// Of the results' root mean square: rounding of inputs, weights and results gives a tenth of it,
// one page of hundreds that is left out more.
constexpr double kMostDifference = 0.02;
constexpr double kMostF32Difference = 1e-4;

// One of `sequences` has as many new tokens as `query_lens` says over a context of as many as
// `context_lens`.
struct Lengths {
  explicit Lengths(const TuneShape& shape) {
    std::mt19937 rng(11);
    std::uniform_int_distribution<int64_t> any(shape.query_len, shape.context);
    for (int64_t s = 0; s < shape.seqs; ++s) {
      query.push_back(shape.query_len);
      context.push_back(shape.ragged ? any(rng) : shape.context);
    }
    if (shape.chunk > 0) {
      query.push_back(shape.chunk);
      context.push_back(shape.chunk_context > 0 ? shape.chunk_context : shape.context);
    }
    for (const int64_t length : context) pages += CeilDiv(length, shape.page_size);
  }
  int64_t seqs() const { return static_cast<int64_t>(query.size()); }
  int64_t tokens() const { return std::accumulate(query.begin(), query.end(), int64_t{0}); }

  std::vector<int64_t> query, context;
  int64_t pages = 0;
};

// The shape's call with its tensors on the device.
class DeviceCall {
 public:
  DeviceCall(cuda::BenchDevice& device, const TuneShape& shape) : device_(device), shape_(shape) {}

  Status Init() {
    const Lengths lengths(shape_);
    const int64_t tokens = std::max(lengths.tokens(), shape_.max_tokens);
    const int64_t seqs = std::max(lengths.seqs(), shape_.max_seqs);
    const int64_t columns =
        CeilDiv(std::max(shape_.longest(), shape_.max_context), shape_.page_size);
    arg_types_ = {
        {shape_.dtype, {tokens, shape_.q_heads, shape_.head_dim}},
        {shape_.cache_dtype,
         {lengths.pages, shape_.page_size, 2 * shape_.kv_heads, shape_.head_dim}},
        {DType::kI32, {seqs}},
        {DType::kI32, {seqs, columns}},
        {DType::kI32, {seqs + 1}},
        {DType::kI32, {1}},
    };
    for (const TensorSpec& type : arg_types_) args_.push_back({nullptr, type.dtype, type.shape});
    Attributes attributes;
    XLA_GPU_RETURN_IF_ERROR(attributes.Add("max_query_len", shape_.max_query_len));
    if (shape_.window > 0) {
      XLA_GPU_RETURN_IF_ERROR(attributes.Add("sliding_window", shape_.window));
    }
    if (shape_.soft_cap > 0) {
      XLA_GPU_RETURN_IF_ERROR(attributes.Add("soft_cap", static_cast<double>(shape_.soft_cap)));
    }
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Get("paged_attention"));
    XLA_GPU_ASSIGN_OR_RETURN(result_types_,
                             InferTypes(*op, Platform::kCuda, {args_, {}, &attributes}));
    attributes_ = CompleteAttributes(*op, attributes);
    XLA_GPU_ASSIGN_OR_RETURN(problem_, paged_attention::ProblemFromCall(call()));
    for (TensorView& arg : args_) {
      XLA_GPU_ASSIGN_OR_RETURN(arg.data, device_.Allocate(arg.size_bytes()));
    }
    for (const TensorSpec& type : result_types_) {
      TensorView view{nullptr, type.dtype, type.shape};
      XLA_GPU_ASSIGN_OR_RETURN(view.data, device_.Allocate(view.size_bytes()));
      results_.push_back(view);
    }
    XLA_GPU_RETURN_IF_ERROR(FillRandom(args_[0]));
    XLA_GPU_RETURN_IF_ERROR(FillRandom(args_[1]));
    return FillIndices(lengths);
  }

  const paged_attention::Problem& problem() const { return problem_; }
  Call call() const { return {args_, results_, &attributes_}; }
  const TensorView& out() const { return results_[0]; }

  // The result of a run, into memory that held NaN.
  StatusOr<std::vector<uint8_t>> Run(const Plan& plan) {
    std::vector<uint8_t> result(static_cast<size_t>(out().size_bytes()));
    XLA_GPU_RETURN_IF_ERROR(device_.Fill(out().data, 0xff, out().size_bytes()));
    XLA_GPU_RETURN_IF_ERROR(plan.Run(call(), {}));
    XLA_GPU_RETURN_IF_ERROR(device_.CopyOut(result.data(), out().data, out().size_bytes()));
    return result;
  }

 private:
  // Uniform in [-1, 1). A large tensor repeats a block whose size no page or head has.
  Status FillRandom(const TensorView& tensor) {
    const int64_t count = std::min<int64_t>(tensor.num_elements(), 4000037);
    HostTensor block = HostTensor::Zeros(tensor.dtype, {count});
    std::mt19937 rng(7);
    for (int64_t i = 0; i < count; ++i) {
      StoreFromDouble(block.data.data(), block.dtype, i, static_cast<double>(rng()) * 0x1p-31 - 1);
    }
    const auto size = static_cast<int64_t>(block.data.size());
    for (int64_t at = 0; at < tensor.size_bytes(); at += size) {
      XLA_GPU_RETURN_IF_ERROR(device_.CopyIn(static_cast<char*>(tensor.data) + at,
                                             block.data.data(),
                                             std::min(size, tensor.size_bytes() - at)));
    }
    return OkStatus();
  }

  // Pages in random order, as a server's are after a while.
  Status FillIndices(const Lengths& lengths) {
    std::vector<int32_t> pages(static_cast<size_t>(lengths.pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
    std::vector<int32_t> contexts(static_cast<size_t>(args_[2].num_elements()));
    std::vector<int32_t> tables(static_cast<size_t>(args_[3].num_elements()), -1);
    std::vector<int32_t> starts(static_cast<size_t>(args_[4].num_elements()));
    const auto columns = static_cast<size_t>(args_[3].dim(1));
    auto next = pages.begin();
    for (size_t s = 0; s < contexts.size(); ++s) {
      const bool used = s < lengths.query.size();
      starts[s + 1] = starts[s] + (used ? static_cast<int32_t>(lengths.query[s]) : 0);
      if (!used) continue;
      contexts[s] = static_cast<int32_t>(lengths.context[s]);
      const int64_t count = CeilDiv(lengths.context[s], shape_.page_size);
      std::copy(next, next + count, tables.begin() + static_cast<int64_t>(s * columns));
      next += count;
    }
    std::vector<int32_t> seqs = {static_cast<int32_t>(lengths.seqs())};
    size_t i = 2;
    for (const auto* values : {&contexts, &tables, &starts, &seqs}) {
      const TensorView& arg = args_[i++];
      XLA_GPU_RETURN_IF_ERROR(device_.CopyIn(arg.data, values->data(), arg.size_bytes()));
    }
    return OkStatus();
  }

  cuda::BenchDevice& device_;
  const TuneShape shape_;
  std::vector<TensorSpec> arg_types_, result_types_;  // whose shapes the views show
  std::vector<TensorView> args_, results_;
  Attributes attributes_;
  paged_attention::Problem problem_;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Status TuneShape::Check() const {
  const auto includes = [](const char* name, int64_t tokens, const char* new_name, int64_t fresh) {
    if (tokens >= fresh) return OkStatus();
    return InvalidArgument("--", name, " is ", tokens, " but --", new_name, " is ", fresh,
                           "; the context includes the new tokens");
  };
  XLA_GPU_RETURN_IF_ERROR(includes("context", context, "query-len", query_len));
  XLA_GPU_RETURN_IF_ERROR(chunk_context > 0
                              ? includes("chunk-context", chunk_context, "chunk", chunk)
                              : includes("context", context, "chunk", chunk));
  const double all_seqs = static_cast<double>(std::max(max_seqs, seqs + 1));
  const int64_t columns = CeilDiv(std::max(longest(), max_context), page_size);
  const double tokens = std::max(
      static_cast<double>(max_tokens),
      static_cast<double>(seqs) * static_cast<double>(query_len) + static_cast<double>(chunk));
  const double width = static_cast<double>(head_dim);
  const double bytes =
      (static_cast<double>(seqs) * static_cast<double>(context + page_size) +
       static_cast<double>(longest() + page_size)) *
          2 * static_cast<double>(kv_heads) * width * static_cast<double>(DTypeSize(cache_dtype)) +
      2 * tokens * static_cast<double>(q_heads) * width * static_cast<double>(DTypeSize(dtype)) +
      4 * all_seqs * static_cast<double>(columns);
  if (bytes <= kMaxBytes) return OkStatus();
  return InvalidArgument("the tensors of ", seqs, " sequences of ", context, " tokens would take ",
                         bytes / 1e9, " GB; at most ", kMaxBytes / 1e9,
                         " are allowed (--seqs, --context, the heads, the room)");
}

StatusOr<TunedProblem> TimeChoices(cuda::BenchDevice& device, const TuneShape& shape,
                                   const std::function<void(const std::string&)>& progress) {
  using Clock = std::chrono::steady_clock;
  DeviceCall call(device, shape);
  progress("filling the cache");
  XLA_GPU_RETURN_IF_ERROR(call.Init());
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<paged_attention::Config> configs,
                           paged_attention::Alternatives(call.problem(), device.info()));
  const bool f32 = call.problem().query_dtype == DType::kF32;
  progress(StrCat("compiling ", StrJoin(configs, ", ", paged_attention::NameOf)));
  using MadePlan = StatusOr<std::unique_ptr<Plan>>;
  std::vector<std::future<MadePlan>> made;  // each kernel in a compiler process of its own
  for (const paged_attention::Config& config : configs) {
    made.push_back(std::async(std::launch::async, [&] {
      return paged_attention::MakeCudaPlan(call.problem(), config, device.info().ordinal);
    }));
  }
  TunedProblem tuned{call.problem(), {}};
  std::vector<std::unique_ptr<Plan>> plans;
  std::vector<uint8_t> expected;
  for (size_t i = 0; i < configs.size(); ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(plans.emplace_back(), made[i].get());
    tuned.choices.push_back({NameOf(configs[i]), 0});
    XLA_GPU_ASSIGN_OR_RETURN(std::vector<uint8_t> result, call.Run(*plans[i]));
    if (i == 0) expected = result;
    const double error =
        RelativeError(result.data(), expected.data(), call.out().dtype, call.out().num_elements());
    if (!(error <= (f32 ? kMostF32Difference : kMostDifference))) {
      return Internal("the results of '", tuned.choices[i].launches, "' differ from those of '",
                      tuned.choices[0].launches, "' by ", error, " for ", Describe(call.problem()),
                      "; nothing was kept: this is a bug, please report it");
    }
  }
  progress("timing");
  std::vector<std::vector<double>> times(plans.size());
  const auto end = Clock::now() + plans.size() * std::chrono::milliseconds(200);
  // In turn, so that a change of clocks is one of all.
  for (int round = 0; round < 5 || (round < 100 && Clock::now() < end); ++round) {
    for (size_t i = 0; i < plans.size(); ++i) {
      XLA_GPU_ASSIGN_OR_RETURN(const double microseconds,
                               device.Time([&] { return plans[i]->Run(call.call(), {}); }));
      times[i].push_back(microseconds);
    }
  }
  for (size_t i = 0; i < plans.size(); ++i) tuned.choices[i].microseconds = Median(times[i]);
  return tuned;
}

size_t BestOf(const std::vector<TimedChoice>& choices) {
  const auto fastest = std::ranges::min_element(choices, {}, &TimedChoice::microseconds);
  if (fastest->microseconds > (1 - kNoise) * choices[0].microseconds) return 0;
  return static_cast<size_t>(fastest - choices.begin());
}

double RelativeError(const void* a, const void* b, DType dtype, int64_t count) {
  double squares = 0, of_b = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double exact = LoadAsDouble(b, dtype, i);
    const double difference = LoadAsDouble(a, dtype, i) - exact;
    squares += difference * difference;
    of_b += exact * exact;
  }
  return squares == 0 ? 0 : std::sqrt(squares / of_b);
}

}  // namespace xla_gpu::cli
