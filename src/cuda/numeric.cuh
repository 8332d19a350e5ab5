// Narrow float types on the device, and vectors, without toolkit headers.
//
// Round to nearest even; what does not fit becomes infinity in bf16 and f16, and the largest finite
// value in the fp8 types (as src/core/float_types.h does on the Host). NaN stays NaN.
#ifndef XLA_GPU_CUDA_NUMERIC_CUH_
#define XLA_GPU_CUDA_NUMERIC_CUH_

namespace xla_gpu {

struct BF16 {
  unsigned short bits;
};
struct F16 {
  unsigned short bits;
};
struct E4M3 {
  unsigned char bits;
};
struct E5M2 {
  unsigned char bits;
};

// What a thread reads or writes at once.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Vector {
  T x[kCount];
};

// Kernels are compiled with UNALIGNED for calls whose tensors start at multiples of their element
// size alone: then these two load and store single elements.

// In one instruction.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> LoadVector(const T* from) {
#ifdef UNALIGNED
  Vector<T, kCount> vector;
#pragma unroll
  for (int i = 0; i < kCount; ++i) vector.x[i] = from[i];
  return vector;
#else
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
#endif
}

// Stores to global memory in one instruction; `to` is aligned to the whole vector. Of an assignment
// compilers make one store an element where elements are narrow.
template <typename T, int kCount>
__device__ __forceinline__ void StoreVector(void* to, const Vector<T, kCount>& vector) {
#ifdef UNALIGNED
#pragma unroll
  for (int i = 0; i < kCount; ++i) static_cast<T*>(to)[i] = vector.x[i];
#else
  constexpr int kBytes = kCount * sizeof(T);
  const auto at = __cvta_generic_to_global(to);
  const auto* words = reinterpret_cast<const unsigned*>(&vector);
  if constexpr (kBytes == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(at), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else if constexpr (kBytes == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(at), "r"(words[0]) : "memory");
  } else {
    *static_cast<Vector<T, kCount>*>(to) = vector;
  }
#endif
}

template <typename A, typename B>
constexpr bool kSameType = false;
template <typename A>
constexpr bool kSameType<A, A> = true;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(signed char x) { return static_cast<float>(x); }

__device__ __forceinline__ float ToFloat(BF16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

__device__ __forceinline__ float ToFloat(F16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

// Exact through f16's exponent: f32 has room for every fp8 value, subnormals included.
__device__ __forceinline__ float ToFloat(E4M3 x) {
  const unsigned magnitude = x.bits & 0x7fu;
  const unsigned sign = static_cast<unsigned>(x.bits & 0x80u) << 24;
  if (magnitude == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
  const float y = __uint_as_float(magnitude << 20) * 0x1p120f;  // bias 127 against 7
  return __uint_as_float(__float_as_uint(y) | sign);
}

__device__ __forceinline__ float ToFloat(E5M2 x) {
  return ToFloat(F16{static_cast<unsigned short>(x.bits << 8)});
}

template <typename T>
__device__ __forceinline__ T FromFloat(float x);

template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}

template <>
__device__ __forceinline__ BF16 FromFloat<BF16>(float x) {
  BF16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

template <>
__device__ __forceinline__ F16 FromFloat<F16>(float x) {
  F16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

#if __CUDA_ARCH__ < 890
template <typename T>
__device__ __forceinline__ unsigned F8Code(float x) {
  constexpr bool kE4M3 = kSameType<T, E4M3>;
  constexpr unsigned kMantissa = kE4M3 ? 3 : 2, kBias = kE4M3 ? 7 : 15;
  constexpr unsigned kLargestCode = kE4M3 ? 0x7e : 0x7b;
  constexpr float kLargest = kE4M3 ? 448.0f : 57344.0f;
  const unsigned bits = __float_as_uint(x);
  const unsigned sign = (bits >> 24) & 0x80u;
  unsigned magnitude = bits & 0x7fffffffu;
  unsigned code;
  if (magnitude > 0x7f800000u) {
    code = 0x7fu;  // NaN
  } else if (__uint_as_float(magnitude) >= kLargest) {
    code = kLargestCode;
  } else if (magnitude < (128u - kBias) << 23) {  // below the least normal value, 2^(1 - bias)
    const float units =
        __uint_as_float(magnitude) * __uint_as_float((127u + kBias - 1u + kMantissa) << 23);
    code = __float2uint_rn(units);
  } else {
    constexpr int kDropped = 23 - kMantissa;
    magnitude += (1u << (kDropped - 1)) - 1u + ((magnitude >> kDropped) & 1u);
    code = (magnitude >> kDropped) - ((127u - kBias) << kMantissa);
  }
  return code | sign;
}
#endif

// Two fp8 values, `low` in the lower byte.
template <typename T>
__device__ __forceinline__ unsigned short Pack2F8(float low, float high) {
  unsigned short pair;
#if __CUDA_ARCH__ >= 890
  if constexpr (kSameType<T, E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
#else
  pair = static_cast<unsigned short>(F8Code<T>(low) | F8Code<T>(high) << 8);
#endif
  return pair;
}

template <>
__device__ __forceinline__ E4M3 FromFloat<E4M3>(float x) {
  return E4M3{static_cast<unsigned char>(Pack2F8<E4M3>(x, 0.0f))};
}

template <>
__device__ __forceinline__ E5M2 FromFloat<E5M2>(float x) {
  return E5M2{static_cast<unsigned char>(Pack2F8<E5M2>(x, 0.0f))};
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> FromFloats(const Vector<float, kCount>& x) {
  Vector<T, kCount> y;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (sizeof(T) == 1 && kCount % 2 == 0) {
      if (i % 2 != 0) continue;
      const unsigned pair = Pack2F8<T>(x.x[i], x.x[i + 1]);
      y.x[i].bits = static_cast<unsigned char>(pair);
      y.x[i + 1].bits = static_cast<unsigned char>(pair >> 8);
    } else {
      y.x[i] = FromFloat<T>(x.x[i]);
    }
  }
  return y;
}

// Two values in one register, `low` in the lower half.
template <typename T>
__device__ __forceinline__ unsigned Pack2(float low, float high) {
  unsigned packed;
  if constexpr (kSameType<T, BF16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Two fp8 values (the lower 16 bits of `pair`) as two f16 values: exact.
template <typename T>
__device__ __forceinline__ unsigned F8PairToF16Pair(unsigned pair) {
#if __CUDA_ARCH__ >= 890
  unsigned y;
  if constexpr (kSameType<T, E4M3>) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(static_cast<unsigned short>(pair)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(static_cast<unsigned short>(pair)));
  }
  return y;
#else
  const unsigned wide =
      ((pair & 0xffu) << 8) | ((pair & 0xff00u) << 16);  // one byte a half, on top
  if constexpr (kSameType<T, E4M3>) {
    const unsigned sign = wide & 0x80008000u;
    const unsigned magnitude = (wide & 0x7f007f00u) >> 1;
    unsigned y;
    // Bias 15 against 7: times 2^8, exact for subnormals too.
    asm("mul.f16x2 %0, %1, %2;" : "=r"(y) : "r"(magnitude), "r"(0x5c005c00u));
    if ((magnitude & 0xffffu) == 0x3f80u) y |= 0x7e00u;
    if ((magnitude >> 16) == 0x3f80u) y |= 0x7e000000u;
    return y | sign;
  } else {
    return wide;
  }
#endif
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CUDA_NUMERIC_CUH_
