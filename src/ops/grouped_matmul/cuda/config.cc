#include "src/ops/grouped_matmul/cuda/config.h"

#include <algorithm>
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
int64_t MostTiles(const Problem& p, int tile_rows, int tile_columns) {
  const int64_t groups = std::min(p.groups, p.rows);
  return (groups + (p.rows - groups) / tile_rows) * CeilDiv(p.columns, tile_columns);
}

uint32_t Blocks(int64_t tiles, int at_once) {
  return static_cast<uint32_t>(std::clamp<int64_t>(tiles, 1, at_once));
}

// Small tiles have stages for two blocks of a multiprocessor, so that one computes while the other
// one's results are written; the largest reads the least.
struct HopperTile {
  int rows;
  int groups;  // warpgroups that compute
  int panels;  // of each
  int stages;
  int blocks;      // of a multiprocessor
  int splits = 1;  // of the inner dimension: 2 for a pair of blocks, a cluster

  int all_panels() const { return groups * panels; }
  int panel_columns(const Problem& p) const {
    return sm90::PanelColumns(static_cast<int>(DTypeSize(p.rhs_dtype)));
  }
  int columns(const Problem& p) const { return all_panels() * panel_columns(p); }
  int shared_bytes(const Problem& p) const {
    return sm90::SharedBytes(rows, all_panels(), panel_columns(p), stages, splits);
  }
};

// By the mean rows of a group. Most groups of several fit a tile that has some more.
HopperTile TileOfRows(const Problem& p) {
  const int64_t mean = p.groups == 0 ? 0 : CeilDiv(p.rows, p.groups);
  const bool narrow = mean <= (p.groups == 1 ? 16 : 10), small = mean <= (p.groups == 1 ? 32 : 24);
  if (DTypeSize(p.rhs_dtype) == 1) {  // whose panels are twice as wide
    if (narrow) return {16, 1, 1, 10, 2};
    // Sums of several scales are kept twice.
    if (small || p.scale_blocks > 1) return {32, 1, 1, 8, 2};
    if (mean <= 64) return {64, 1, 1, 6, 2};
    return {128, 2, 1, 6, 1};
  }
  if (narrow) return {16, 1, 1, 10, 2};
  if (small) return {32, 1, 1, 8, 2};
  if (mean <= 64) return {64, 2, 1, 4, 2};
  if (mean <= 160) return {128, 2, 1, 3, 2};
  return {128, 2, 2, 4, 1};
}

// Where there are few tiles, two blocks share one, and a block whose tile has few stages gets a
// multiprocessor to itself and more of them.
HopperTile ChooseTile(const Problem& p, const cuda::DeviceInfo& device) {
  HopperTile tile = TileOfRows(p);
  const int64_t tiles = MostTiles(p, tile.rows, tile.columns(p));
  if (tiles > device.num_sms) return tile;
  if (2 * tiles <= device.num_sms && p.inner > sm90::kStageInner && p.scale_blocks < 2) {
    tile.splits = 2;
  }
  constexpr int kEnoughStages = 8;
  if (tile.stages >= kEnoughStages) return tile;
  tile.blocks = 1;
  tile.stages = kEnoughStages;
  while (tile.shared_bytes(p) > device.max_shared_memory_per_block) --tile.stages;
  return tile;
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
  const HopperTile tile = ChooseTile(p, device);
  const auto bytes = static_cast<int>(DTypeSize(p.rhs_dtype));
  Config config;
  config.kernel = {kHopper,
                   "grouped_matmul_sm90",
                   {"LHS_TYPE=" + DeviceType(p.lhs_dtype), "RHS_TYPE=" + DeviceType(p.rhs_dtype),
                    "OUT_TYPE=" + DeviceType(p.out_dtype),
                    StrCat("SCALE_BLOCKS=", std::min<int64_t>(p.scale_blocks, 2)),
                    StrCat("ROWS=", tile.rows), StrCat("GROUPS=", tile.groups),
                    StrCat("PANELS=", tile.panels), StrCat("STAGES=", tile.stages),
                    StrCat("BLOCKS=", tile.blocks), StrCat("SPLITS=", tile.splits)}};
  const auto splits = static_cast<uint32_t>(tile.splits);
  config.launch.grid[0] = splits * Blocks(MostTiles(p, tile.rows, tile.columns(p)),
                                          tile.blocks * device.num_sms / tile.splits);
  config.launch.cluster[0] = splits;
  config.launch.block[0] = static_cast<uint32_t>(sm90::Threads(tile.groups, tile.blocks));
  config.launch.dynamic_shared_bytes = static_cast<uint32_t>(tile.shared_bytes(p));
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
  config.launch.grid[0] = Blocks(MostTiles(p, rows, kPortableColumns), 4 * device.num_sms);
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
  for (const int64_t groups : {128, 1}) {  // of one the tiles are few
    for (const int64_t rows : {8, 16, 64, 100, 512}) {
      for (const auto& [lhs, rhs, out] : {std::tuple{kBF16, kBF16, kF32},
                                          {kBF16, DType::kF8E4M3FN, kF32},
                                          {kF16, kF16, kF16},
                                          {kF32, DType::kI8, kBF16},
                                          {kF32, kF32, kF32}}) {
        const Problem problem{.lhs_dtype = lhs,
                              .rhs_dtype = rhs,
                              .out_dtype = out,
                              .rows = groups * rows,
                              .inner = 2048,
                              .columns = 1536,
                              .groups = groups};
        specs.push_back(ChooseConfig(problem, device).kernel);
      }
    }
  }
  return specs;
}

}  // namespace xla_gpu::grouped_matmul
