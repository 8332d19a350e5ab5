#include "src/ops/grouped_matmul/cuda/config.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "src/core/ceil_div.h"
#include "src/core/strings.h"

namespace xla_gpu::grouped_matmul {
namespace {

constexpr char kPortable[] = "src/ops/grouped_matmul/cuda/grouped_matmul.cu";
constexpr char kHopper[] = "src/ops/grouped_matmul/cuda/grouped_matmul_sm90.cu";

std::string DeviceType(DType dtype) {
  return dtype == DType::kI8 ? "signed char" : std::string(InfoOf(dtype).device);
}

// At most: a group ends in at most one tile that is not full.
uint32_t Blocks(const Problem& p, int tile_rows, int tile_columns, int at_once) {
  const int64_t row_tiles = p.rows / tile_rows + std::min(p.groups, p.rows);
  const int64_t tiles = row_tiles * CeilDiv(p.columns, tile_columns);
  return static_cast<uint32_t>(std::clamp<int64_t>(tiles, 1, at_once));
}

// By the mean rows of a group. Small tiles have stages for two blocks of a multiprocessor, so that
// one computes while the other one's results are written; the largest reads the least.
struct HopperTile {
  int rows;
  int groups;  // warpgroups that compute
  int panels;  // of each
  int stages;
  int blocks;  // of a multiprocessor
  int splits = 1;  // of the inner dimension

  int all_panels() const { return groups * panels; }
};
HopperTile ChooseTile(const Problem& p) {
  const int64_t mean = p.groups == 0 ? 0 : CeilDiv(p.rows, p.groups);
  if (DTypeSize(p.rhs_dtype) == 1) {  // whose panels are twice as wide
    if (mean <= 10) return {16, 1, 1, 10, 2};
    // Sums of several scales are kept twice.
    if (mean <= 24 || p.scale_blocks > 1) return {32, 1, 1, 8, 2};
    if (mean <= 64) return {64, 1, 1, 6, 2};
    return {128, 2, 1, 6, 1};
  }
  if (mean <= 10) return {16, 1, 1, 10, 2};
  if (mean <= 24) return {32, 1, 1, 8, 2};
  if (mean <= 64) return {64, 2, 1, 4, 2};
  if (mean <= 160) return {128, 2, 1, 3, 2};
  return {128, 2, 2, 4, 1};
}

bool FitsHopper(const Problem& p, const cuda::DeviceInfo& device) {
  const int64_t bytes = DTypeSize(p.rhs_dtype);
  const bool types = DTypeSize(p.lhs_dtype) == 2 && (bytes == 1 || p.lhs_dtype == p.rhs_dtype);
  // Blocks of scales are whole stages.
  const bool scales =
      p.scale_blocks == 0 ||
      (bytes == 1 && (p.scale_blocks == 1 || p.inner / p.scale_blocks % sm90::kStageInner == 0));
  return device.compute_major == 9 && device.tensor_maps && types && scales && p.inner % 8 == 0 &&
         p.columns * bytes % 16 == 0 && p.rows > 0 && p.groups > 0 && p.columns > 0;
}

// A matrix, or several, of 16-bit words, rows of which lie in memory one after the other.
cuda::TensorMapSpec Matrices(int64_t columns, int64_t rows, int64_t count, int box_rows) {
  const auto width = static_cast<uint64_t>(columns), height = static_cast<uint64_t>(rows),
             depth = static_cast<uint64_t>(count);
  const uint64_t row = width * 2, matrix = row * height;
  return {{width, height, depth, 1, 1},
          {row, matrix, matrix, matrix},
          {64, static_cast<uint32_t>(box_rows), 1, 1, 1}};
}

Config HopperConfig(const Problem& p, const cuda::DeviceInfo& device) {
  HopperTile tile = ChooseTile(p);
  if (const char* e = getenv("GM_EXP"); e && p.rows < 1000) sscanf(e, "%d,%d,%d,%d,%d,%d", &tile.rows, &tile.groups, &tile.panels, &tile.stages, &tile.blocks, &tile.splits);
  while (tile.splits > 1 && (CeilDiv(p.inner, sm90::kStageInner) < tile.splits || p.scale_blocks > 1)) tile.splits /= 2;
  const auto bytes = static_cast<int>(DTypeSize(p.rhs_dtype));
  const int columns = sm90::PanelColumns(bytes);
  Config config;
  config.kernel = {
      kHopper,
      "grouped_matmul_sm90",
      {"LHS_TYPE=" + DeviceType(p.lhs_dtype), "RHS_TYPE=" + DeviceType(p.rhs_dtype),
       "OUT_TYPE=" + DeviceType(p.out_dtype),
       StrCat("SCALE_BLOCKS=", std::min<int64_t>(p.scale_blocks, 2)), StrCat("ROWS=", tile.rows),
       StrCat("GROUPS=", tile.groups), StrCat("PANELS=", tile.panels),
       StrCat("STAGES=", tile.stages), StrCat("BLOCKS=", tile.blocks),
       StrCat("SPLITS=", tile.splits)}};
  const auto splits = static_cast<uint32_t>(tile.splits);
  config.launch.grid[0] = splits * Blocks(p, tile.rows, columns * tile.all_panels(),
                                          tile.blocks * device.num_sms / tile.splits);
  config.launch.cluster[0] = splits;
  config.launch.block[0] = static_cast<uint32_t>(sm90::Threads(tile.groups, tile.blocks));
  config.launch.dynamic_shared_bytes =
      static_cast<uint32_t>(sm90::SharedBytes(tile.rows, tile.all_panels(), columns, tile.stages, tile.splits));
  config.boxes =
      Config::Boxes{Matrices(p.inner, p.rows, 1, tile.rows),
                    Matrices(p.columns * bytes / 2, p.inner, p.groups, sm90::kStageInner)};
  return config;
}

}  // namespace

Config ChooseConfig(const Problem& p, const cuda::DeviceInfo& device, bool aligned) {
  if (aligned && FitsHopper(p, device)) {
    Config config = HopperConfig(p, device);
    if (IsAccepted(config.boxes->lhs) && IsAccepted(config.boxes->rhs)) return config;
  }
  const int rows = p.rows <= 16 * p.groups ? 16 : 64;
  Config config;
  config.kernel = {kPortable,
                   "grouped_matmul",
                   {"LHS_TYPE=" + DeviceType(p.lhs_dtype), "RHS_TYPE=" + DeviceType(p.rhs_dtype),
                    "OUT_TYPE=" + DeviceType(p.out_dtype), StrCat("ROWS=", rows)}};
  config.launch.grid[0] = Blocks(p, rows, kPortableColumns, 4 * device.num_sms);
  config.launch.block[0] = kPortableThreads;
  return config;
}

Params PlanParams(const Problem& p) {
  Params params{};
  params.rows = static_cast<int>(p.rows);
  params.inner = static_cast<int>(p.inner);
  params.columns = static_cast<int>(p.columns);
  params.groups = static_cast<int>(p.groups);
  params.scale_blocks = static_cast<int>(p.scale_blocks);
  return params;
}

std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device) {
  std::vector<cuda::KernelSpec> specs;
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;
  for (const int64_t rows : {8, 16, 64, 100, 512}) {
    for (const auto& [lhs, rhs, out] : {std::tuple{kBF16, kBF16, kF32},
                                        {kF16, kF16, kF16},
                                        {kF32, DType::kI8, kBF16},
                                        {kBF16, DType::kF8E4M3FN, kF32},
                                        {kF32, kF32, kF32}}) {
      const Problem problem{.lhs_dtype = lhs,
                            .rhs_dtype = rhs,
                            .out_dtype = out,
                            .rows = 128 * rows,
                            .inner = 2048,
                            .columns = 1536,
                            .groups = 128};
      specs.push_back(ChooseConfig(problem, device).kernel);
    }
  }
  return specs;
}

}  // namespace xla_gpu::grouped_matmul
