// What XLA_GPU_LOG=info says of a plan.
#include <string>

#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/config_parts.h"

namespace xla_gpu::paged_attention {
namespace {

// "decode_sm90.cu, 132 blocks of 288 threads, 197 KiB".
std::string DescribeLaunch(const KernelLaunch& launch) {
  const std::string& source = launch.spec.source;
  const uint32_t shared = launch.config.dynamic_shared_bytes;
  return StrCat(source.substr(source.rfind('/') + 1), ", ", launch.config.grid[0], " blocks of ",
                launch.config.block[0], " threads",
                shared > 0 ? StrCat(", ", (shared + 1023) / 1024, " KiB") : "");
}

}  // namespace

std::string Describe(const Problem& problem) {
  const bool same = problem.out_dtype == problem.query_dtype;
  return StrCat(InfoOf(problem.query_dtype).name, "[", problem.tokens, ",", problem.q_heads, ",",
                problem.head_dim, "]", same ? "" : StrCat(" to ", InfoOf(problem.out_dtype).name),
                ", ", InfoOf(problem.cache_dtype).name, " cache of ", problem.kv_heads,
                " kv heads, pages of ", problem.page_size, ", room for ", problem.max_seqs,
                " sequences of ", problem.max_context(), " keys",
                PromisedRows(problem) > 0
                    ? StrCat(", of at most ", problem.max_query_len, " queries a sequence")
                    : "",
                problem.sliding_window > 0 ? StrCat(", window ", problem.sliding_window) : "",
                problem.soft_cap != 0 ? ", soft cap" : "",
                problem.causal != 0 ? "" : ", not causal",
                problem.has_token_scales() ? ", scales of tokens" : "",
                problem.batch_invariant != 0 ? ", batch invariant" : "");
}

std::string Describe(const Problem& problem, const Config& config) {
  std::string text = StrCat("paged_attention of ", Describe(problem), ": ");
  if (config.tuned) text += "by the table of xla-gpu tune, ";
  const Launches launches = MakeLaunches(problem, config);
  if (config.decode_cluster == 0) text += DescribeLaunch(launches.schedule) + "; ";
  for (const KernelLaunch& launch : launches.attend) text += DescribeLaunch(launch) + "; ";
  if (config.decode_cluster == 1) {
    text += "blocks take tokens whole";
  } else if (config.decode_cluster > 1) {
    text += StrCat("clusters of ", config.decode_cluster, " share a head");
  } else if (config.decode_launch) {
    text += StrCat(config.decode_ranges, " ranges of decode work");
  } else {
    text += StrCat("no decode launch: ", config.why_not_line);
  }
  const bool terms = problem.cache_dtype == DType::kF32;  // attend takes what has no copy
  if ((config.decode_launch || config.prefill_launch) && !config.boxes && !terms) {
    text += "; keys by 16 bytes, not by boxes";
  }
  if (!config.prefill_launch) return StrCat(text, "; no prefill launch: ", config.why_not_prefill);
  if (config.prefill_blocks > 1) text += "; pairs of blocks share keys of prefill";
  if (config.copy_tokens > 0) {
    text += StrCat(
        "; of sequences with many rows ",
        terms ? "copies of 16-bit terms" : StrCat(InfoOf(problem.query_dtype).name, " copies"),
        ", up to ", config.copy_tokens, " keys");
  }
  return text;
}

}  // namespace xla_gpu::paged_attention
