// simple_add on CUDA: c = a + b, 16 bytes a thread where the addresses allow it.
//
// Compiled by NVRTC with one of ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16, ELEMENT_I32 defined. No
// header is included: what a kernel needs beyond CUDA C++ itself is written here.

#if defined(ELEMENT_F32)
using Element = float;
__device__ Element Add(Element x, Element y) { return x + y; }

#elif defined(ELEMENT_I32)
using Element = unsigned int;  // overflow wraps, as XLA's addition does
__device__ Element Add(Element x, Element y) { return x + y; }

#elif defined(ELEMENT_BF16)
using Element = unsigned short;
// A bf16 is the upper half of an f32. Rounding is to nearest, ties to even; a NaN stays one.
__device__ float ToFloat(Element x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
__device__ Element FromFloat(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return static_cast<Element>((bits >> 16) | 0x40);
  return static_cast<Element>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
__device__ Element Add(Element x, Element y) { return FromFloat(ToFloat(x) + ToFloat(y)); }

#elif defined(ELEMENT_F16)
using Element = unsigned short;
__device__ Element Add(Element x, Element y) {
  Element sum;
  asm("add.rn.f16 %0, %1, %2;" : "=h"(sum) : "h"(x), "h"(y));
  return sum;
}

#else
#error "define one of ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16, ELEMENT_I32"
#endif

constexpr int kVector = 16 / sizeof(Element);

struct alignas(16) Vector {
  Element element[kVector];
};

__device__ bool Is16ByteAligned(const void* p) {
  return reinterpret_cast<unsigned long long>(p) % sizeof(Vector) == 0;
}

// Thread i adds elements [i * kVector, (i + 1) * kVector), fewer at the end.
extern "C" __global__ void __launch_bounds__(256)
    simple_add(const Element* a, const Element* b, Element* c, long long n) {
  const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * kVector;
  const bool whole = first + kVector <= n;
  if (whole && Is16ByteAligned(a) && Is16ByteAligned(b) && Is16ByteAligned(c)) {
    const Vector x = *reinterpret_cast<const Vector*>(a + first);
    const Vector y = *reinterpret_cast<const Vector*>(b + first);
    Vector z;
    for (int i = 0; i < kVector; ++i) z.element[i] = Add(x.element[i], y.element[i]);
    *reinterpret_cast<Vector*>(c + first) = z;
  } else {  // the tail, or a tensor that begins in the middle of another
    for (long long i = first; i < n && i < first + kVector; ++i) c[i] = Add(a[i], b[i]);
  }
}
