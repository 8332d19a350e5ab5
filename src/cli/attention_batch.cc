#include "src/cli/attention_batch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "src/core/float_types.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/ops/paged_attention/paged_attention.h"
#include "src/ops/paged_attention/reference.h"
#include "src/xla/op_registration.h"
#include "src/xla/stablehlo_module.h"

namespace xla_gpu::cli {
namespace {

int64_t PagesOf(const AttentionBatch& batch, const BatchSequence& sequence) {
  return (sequence.context_len + batch.page_size - 1) / batch.page_size;
}

int64_t TotalPages(const AttentionBatch& batch) {
  int64_t pages = 0;
  for (const BatchSequence& sequence : batch.sequences) pages += PagesOf(batch, sequence);
  return pages;
}

// Uniform in [-1, 1): a hash of the index, so that large caches are quick to fill.
void FillRandom(HostTensor& tensor, uint64_t seed) {
  const int64_t count = tensor.view().num_elements();
  for (int64_t i = 0; i < count; ++i) {
    uint64_t x = (static_cast<uint64_t>(i) + seed) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    const float value = static_cast<float>(x >> 40) * 0x1p-23f - 1.0f;
    if (tensor.dtype == DType::kBF16) {
      tensor.data_as<uint16_t>()[i] = FloatToBF16(value);
    } else {
      StoreFromDouble(tensor.data.data(), tensor.dtype, i, value);
    }
  }
}

HostTensor Indices(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  HostTensor tensor = HostTensor::Zeros(DType::kI32, std::move(shape));
  std::memcpy(tensor.data.data(), values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

}  // namespace

int64_t AttentionBatch::tokens() const {
  int64_t tokens = 0;
  for (const BatchSequence& sequence : sequences) tokens += sequence.query_len;
  return tokens;
}

double AttentionBatch::kv_bytes() const {
  double tokens = 0;
  for (const BatchSequence& s : sequences) tokens += static_cast<double>(s.context_len);
  return 2 * tokens * static_cast<double>(kv_heads * head_dim * DTypeSize(dtype));
}

double AttentionBatch::q_bytes() const {
  return static_cast<double>(tokens()) * static_cast<double>(q_heads * head_dim * DTypeSize(dtype));
}

double AttentionBatch::flops() const {
  double pairs = 0;
  for (const BatchSequence& sequence : sequences) {
    const auto q = static_cast<double>(sequence.query_len);
    pairs += q * static_cast<double>(sequence.context_len) - q * (q - 1) / 2;
  }
  return 4.0 * pairs * static_cast<double>(q_heads * head_dim);
}

std::string AttentionBatch::Describe() const {
  const auto [least, most] = std::ranges::minmax(sequences, {}, &BatchSequence::context_len);
  return StrCat(sequences.size(), sequences.size() == 1 ? " sequence, " : " sequences, ", tokens(),
                " tokens, context ", least.context_len,
                least.context_len == most.context_len ? "" : StrCat(" to ", most.context_len));
}

std::vector<HostTensor> MakeArguments(const AttentionBatch& batch) {
  const auto num_seqs = static_cast<int64_t>(batch.sequences.size());
  int64_t max_pages = 0;
  for (const BatchSequence& s : batch.sequences) max_pages = std::max(max_pages, PagesOf(batch, s));
  std::vector<int32_t> free_pages(static_cast<size_t>(TotalPages(batch)));
  std::iota(free_pages.begin(), free_pages.end(), 0);
  std::shuffle(free_pages.begin(), free_pages.end(), std::mt19937(7));

  HostTensor query =
      HostTensor::Zeros(batch.dtype, {batch.tokens(), batch.q_heads, batch.head_dim});
  HostTensor cache = HostTensor::Zeros(
      batch.dtype, {TotalPages(batch), batch.page_size, 2 * batch.kv_heads, batch.head_dim});
  FillRandom(query, 1);
  FillRandom(cache, 1000003);
  const int64_t token_elements = 2 * batch.kv_heads * batch.head_dim;

  std::vector<int32_t> lens, starts = {0};
  std::vector<int32_t> tables(static_cast<size_t>(num_seqs * max_pages), -1);
  for (int64_t s = 0; s < num_seqs; ++s) {
    const BatchSequence& sequence = batch.sequences[static_cast<size_t>(s)];
    lens.push_back(static_cast<int32_t>(sequence.context_len));
    starts.push_back(starts.back() + static_cast<int32_t>(sequence.query_len));
    int32_t page = 0;
    for (int64_t p = 0; p < PagesOf(batch, sequence); ++p) {
      page = free_pages.back();
      free_pages.pop_back();
      tables[static_cast<size_t>(s * max_pages + p)] = page;
    }
    for (int64_t t = PagesOf(batch, sequence) * batch.page_size; t > sequence.context_len; --t) {
      const int64_t in_page = (t - 1) % batch.page_size;
      for (int64_t e = 0; e < token_elements; ++e) {
        StoreFromDouble(cache.data.data(), batch.dtype,
                        (page * batch.page_size + in_page) * token_elements + e, NAN);
      }
    }
  }
  std::vector<HostTensor> arguments;
  arguments.push_back(std::move(query));
  arguments.push_back(std::move(cache));
  arguments.push_back(Indices({num_seqs}, lens));
  arguments.push_back(Indices({num_seqs, max_pages}, tables));
  arguments.push_back(Indices({num_seqs + 1}, starts));
  arguments.push_back(Indices({1}, {static_cast<int32_t>(num_seqs)}));
  return arguments;
}

StatusOr<BatchError> CompareWithReference(const AttentionBatch& batch, const Call& call,
                                          const HostTensor& result, int64_t num_sequences) {
  XLA_GPU_ASSIGN_OR_RETURN(const paged_attention::Problem problem,
                           paged_attention::ProblemFromCall(call));
  const TensorView results[] = {result.view()};
  paged_attention::Buffers buffers =
      paged_attention::BuffersFromCall(problem, Call{call.args, results, call.attributes});
  const auto few = static_cast<int32_t>(num_sequences);
  buffers.num_seqs = &few;
  const int64_t row_size = batch.q_heads * batch.head_dim;
  std::vector<double> exact(static_cast<size_t>(batch.tokens() * row_size));
  PagedAttentionReference(problem, buffers, exact.data(), nullptr);

  int64_t rows = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    rows += batch.sequences[static_cast<size_t>(s)].query_len;
  }
  BatchError error;
  double squares = 0, rounding_squares = 0;
  HostTensor rounded = HostTensor::Zeros(result.dtype, {1});
  for (int64_t i = 0; i < rows * row_size; ++i) {
    const double wanted = exact[static_cast<size_t>(i)];
    const double difference = std::abs(LoadAsDouble(result.data.data(), result.dtype, i) - wanted);
    StoreFromDouble(rounded.data.data(), result.dtype, 0, wanted);
    const double rounding = LoadAsDouble(rounded.data.data(), result.dtype, 0) - wanted;
    // A NaN must come out as one, not vanish in max().
    error.max = std::isnan(difference) ? difference : std::max(error.max, difference);
    squares += difference * difference;
    rounding_squares += rounding * rounding;
  }
  const double count = static_cast<double>(std::max<int64_t>(rows * row_size, 1));
  error.rms = std::sqrt(squares / count);
  error.rounding = std::sqrt(rounding_squares / count);
  return error;
}

StatusOr<std::unique_ptr<BatchRunner>> BatchRunner::Create(const xla::PjrtClient* client,
                                                           const AttentionBatch& batch) {
  std::unique_ptr<BatchRunner> runner(new BatchRunner(client));
  runner->arguments_ = MakeArguments(batch);
  for (const HostTensor& argument : runner->arguments_) runner->views_.push_back(argument.view());
  XLA_GPU_RETURN_IF_ERROR(
      runner->attributes_.Add("scale", 1.0 / std::sqrt(static_cast<double>(batch.head_dim))));
  for (const TensorView& view : runner->views_) {
    XLA_GPU_ASSIGN_OR_RETURN(xla::DeviceBuffer buffer, client->ToDevice(view));
    runner->buffers_.push_back(std::move(buffer));
  }
  for (const xla::DeviceBuffer& buffer : runner->buffers_) runner->inputs_.push_back(&buffer);
  return runner;
}

StatusOr<xla::PjrtExecutable> BatchRunner::Compile(int chain) const {
  XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Get("paged_attention"));
  const Platform platform = client_->plugin().is_gpu() ? Platform::kCuda : Platform::kHost;
  XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir,
                           xla::StableHloModule(*op, platform, call(), chain));
  XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(client_->plugin(), mlir));
  return client_->Compile(mlir);
}

StatusOr<HostTensor> BatchRunner::Run() const {
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable once, Compile(1));
  XLA_GPU_ASSIGN_OR_RETURN(const auto outputs, once.Execute(inputs_));
  return outputs[0].ToHost();
}

StatusOr<std::vector<double>> BatchRunner::Time() const {
  using Clock = std::chrono::steady_clock;
  const bool gpu = client_->plugin().is_gpu();
  const int chain = gpu ? 32 : 2;
  const int warm_up = gpu ? 2 : 1;
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable chained, Compile(chain));
  std::vector<double> seconds;
  const auto start = Clock::now();
  for (int i = 0; i < 5 || Clock::now() - start < std::chrono::seconds(1); ++i) {
    const auto begin = Clock::now();
    XLA_GPU_RETURN_IF_ERROR(chained.Execute(inputs_).status());
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (i >= warm_up) seconds.push_back(taken.count() / chain);
    if (Clock::now() - start > std::chrono::seconds(4) && !seconds.empty()) break;
  }
  std::ranges::sort(seconds);
  return seconds;
}

void ShowProgress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

}  // namespace xla_gpu::cli
