"""The op of docs/add-an-op.md, built from the page, tested and called from JAX."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from pages import BUILD, ROOT, blocks_of, environment

PAGE = ROOT / "docs" / "add-an-op.md"
GTEST = ["-lgtest", "-lgtest_main", "-lpthread"]
# The kernel that the page lists for compiling ahead compiles, and no number lies in its defines.
KERNEL_TEST = """
#include <gtest/gtest.h>
#include "src/cuda/kernel_specs.h"
#include "src/cuda/nvrtc.h"

TEST(Axpy, ItsKernelCompiles) {
  namespace cuda = xla_gpu::cuda;
  int listed = 0;
  for (const cuda::RegisteredSpec& known : cuda::AllKernelSpecs(cuda::KnownDevices().front())) {
    if (known.op != "axpy") continue;
    ++listed;
    for (const std::string& define : known.spec.defines) EXPECT_EQ(define, "THREADS=256");
    if (!cuda::SelectNvrtc(0).ok()) continue;
    const auto compiled = cuda::CompileKernel(known.spec, "sm_80");
    ASSERT_TRUE(compiled.ok()) << compiled.status().ToString();
    EXPECT_EQ(compiled->log, "");
  }
  EXPECT_EQ(listed, 1);
}
"""


def compile_flags():
    """The compiler, definitions, include folders and options of the library's own sources."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    entry = next(c for c in commands if c["file"].endswith("src/capi/capi.cc"))
    words = shlex.split(entry["command"])
    if words[0].endswith("ccache"):
        words = words[1:]
    kept, skip = [], False
    for word in words:
        if skip or word in {"-MD", "-c"} or word.endswith("capi.cc"):
            skip = False
        elif word in {"-o", "-MT", "-MF"}:
            skip = True
        elif word != f"-I{ROOT}" and word != "-O3":
            kept.append(word)
    return kept


def link_words():
    """What the shared library is linked from, as the build file of Ninja has it."""
    objects = [str(path) for path in (BUILD / "CMakeFiles/xla_gpu_objects.dir").rglob("*.o")]
    return [o for o in objects if "/generated/embedded_sources" not in o]


def run(command, **kwargs):
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.mark.skipif(
    not (BUILD / "compile_commands.json").exists() or shutil.which("c++") is None,
    reason="needs the build folder and a compiler (a wheel has neither)",
)
def test_add_an_op(tmp_path):
    files, python = {}, None
    for block in blocks_of(PAGE):
        named = re.match(r"// (src/\S+)\n", block.text)
        if block.language == "python":
            python = block.text
        elif named:
            files[named[1]] = block.text
    listed = re.findall(r"^(src/ops/axpy/\S+)", PAGE.read_text(), re.MULTILINE)
    assert sorted(files) == sorted(listed), "the page lists its files at the top"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    # The device source goes into the library as the build would embed it.
    for path in (ROOT / "src").rglob("*.cu*"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    embedded = tmp_path / "embedded_sources.cc"
    names = ";".join(str(path) for path in sorted((tmp_path / "src").rglob("*.cu*")))
    settings = [f"-DROOT={tmp_path}", f"-DOUTPUT={embedded}", f"-DFILES={names}"]
    run(["cmake", *settings, "-P", ROOT / "cmake/write_embedded_sources.cmake"])

    flags = [*compile_flags(), "-O1", f"-I{tmp_path}", f"-I{ROOT}"]
    objects = []
    for source in [embedded, *sorted((tmp_path / "src").rglob("*.cc"))]:
        if not source.name.endswith("_test.cc"):
            objects.append(tmp_path / f"{source.stem}.o")
            run([*flags, "-c", source, "-o", objects[-1]])
    libraries = ["-ldl", "-lpthread"]
    everything = [*objects, *link_words()]
    test = tmp_path / "axpy_test"
    sources = [tmp_path / "src/ops/axpy/axpy_test.cc", tmp_path / "axpy_kernel_test.cc"]
    sources[1].write_text(KERNEL_TEST)
    run([*flags, *sources, *everything, "-o", test, *GTEST, *libraries])
    env = {**environment(), "XLA_GPU_CACHE_DIR": "", "XLA_GPU_COMPILER": BUILD / "xla-gpu-compile"}
    assert "PASSED" in run([test], env=env)

    library = tmp_path / "libxla_gpu.so"
    run([flags[0], "-shared", *everything, "-o", library, "-Wl,--no-undefined", *libraries])
    env = {**environment(), "XLA_GPU_LIBRARY": str(library)}
    assert "[0. 3. 6. 9.]" in run([sys.executable, "-c", python], env=env)
