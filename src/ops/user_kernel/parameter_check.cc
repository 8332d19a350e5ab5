#include "src/ops/user_kernel/parameter_check.h"

#include <algorithm>

#include "src/core/strings.h"

namespace xla_gpu::user_kernel {
namespace {

constexpr int kFloatCode = 64;

// Without headers, which NVRTC has not, and without names that may be macros of the text's. A
// type's code is its size, of floats more; 0: any.
constexpr char kTraits[] = R"(
namespace xla_gpu_check {
template <int...> struct xla_gpu_list {};
template <class xla_gpu_t> struct xla_gpu_code {
  enum { xla_gpu_is = __is_enum(xla_gpu_t) ? int(sizeof(xla_gpu_t)) : 0 };
};
template <class xla_gpu_t> struct xla_gpu_code<xla_gpu_t*> { enum { xla_gpu_is = sizeof(void*) }; };
template <class xla_gpu_t> struct xla_gpu_code<xla_gpu_t&> { enum { xla_gpu_is = sizeof(void*) }; };
template <class xla_gpu_f> struct xla_gpu_of { typedef void xla_gpu_is; };
template <class xla_gpu_r, class... xla_gpu_t> struct xla_gpu_of<xla_gpu_r (*)(xla_gpu_t...)> {
  typedef xla_gpu_list<xla_gpu_code<xla_gpu_t>::xla_gpu_is...> xla_gpu_is;
};
#ifdef __cpp_noexcept_function_type
template <class xla_gpu_r, class... xla_gpu_t>
struct xla_gpu_of<xla_gpu_r (*)(xla_gpu_t...) noexcept> : xla_gpu_of<xla_gpu_r (*)(xla_gpu_t...)> {};
#endif
template <class, class> struct xla_gpu_fits { enum { xla_gpu_is = 0 }; };
template <class xla_gpu_t> struct xla_gpu_fits<void, xla_gpu_t> { enum { xla_gpu_is = 1 }; };
template <> struct xla_gpu_fits<xla_gpu_list<>, xla_gpu_list<>> { enum { xla_gpu_is = 1 }; };
template <int xla_gpu_a, int... xla_gpu_as, int xla_gpu_b, int... xla_gpu_bs>
struct xla_gpu_fits<xla_gpu_list<xla_gpu_a, xla_gpu_as...>, xla_gpu_list<xla_gpu_b, xla_gpu_bs...>> {
  enum {
    xla_gpu_is = (xla_gpu_a == 0 || xla_gpu_a == xla_gpu_b) &&
                 xla_gpu_fits<xla_gpu_list<xla_gpu_as...>, xla_gpu_list<xla_gpu_bs...>>::xla_gpu_is
  };
};
)";

}  // namespace

std::string ParameterCheck(const Implementation& implementation) {
  const auto& parameters = implementation.parameters;
  if (std::ranges::all_of(parameters, &Parameter::declared)) return "";
  std::string text = kTraits;
  const auto add = [&text](const char* type, int more) {
    text += StrCat("template <> struct xla_gpu_code<", type, "> { enum { xla_gpu_is = ", more,
                   " + sizeof(", type, ") }; };\n");
  };
  for (const char* type :
       {"bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int",
        "unsigned", "long", "unsigned long", "long long", "unsigned long long"}) {
    add(type, 0);
  }
  for (const char* type : {"float", "double", "long double"}) add(type, kFloatCode);
  const auto code = [](const Parameter& parameter) {
    return DTypeSize(parameter.type) + (IsFloat(parameter.type) ? kFloatCode : 0);
  };
  const auto name = [](const Parameter& parameter) { return DTypeName(parameter.type); };
  return StrCat(text,
                "}\nstatic_assert(xla_gpu_check::xla_gpu_fits<xla_gpu_check::xla_gpu_of<decltype(&",
                implementation.entry, ")>::xla_gpu_is, xla_gpu_check::xla_gpu_list<",
                StrJoin(parameters, ", ", code),
                ">>::xla_gpu_is, \"the function takes other parameters than are described: ",
                StrJoin(parameters, ", ", name), " (addresses are u64)\");\n");
}

}  // namespace xla_gpu::user_kernel
