// MultiplyTile: in f32, a few rows by two vectors of columns at a time, so that their sums stay in
// registers while a part of the inner dimension goes by that the caches hold.
#if defined(XLA_GPU_OPS_GROUPED_MATMUL_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_GROUPED_MATMUL_CPU_TILE_INL_H_
#undef XLA_GPU_OPS_GROUPED_MATMUL_CPU_TILE_INL_H_
#else
#define XLA_GPU_OPS_GROUPED_MATMUL_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "src/ops/grouped_matmul/cpu/kernels.h"
#include "src/ops/paged_cache/cpu/amx.h"
#include "src/ops/paged_cache/cpu/bf16-inl.h"
#include "src/ops/paged_cache/cpu/elements-inl.h"
#include "src/ops/paged_cache/cpu/instruction_set.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::grouped_matmul {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace paged_cache::HWY_NAMESPACE;  // NOLINT: the elements

constexpr int64_t kVector = kLanes, kPair = 2 * kVector;
constexpr int64_t kInnerPart = 128;
constexpr int64_t kMostRows = 6;    // whose sums fit 16 registers
constexpr int64_t kRowsAhead = 16;  // of the matrix, that memory is asked for
constexpr bool kManyRegisters = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM;

struct I8 : InOrder<I8> {
  using Raw = int8_t;
  static constexpr float kFactor = 1.0f;
  static HWY_INLINE VF32 Load(const int8_t* from) {
    const auto bytes = hn::LoadU(hn::Rebind<int8_t, F32>(), from);
    return hn::ConvertTo(F32(), hn::PromoteTo(I32(), bytes));
  }
};

HWY_INLINE void StoreAs(DType dtype, VF32 x, void* to) {
  if (dtype == DType::kF32) return hn::StoreU(x, F32(), static_cast<float*>(to));
  if (dtype == DType::kBF16) return StoreBF16(x, static_cast<uint16_t*>(to));
  StoreF16(x, static_cast<uint16_t*>(to));
}

// n elements as f32.
template <class From>
HWY_INLINE void ToF32(const void* data, int64_t n, float* to) {
  const auto* from = static_cast<const typename From::Raw*>(data);
  int64_t i = 0;
  for (; i + kVector <= n; i += kVector) hn::StoreU(From::Load(from + i), F32(), to + i);
  if (i == n) return;
  typename From::Raw tail[kLanes] = {};
  HWY_ALIGN float values[kLanes];
  std::memcpy(tail, from + i, static_cast<size_t>(n - i) * sizeof(tail[0]));
  hn::Store(From::Load(tail), F32(), values);
  std::memcpy(to + i, values, static_cast<size_t>(n - i) * sizeof(values[0]));
}

// n elements become those of even index of each pair of vectors and those of odd index.
HWY_INLINE void ToEvenOdd(float* x, int64_t n) {
  for (float* pair = x; pair != x + n; pair += kPair) {
    VF32 even, odd;
    hn::LoadInterleaved2(F32(), pair, even, odd);
    hn::Store(even, F32(), pair);
    hn::Store(odd, F32(), pair + kVector);
  }
}

// The reverse.
HWY_INLINE void FromEvenOdd(float* x, int64_t n) {
  for (float* pair = x; pair != x + n; pair += kPair) {
    const VF32 even = hn::Load(F32(), pair), odd = hn::Load(F32(), pair + kVector);
    hn::StoreInterleaved2(even, odd, F32(), pair);
  }
}

// A row's part as f32.
HWY_INLINE void LoadLhs(const TileTask& task, int64_t row, int64_t k, int64_t n, float* to) {
  const int64_t at = row * task.inner + k;
  if (task.lhs_dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(task.lhs) + at, n, to);
  } else if (task.lhs_dtype == DType::kBF16) {
    ToF32<CacheBF16>(static_cast<const uint16_t*>(task.lhs) + at, n, to);
  } else {
    ToF32<CacheF16>(static_cast<const uint16_t*>(task.lhs) + at, n, to);
  }
}

// Asks memory for kCount elements: rows lie far apart, which the processor's own prefetching does
// not follow.
template <size_t kCount, typename Raw>
HWY_INLINE void Ask(const Raw* from) {
  for (size_t i = 0; i < kCount; i += 64 / sizeof(Raw)) __builtin_prefetch(from + i, 0, 2);
}

// `inner` rows of `columns` elements, at most 2 * kVector, as f32 in the order of LoadPair.
template <class T>
HWY_INLINE void Widen(const typename T::Raw* from, int64_t stride, int64_t inner, int64_t columns,
                      float* to) {
  typename T::Raw whole[kPair] = {};
  for (int64_t k = 0; k < inner; ++k, from += stride, to += kPair) {
    Ask<kPair>(from + 64);
    if (columns < kPair) std::memcpy(whole, from, static_cast<size_t>(columns) * sizeof(whole[0]));
    VF32 pair[2];
    T::LoadPair(columns < kPair ? whole : from, pair);
    hn::Store(pair[0], F32(), to);
    hn::Store(pair[1], F32(), to + kVector);
  }
}

// sums[row][0 to kPairs * kPair) += factors * (lhs[row] @ rhs) in the order of LoadPair; lhs has
// rows of kInnerPart elements.
template <class T, int kRows, int kPairs>
HWY_NOINLINE void AddProduct(const float* lhs, const typename T::Raw* rhs, int64_t stride,
                             int64_t inner, float factor, const float* factors, float* sums) {
  constexpr int kWide = 2 * kPairs;
  constexpr bool kAsks = kPairs * kPair * sizeof(typename T::Raw) % 64 == 0;  // whole lines
  VF32 products[kRows * kWide];
  Unrolled<kRows * kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA { products[i] = hn::Zero(F32()); });
  for (int64_t k = 0; k < inner; ++k, rhs += stride) {
    if (kAsks && stride != kPair) Ask<kPairs * kPair>(rhs + kRowsAhead * stride);
    VF32 b[kWide];
    Unrolled<kPairs>([&](auto i)
                         XLA_GPU_INLINE_LAMBDA { T::LoadPair(rhs + i * kPair, b + 2 * i); });
    Unrolled<kRows>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      const VF32 a = hn::Set(F32(), lhs[i * kInnerPart + k]);
      Unrolled<kWide>([&](auto j) XLA_GPU_INLINE_LAMBDA {
        products[i * kWide + j] = hn::MulAdd(a, b[j], products[i * kWide + j]);
      });
    });
  }
  Unrolled<kRows * kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA {
    float* const sum = sums + i / kWide * kTileColumns + i % kWide * kLanes;
    // In this order, as the product of two factors may be no f32.
    const VF32 product = hn::Mul(products[i], hn::Set(F32(), factor));
    const VF32 last = hn::Load(F32(), factors + i % kWide * kLanes);
    hn::Store(hn::MulAdd(product, last, hn::Load(F32(), sum)), F32(), sum);
  });
}

// So few rows do without a widened copy of the matrix, and take more columns at once.
constexpr int64_t kFewRows = kManyRegisters ? 5 : kMostRows;
constexpr int64_t PairsOf(int64_t rows) {
  return kManyRegisters ? (rows <= 2 ? 4 : 2) : rows <= 2 ? 2 : 1;
}

// AddProduct of as many rows as there are.
template <class T, bool kFew>
HWY_INLINE void AddRows(int64_t rows, const float* lhs, const typename T::Raw* rhs, int64_t stride,
                        int64_t inner, float factor, const float* factors, float* sums) {
  constexpr int64_t kMost = kFew ? kFewRows : kMostRows;
  for (int64_t times = (rows + kMost - 1) / kMost; times > 0; --times) {
    const int64_t n = (rows + times - 1) / times;
    Unrolled<kMost>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      constexpr int kRows = i + 1, kPairs = kFew ? PairsOf(kRows) : 1;
      if (n == kRows) AddProduct<T, kRows, kPairs>(lhs, rhs, stride, inner, factor, factors, sums);
    });
    lhs += n * kInnerPart, sums += n * kTileColumns, rows -= n;
  }
}

// The tile's sums, rows of kTileColumns.
HWY_INLINE void StoreSums(const TileTask& task, const float* sums) {
  const int64_t size = DTypeSize(task.out_dtype);
  for (int64_t row = 0; row < task.rows; ++row) {
    char* to = static_cast<char*>(task.out) + row * task.row_stride * size;
    const float* from = sums + row * kTileColumns;
    int64_t i = 0;
    for (; i + kVector <= task.columns; i += kVector) {
      StoreAs(task.out_dtype, hn::LoadU(F32(), from + i), to + i * size);
    }
    if (i == task.columns) continue;
    HWY_ALIGN float tail[kLanes];
    StoreAs(task.out_dtype, hn::LoadU(F32(), from + i), tail);
    std::memcpy(to + i * size, tail, static_cast<size_t>((task.columns - i) * size));
  }
}

template <class Rhs>
HWY_INLINE void Multiply(const TileTask& task) {
  using Raw = typename Rhs::Raw;
  static_assert(kTileColumns % kPair == 0);
  const int64_t sums_size = task.rows * kTileColumns, stride = task.row_stride;
  float* const sums = ThreadScratch(sums_size + kInnerPart * (kPair + task.rows));
  float* const panel = sums + sums_size;
  float* const lhs = panel + kInnerPart * kPair;
  HWY_ALIGN float factors[kTileColumns];
  std::fill_n(factors, kTileColumns, 1.0f);
  std::fill_n(sums, sums_size, 0.0f);
  const int64_t in_block = task.inner / task.blocks;
  for (int64_t block = 0; block < task.blocks; ++block) {
    if (task.scale != nullptr) {
      std::copy_n(task.scale + block * stride, task.columns, factors);
      if (Rhs::kEvenOdd) ToEvenOdd(factors, kTileColumns);
    }
    const int64_t end = (block + 1) * in_block;
    for (int64_t k = block * in_block; k < end; k += kInnerPart) {
      const int64_t inner = std::min(end - k, kInnerPart);
      for (int64_t row = 0; row < task.rows; ++row) {
        LoadLhs(task, row, k, inner, lhs + row * kInnerPart);
      }
      const Raw* const rhs = static_cast<const Raw*>(task.rhs) + k * stride;
      for (int64_t column = 0, columns; column < task.columns; column += columns) {
        const int64_t left = task.columns - column;
        columns = std::min(left, kPair);
        const int64_t wide = PairsOf(task.rows) * kPair;
        if (task.rows <= kFewRows && wide <= left) {
          columns = wide;
          AddRows<Rhs, true>(task.rows, lhs, rhs + column, stride, inner, Rhs::kFactor,
                             factors + column, sums + column);
        } else if (!kManyRegisters && std::is_same_v<Rhs, CacheF32> && columns == kPair) {
          AddRows<Rhs, false>(task.rows, lhs, rhs + column, stride, inner, Rhs::kFactor,
                              factors + column, sums + column);
        } else {
          Widen<Rhs>(rhs + column, stride, inner, columns, panel);
          AddRows<CacheF32, false>(task.rows, lhs, panel, kPair, inner, Rhs::kFactor,
                                   factors + column, sums + column);
        }
      }
    }
  }
  if (Rhs::kEvenOdd) FromEvenOdd(sums, sums_size);
  StoreSums(task, sums);
}

#if XLA_GPU_HAVE_BF16_DOT
constexpr int64_t kPartWords = kInnerPart / 2;
constexpr int64_t kPanel = kPartWords * 2 * kVector;

// sums[row][0 to 2 * kVector) += factors * (lhs[row] @ rhs), of n words a row.
template <int kRows>
HWY_NOINLINE void AddWords(const uint32_t* lhs, const uint32_t* rhs, int64_t n,
                           const float* factors, float* sums) {
  VF32 to[2 * kRows];
  Unrolled<2 * kRows>([&](auto i) XLA_GPU_INLINE_LAMBDA { to[i] = hn::Zero(F32()); });
  for (int64_t k = 0; k < n; ++k, rhs += 2 * kVector) {
    const VU32 b0 = hn::Load(U32(), rhs), b1 = hn::Load(U32(), rhs + kLanes);
    Unrolled<kRows>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      const VU32 a = hn::Set(U32(), lhs[i * kPartWords + k]);
      to[2 * i] = AddProducts(to[2 * i], a, b0);
      to[2 * i + 1] = AddProducts(to[2 * i + 1], a, b1);
    });
  }
  Unrolled<2 * kRows>([&](auto i) XLA_GPU_INLINE_LAMBDA {
    float* const sum = sums + i / 2 * kTileColumns + i % 2 * kLanes;
    const VF32 factor = hn::Load(F32(), factors + i % 2 * kLanes);
    hn::Store(hn::MulAdd(to[i], factor, hn::Load(F32(), sum)), F32(), sum);
  });
}

// As AddWords, of any number of rows, by AMX; lhs has rows of zeros up to a whole tile, and both
// have words of zeros up to one.
HWY_INLINE void AddWordsByAmx(const paged_cache::AmxUnit& amx, int64_t rows, const uint32_t* lhs,
                              const uint32_t* rhs, int64_t n, const float* factors, float* sums) {
  constexpr int64_t kTile = paged_cache::kAmxRows, kColumns = 2 * kVector;
  const auto whole = [](int64_t n) { return (n + kTile - 1) / kTile * kTile; };
  HWY_ALIGN float product[2 * kTile * kColumns];
  for (int64_t row = 0; row < rows; row += 2 * kTile) {
    const int64_t left = std::min(rows - row, 2 * kTile);
    amx.multiply({reinterpret_cast<const float*>(lhs + row * kPartWords), kPartWords,
                  reinterpret_cast<const float*>(rhs), kColumns, whole(n), product, kColumns,
                  whole(left), false});
    for (int64_t i = 0; i < left; ++i) {
      for (int64_t j = 0; j < kColumns; j += kVector) {
        float* const sum = sums + (row + i) * kTileColumns + j;
        const VF32 x = hn::Load(F32(), product + i * kColumns + j);
        hn::Store(hn::MulAdd(x, hn::Load(F32(), factors + j), hn::Load(F32(), sum)), F32(), sum);
      }
    }
  }
}

// `inner` rows of rhs as rows of kTileColumns words, each of two rows' elements, and what follows
// an odd row as 0.
template <class T>
HWY_INLINE void PairRows(const typename T::Raw* rhs, int64_t row_stride, int64_t inner,
                         int64_t columns, uint32_t* to) {
  using Raw = typename T::Raw;
  constexpr int64_t kStep = T::kStep;
  // Rows lie far apart, which the processor's own prefetching does not follow.
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(Raw);
  const Raw none[T::kStep] = {};
  for (int64_t k = 0; k < inner; k += 2, to += 2 * kVector, rhs += 2 * row_stride) {
    for (int64_t column = 0; column < columns; column += kStep) {
      const Raw* first = rhs + column;
      const Raw* second = k + 1 < inner ? first + row_stride : none;
      for (int64_t i = 0; i < kStep; i += kLine) {
        __builtin_prefetch(first + kAhead * row_stride + i, 0, 2);
        __builtin_prefetch(first + (kAhead + 1) * row_stride + i, 0, 2);
      }
      Raw ends[2][T::kStep];
      if (column + kStep > columns) {
        const auto n = static_cast<size_t>(columns - column) * sizeof(Raw);
        std::memset(ends, 0, sizeof(ends));
        std::memcpy(ends[0], first, n);
        if (second != none) std::memcpy(ends[1], second, n);
        first = ends[0], second = ends[1];
      }
      VU32 pairs[2 * T::kWords];
      T::LoadPairs(first, second, pairs);
      for (size_t i = 0; i < 2 * T::kWords; ++i) {
        const int64_t panel = column / (2 * kVector) + i / 2;
        hn::Store(pairs[i], U32(), to + panel * kPanel + i % 2 * kLanes);
      }
    }
  }
}

// As Multiply, of an lhs of bf16 in products of bf16.
template <class T>
HWY_INLINE void MultiplyWords(const TileTask& task) {
  const int64_t sums_size = task.rows * kTileColumns;
  const paged_cache::AmxUnit* const amx = paged_cache::UsableAmx();
  // AMX takes whole tiles of rows and words.
  const int64_t word_rows = (task.rows / paged_cache::kAmxRows + 1) * paged_cache::kAmxRows;
  const int64_t words_size = (kTileColumns + word_rows) * kPartWords;
  float* const sums = ThreadScratch(sums_size + words_size);
  auto* const pairs = reinterpret_cast<uint32_t*>(sums + sums_size);
  uint32_t* const words = pairs + kTileColumns * kPartWords;
  const auto* const lhs = static_cast<const uint16_t*>(task.lhs);
  HWY_ALIGN float factors[kTileColumns];
  std::fill_n(factors, kTileColumns, 1.0f);
  std::fill_n(sums, sums_size, 0.0f);
  if (amx != nullptr) amx->begin(0);
  const int64_t in_block = task.inner / task.blocks;
  for (int64_t block = 0; block < task.blocks; ++block) {
    if (task.scale != nullptr) {
      std::copy_n(task.scale + block * task.row_stride, task.columns, factors);
      T::ToPairOrder(factors, kTileColumns);
    }
    const int64_t end = (block + 1) * in_block;
    for (int64_t k = block * in_block; k < end; k += kInnerPart) {
      const int64_t inner = std::min(end - k, kInnerPart);
      if (amx != nullptr && (k == 0 || inner < kInnerPart)) std::fill_n(pairs, words_size, 0);
      PairRows<T>(static_cast<const typename T::Raw*>(task.rhs) + k * task.row_stride,
                  task.row_stride, inner, task.columns, pairs);
      for (int64_t row = 0; row < task.rows; ++row) {
        auto* const to = reinterpret_cast<uint16_t*>(words + row * kPartWords);
        std::copy_n(lhs + row * task.inner + k, inner, to);
        if (inner % 2 != 0) to[inner] = 0;
      }
      // Whole steps, over which the pair order spreads the columns.
      const int64_t columns = (task.columns + T::kStep - 1) / T::kStep * T::kStep;
      for (int64_t column = 0; column < columns; column += 2 * kVector) {
        if (amx != nullptr) {
          AddWordsByAmx(*amx, task.rows, words, pairs + column * kPartWords, (inner + 1) / 2,
                        factors + column, sums + column);
          continue;
        }
        int64_t row = 0;
        const auto add = [&]<int kRows>() {
          AddWords<kRows>(words + row * kPartWords, pairs + column * kPartWords, (inner + 1) / 2,
                          factors + column, sums + row * kTileColumns + column);
          row += kRows;
        };
        while (task.rows - row >= 12) add.template operator()<12>();
        if (task.rows - row >= 8) add.template operator()<8>();
        if (task.rows - row >= 4) add.template operator()<4>();
        if (task.rows - row >= 2) add.template operator()<2>();
        if (task.rows - row >= 1) add.template operator()<1>();
      }
    }
  }
  if (amx != nullptr) amx->end();
  for (int64_t row = 0; row < task.rows; ++row) {
    T::ToElementOrder(sums + row * kTileColumns, kTileColumns);
  }
  StoreSums(task, sums);
}
#endif  // XLA_GPU_HAVE_BF16_DOT

void MultiplyTile(const TileTask& task) {
#if XLA_GPU_HAVE_BF16_DOT
  if (task.lhs_dtype == DType::kBF16 && paged_cache::UsesBF16Products()) {
    if (task.rhs_dtype == DType::kBF16) return MultiplyWords<DotBF16Cache>(task);
    if (task.rhs_dtype == DType::kF8E4M3FN) return MultiplyWords<DotF8E4M3FNCache>(task);
    if (task.rhs_dtype == DType::kF8E5M2) return MultiplyWords<DotF8E5M2Cache>(task);
  }
#endif
  switch (task.rhs_dtype) {
    case DType::kF32:
      return Multiply<CacheF32>(task);
    case DType::kBF16:
      return Multiply<CacheBF16>(task);
    case DType::kF16:
      return Multiply<CacheF16>(task);
    case DType::kF8E4M3FN:
      return Multiply<CacheF8E4M3FN>(task);
    case DType::kF8E5M2:
      return Multiply<CacheF8E5M2>(task);
    default:
      return Multiply<I8>(task);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::grouped_matmul
HWY_AFTER_NAMESPACE();

#endif  // include guard
