// all_reduce: each thread sends its vectors to the other devices, then waits for theirs.
//
// No flags and no barriers: a word that differs from kEmpty has come, and is made empty again when
// it is taken. Sums are made in f32 in the order of the devices, so all have the same.
//
// Defined: TYPE, DEVICES, THREADS.
#include "src/cuda/numeric.cuh"
#include "src/ops/all_reduce/exchange.cuh"

namespace xla_gpu::all_reduce {

constexpr int kVector = 16 / sizeof(TYPE);
constexpr unsigned long long kPatience = 120'000'000'000;  // nanoseconds, then the call fails

using Words = Vector<unsigned, 4>;
using Elements = Vector<TYPE, kVector>;

// This device's own memory first, then that of those behind it in their order, round to the first.
struct Memory {
  unsigned char* of[DEVICES];
};

// Where a device's memory has the vectors of the device `rank`.
__device__ __forceinline__ Words* PlaceOf(unsigned char* memory, unsigned call, int rank) {
  const long long part = call % kTurns * DEVICES + rank;
  return reinterpret_cast<Words*>(memory + sizeof(Exchange) + part * kMostBytes);
}

__device__ __forceinline__ void Send(Words* to, const Words& words) {
  asm volatile(
      "st.relaxed.sys.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(to)),
      "r"(words.x[0]), "r"(words.x[1]), "r"(words.x[2]), "r"(words.x[3])
      : "memory");
}

__device__ __forceinline__ unsigned long long Nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ Words Take(Words* from) {
  Words words;
  unsigned long long since = 0;
  for (unsigned tries = 1;; ++tries) {
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x[0]), "=r"(words.x[1]), "=r"(words.x[2]), "=r"(words.x[3])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    if (words.x[0] != kEmpty && words.x[1] != kEmpty && words.x[2] != kEmpty &&
        words.x[3] != kEmpty) {
      break;
    }
    if (tries % (1 << 20) == 0) {
      const unsigned long long now = Nanoseconds();
      if (since == 0) since = now;
      if (now - since > kPatience) __trap();
    }
  }
  StoreVector(from, Words{{kEmpty, kEmpty, kEmpty, kEmpty}});
  return words;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    all_reduce(const TYPE* x, TYPE* out, int count, int rank, Memory memory) {
  auto* const own = reinterpret_cast<volatile Exchange*>(memory.of[0]);
  const unsigned call = own->calls;
  const int vectors = (count + kVector - 1) / kVector;
  const int first = static_cast<int>(blockIdx.x) * THREADS + static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(gridDim.x) * THREADS;
  // A loop over single elements is slower, but no kernel of its own, which might be loaded on one
  // device while another waits for it.
  const bool aligned =
      (reinterpret_cast<long long>(x) | reinterpret_cast<long long>(out)) % 16 == 0;
  const auto load = [&](int vector) {
    const int at = vector * kVector;
    if (aligned && at + kVector <= count) return LoadVector<TYPE, kVector>(x + at);
    Elements elements{};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (at + i < count) elements.x[i] = x[at + i];
    }
    return elements;
  };

  for (int vector = first; vector < vectors; vector += step) {
    const Elements elements = load(vector);
    Words words = *reinterpret_cast<const Words*>(&elements);
#pragma unroll
    for (unsigned& word : words.x) word = word == kEmpty ? kOtherNaN : word;
#pragma unroll
    for (int i = 1; i < DEVICES; ++i) Send(PlaceOf(memory.of[i], call, rank) + vector, words);
  }

  for (int vector = first; vector < vectors; vector += step) {
    const Elements elements = load(vector);
    Vector<float, kVector> sum{};
#pragma unroll
    for (int device = 0; device < DEVICES; ++device) {
      Elements part = elements;
      if (device != rank) {
        const Words words = Take(PlaceOf(memory.of[0], call, device) + vector);
        part = *reinterpret_cast<const Elements*>(&words);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float value = ToFloat(part.x[i]);
        sum.x[i] = device == 0 ? value : sum.x[i] + value;  // 0 + -0 would lose the sign
      }
    }
    const int at = vector * kVector;
    Elements rounded;
#pragma unroll
    for (int i = 0; i < kVector; ++i) rounded.x[i] = FromFloat<TYPE>(sum.x[i]);
    if (aligned && at + kVector <= count) {
      StoreVector(out + at, rounded);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i < count) out[at + i] = rounded.x[i];
      }
    }
  }

  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(const_cast<unsigned*>(&own->done), 1) == gridDim.x - 2) {
    own->done = kEmpty;
    own->calls = call + 1;
  }
}

}  // namespace xla_gpu::all_reduce
