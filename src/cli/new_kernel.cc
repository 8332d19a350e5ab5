// xla-gpu new-kernel: the files of a kernel of one's own that runs and is tested at once.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "src/cli/cli.h"
#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

namespace fs = std::filesystem;

// NAME stands for the kernel's.
constexpr char kSource[] =
    R"(// NAME: out = alpha * x, element by element. The name of every pointer and number says what it is to
// NAME.py: `out` is the result, the other pointers are arguments, numbers are scalars.
#ifdef __CUDACC__

__global__ void NAME(const float* x, float* out, float alpha, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = alpha * x[i];
}

#else  // the same for CPUs

void NAME_on_host(const float* x, float* out, float alpha, int n) {
  for (int i = 0; i < n; ++i) out[i] = alpha * x[i];
}

#endif
)";

constexpr char kModule[] = R"("""NAME: alpha * x, as a kernel of one's own for GPUs and CPUs.

    import jax.numpy as jnp
    from NAME import NAME

    NAME(jnp.arange(4.0), alpha=3.0)
"""

import pathlib

import xla_gpu

SOURCE = pathlib.Path(__file__).with_name("NAME.cu")
THREADS = 256  # of a block

# What calls take and give: a result like x, a scalar with a default, one that follows from x.
OUTPUTS = {"out": "x"}
SCALARS = {"alpha": 2.0, "n": lambda x: x.size}

NAME = xla_gpu.cuda_kernel(
    SOURCE,
    "NAME",
    grid=lambda x: xla_gpu.cdiv(x.size, THREADS),
    block=THREADS,
    outputs=OUTPUTS,
    scalars=SCALARS,
    host=xla_gpu.host_kernel(SOURCE, "NAME_on_host", outputs=OUTPUTS, scalars=SCALARS),
    # For jax.grad: the gradients of the arguments. The kernel is linear, so it is its own.
    gradient=lambda arrays, results, gradients, **scalars: (NAME(gradients[0], **scalars),),
    # For jax.vmap: the kernel takes arrays of any shape, so it takes batches as they are.
    vmap="broadcast_all",
)
)";

constexpr char kTest[] =
    R"("""pytest test_NAME.py: on the GPU where there is one, else on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from NAME import NAME


def expected(x, alpha=2.0):
    return np.float32(alpha) * np.asarray(x)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (255,), (257,), (3, 100), (0, 4)])
def test_values(shape):
    x = jax.random.normal(jax.random.key(0), shape)
    np.testing.assert_allclose(NAME(x), expected(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: NAME(x, alpha=-0.5))(x), expected(x, -0.5), rtol=1e-6)


def test_gradient():
    x = jnp.arange(5.0)
    gradient = jax.grad(lambda x: jnp.sum(NAME(x, alpha=3.0) * x))(x)
    np.testing.assert_allclose(gradient, 6 * np.arange(5.0), rtol=1e-6)


def test_vmap():
    x = jax.random.normal(jax.random.key(1), (4, 9))
    np.testing.assert_allclose(jax.vmap(NAME)(x), expected(x), rtol=1e-6)


def test_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="NAME: x is"):
        NAME(jnp.arange(4))
    with pytest.raises(TypeError, match="NAME"):
        NAME(jnp.arange(4.0), beta=1.0)
)";

// Why a kernel cannot have the name, which is one in CUDA, Python and of a file; empty if it can.
std::string Problem(const std::string& name) {
  constexpr size_t kMost = 100;
  static constexpr std::string_view kTaken[] = {
      "and",      "as",       "assert",    "auto",     "bool",     "break",     "case",
      "catch",    "char",     "class",     "const",    "continue", "def",       "default",
      "del",      "delete",   "do",        "double",   "elif",     "else",      "enum",
      "except",   "explicit", "export",    "extern",   "false",    "finally",   "float",
      "for",      "friend",   "from",      "global",   "goto",     "if",        "import",
      "in",       "inline",   "int",       "is",       "jax",      "jnp",       "lambda",
      "long",     "main",     "namespace", "new",      "not",      "np",        "numpy",
      "operator", "or",       "pass",      "pathlib",  "private",  "protected", "public",
      "pytest",   "raise",    "register",  "return",   "short",    "signed",    "sizeof",
      "static",   "struct",   "switch",    "template", "this",     "throw",     "true",
      "try",      "typedef",  "typename",  "union",    "unsigned", "using",     "virtual",
      "void",     "volatile", "while",     "with",     "xla_gpu",  "xor",       "yield"};
  const bool is_name =
      !name.empty() && name.size() <= kMost &&
      std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
      std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  if (!is_name) {
    return StrCat("NAME is '", name, "'; it must be a name of at most ", kMost,
                  " letters, digits and _, such as fused_norm");
  }
  if (std::ranges::find(kTaken, name) == std::end(kTaken)) return "";
  return StrCat("NAME is '", name,
                "', a word of C++ or Python, or a module of the test; choose another");
}

std::string ForKernel(std::string text, const std::string& name) {
  constexpr std::string_view kName = "NAME";
  for (size_t at = 0; (at = text.find(kName, at)) != text.npos; at += name.size()) {
    text.replace(at, kName.size(), name);
  }
  return text;
}

int NewKernel(const Invocation& invocation) {
  std::string name, folder = ".";
  if (const auto code = invocation.Parse({
          {"NAME", "", &name, "the kernel's, and its files'"},
          {"--folder", "DIR", &folder, "where the files are written; made if it is not there"},
      })) {
    return *code;
  }
  if (const std::string problem = Problem(name); !problem.empty()) {
    return invocation.WrongUsage(problem);
  }
  const std::pair<fs::path, const char*> files[] = {
      {fs::path(folder) / (name + ".cu"), kSource},
      {fs::path(folder) / (name + ".py"), kModule},
      {fs::path(folder) / ("test_" + name + ".py"), kTest}};
  std::error_code error;
  for (const auto& [path, text] : files) {
    if (fs::symlink_status(path, error).type() == fs::file_type::not_found) continue;
    return invocation.Fail(
        FailedPrecondition(path.string(), " is there already; nothing was written"));
  }
  error.clear();
  fs::create_directories(folder, error);
  if (error) return invocation.Fail(FailedPrecondition(folder, ": ", error.message()));
  for (const auto& [path, text] : files) {
    const Status written = WriteFile(path.string(), ForKernel(text, name));
    if (!written.ok()) return invocation.Fail(written);
    std::printf("%s\n", path.c_str());
  }
  std::printf("\npython -m pytest %s\n", files[2].first.c_str());
  return 0;
}

XLA_GPU_CLI_COMMAND("new-kernel", "write a kernel of your own, with its Python module and test",
                    "new-kernel fused_norm --folder kernels", NewKernel);

}  // namespace
}  // namespace xla_gpu::cli
