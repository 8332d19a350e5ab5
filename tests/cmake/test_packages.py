"""Projects outside the tree find and link the library, by each way that docs/cpp.md names."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import xla_gpu

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("XLA_GPU_LIBRARY", ROOT / "build/release/libxla_gpu.so")).parent
EXAMPLES = ROOT / "examples" / "cpp"
SUM = f"xla_gpu {xla_gpu.__version__}: 11 22 33 44\n"
ATTENTION = ": 20.0000 2.0000 22.0334 2.2033\n"

pytestmark = pytest.mark.skipif(
    not (BUILD / "cmake_install.cmake").exists() or shutil.which("cmake") is None,
    reason="needs the build folder and CMake (a wheel has neither)",
)


def start(*command, **env):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("XLA_GPU_")}
    return subprocess.run(
        [str(word) for word in command],
        env={**clean, "XLA_GPU_PJRT_PLUGIN": "cpu", **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(*command, code=0, **env):
    """What the command prints; it must end with this exit code."""
    done = start(*command, **env)
    assert done.returncode == code, done.stdout
    return done.stdout


def cache_value(name):
    """A variable of the build's CMake cache."""
    text = (BUILD / "CMakeCache.txt").read_text()
    return re.search(rf"^{name}:\w+=(.*)$", text, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installation that was moved after it was made."""
    made = tmp_path_factory.mktemp("install") / "made"
    run("cmake", "--install", BUILD, "--prefix", made)
    return made.rename(made.with_name("moved"))


def build_examples(folder, **settings):
    words = [f"-D{name}={value}" for name, value in settings.items()]
    run("cmake", "-S", EXAMPLES, "-B", folder, *words)
    run("cmake", "--build", folder)
    assert run(folder / "simple_add") == SUM
    assert run(folder / "paged_attention").endswith(ATTENTION)


def test_find_package(prefix, tmp_path):
    build_examples(tmp_path, CMAKE_PREFIX_PATH=prefix)
    needed = run("readelf", "--dynamic", tmp_path / "simple_add")
    major, minor, _ = xla_gpu.__version__.split(".")
    assert f"[libxla_gpu.so.{major}.{minor}]" in needed


def test_the_builds_own_package(tmp_path):
    build_examples(tmp_path, xla_gpu_ROOT=xla_gpu.library_dir())


@pytest.mark.parametrize("libdir", ["lib", "lib/x86_64-linux-gnu"])
def test_what_is_installed_finds_its_compiler(prefix, libdir):
    (prefix / libdir).mkdir(exist_ok=True)
    beside_the_library = shutil.copy2(prefix / "bin/xla-gpu", prefix / libdir / "xla-gpu")
    done = start(beside_the_library, "doctor", "--json")
    assert Path(json.loads(done.stdout)["compiler"]["path"]).samefile(
        prefix / "bin/xla-gpu-compile"
    )


@pytest.mark.parametrize("version", ["0.0.9", "0.2", "1.0"])
def test_other_versions_are_not_found(prefix, tmp_path, version):
    project = tmp_path / "CMakeLists.txt"
    project.write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(wants_another LANGUAGES C)\n"
        f"find_package(xla_gpu {version} REQUIRED)\n"
    )
    settings = [f"-DCMAKE_PREFIX_PATH={prefix}", "-S", tmp_path, "-B", tmp_path / "build"]
    said = run("cmake", *settings, code=1)
    assert f"version: {xla_gpu.__version__}" in said
    assert 'compatible with requested version "' + version in " ".join(said.split())


def test_pkg_config(prefix, tmp_path):
    env = {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    assert run("pkg-config", "--modversion", "xla_gpu", **env).strip() == xla_gpu.__version__
    words = run("pkg-config", "--cflags", "--libs", "xla_gpu", **env).split()
    libdir = run("pkg-config", "--variable=libdir", "xla_gpu", **env).strip()
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
    strict += [f"-Wl,-rpath,{libdir}"]
    for compiler, source in [
        (["cc", "-std=c99"], "simple_add.c"),
        (["c++", "-std=c++17"], "paged_attention.cc"),
    ]:
        run(*compiler, EXAMPLES / source, *words, *strict, "-o", tmp_path / source.split(".")[0])
    assert run(tmp_path / "simple_add") == SUM
    assert run(tmp_path / "paged_attention").endswith(ATTENTION)


PARENT = """
cmake_minimum_required(VERSION 3.25)
project(parent VERSION 7.8 LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 17)
function(state result)
  set(text "")
  foreach(name PROJECT_NAME PROJECT_VERSION CMAKE_BUILD_TYPE CMAKE_CXX_STANDARD CMAKE_CXX_EXTENSIONS
      CMAKE_C_FLAGS CMAKE_CXX_FLAGS CMAKE_SHARED_LINKER_FLAGS CMAKE_EXE_LINKER_FLAGS
      CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CXX_VISIBILITY_PRESET
      CMAKE_VISIBILITY_INLINES_HIDDEN CMAKE_POSITION_INDEPENDENT_CODE CMAKE_EXPORT_COMPILE_COMMANDS)
    string(APPEND text "${name}=${${name}}\\n")
  endforeach()
  foreach(name COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS INCLUDE_DIRECTORIES TESTS)
    get_directory_property(value ${name})
    string(APPEND text "${name}=${value}\\n")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()
state(before)
add_subdirectory(@ROOT@ xla_gpu)
state(after)
if(NOT before STREQUAL after)
  message(FATAL_ERROR "before:\\n${before}after:\\n${after}")
endif()
get_property(targets DIRECTORY @ROOT@ PROPERTY BUILDSYSTEM_TARGETS)
get_property(tests DIRECTORY @ROOT@ PROPERTY TESTS)
message("targets=${targets} tests=${tests}.")
add_executable(simple_add @ROOT@/examples/cpp/simple_add.c)
add_executable(paged_attention @ROOT@/examples/cpp/paged_attention.cc)
target_link_libraries(simple_add PRIVATE xla_gpu::xla_gpu)
target_link_libraries(paged_attention PRIVATE xla_gpu::xla_gpu)
"""


@pytest.fixture
def parent(tmp_path):
    """Configures a project that has this one as a subdirectory: parent(FOLDER, SETTINGS)."""
    (tmp_path / "CMakeLists.txt").write_text(PARENT.replace("@ROOT@", str(ROOT)))

    def configure(folder, code=0, **settings):
        settings.update(
            Python3_EXECUTABLE=sys.executable, CMAKE_BUILD_TYPE=cache_value("CMAKE_BUILD_TYPE")
        )
        words = [f"-D{name}={value}" for name, value in settings.items()]
        return run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", folder, *words, code=code)

    return configure


def test_add_subdirectory(parent):
    # As deep as the build, whose paths to the sources it then shares: ccache has the objects.
    folder = BUILD.with_name("subproject")
    shutil.rmtree(folder, ignore_errors=True)
    launcher = {}
    if cached := shutil.which("ccache"):
        launcher = {"CMAKE_C_COMPILER_LAUNCHER": cached, "CMAKE_CXX_COMPILER_LAUNCHER": cached}
    headers = Path(cache_value("XLA_FFI_INCLUDE_DIR")).parents[1]
    said = parent(folder, XLA_GPU_XLA_HEADERS=headers, **launcher)
    assert "targets=xla_gpu_objects;xla_gpu;xla_gpu_pjrt;xla-gpu;xla-gpu-compile tests=." in said
    basedir = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    built = start("timeout", "120", "cmake", "--build", folder, **basedir)
    if built.returncode == 124:
        pytest.skip("ccache has not the library, and to build it again takes minutes")
    assert built.returncode == 0, built.stdout
    assert run(folder / "simple_add") == SUM
    assert run(folder / "paged_attention").endswith(ATTENTION)
    shutil.rmtree(folder)


def test_a_subdirectory_without_headers_says_how_to_get_them(parent, tmp_path):
    headers, ffi = tmp_path / "headers", tmp_path / "ffi"
    said = " ".join(parent(tmp_path / "build", code=1, XLA_GPU_XLA_HEADERS=headers).split())
    assert f"XLA_GPU_XLA_HEADERS ({headers}) does not hold XLA's headers" in said
    pip = re.search(r"python3 -m pip install .*?headers\.txt", said)[0]
    pip = pip.replace(str(headers), "xla-headers").replace(str(ROOT), "xla_gpu")
    assert pip in " ".join((ROOT / "docs/cpp.md").read_text().replace("\\\n", "").split())
    assert not headers.exists(), "nothing is fetched"
    said = " ".join(parent(tmp_path / "build", code=1, XLA_FFI_INCLUDE_DIR=ffi).split())
    assert f"XLA_FFI_INCLUDE_DIR is {ffi}, which holds no xla/ffi/api/c_api.h" in said
    (ffi / "xla/ffi/api").mkdir(parents=True)
    (ffi / "xla/ffi/api/c_api.h").write_text(
        "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 3\n"
    )
    said = " ".join(parent(tmp_path / "build", code=1, XLA_FFI_INCLUDE_DIR=ffi).split())
    assert f"XLA_FFI_INCLUDE_DIR is {ffi}, whose FFI is not version 0.1" in said


def test_one_version():
    header = (Path(xla_gpu.include_dir()) / "xla_gpu/xla_gpu.h").read_text()
    parts = re.findall(r"^#define XLA_GPU_VERSION_(MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE)
    assert [name for name, _ in parts] == ["MAJOR", "MINOR", "PATCH"]
    version = ".".join(number for _, number in parts)
    assert xla_gpu.__version__ == xla_gpu.library_version() == version
    assert (
        re.search(r"\nproject\(xla_gpu VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        == version
    )
    assert re.search(r'\nversion = "(.+)"', (ROOT / "pyproject.toml").read_text())[1] == version


def test_folders_for_other_builds(monkeypatch):
    assert Path(xla_gpu.include_dir()) == ROOT / "include"
    assert Path(xla_gpu.library_dir()) == Path(xla_gpu.library_path()).parent
    from xla_gpu import _lib

    monkeypatch.setattr(_lib, "__file__", "/nowhere/xla_gpu/_lib.py")
    with pytest.raises(xla_gpu.NotFoundError, match=r"tried|xla_gpu.h was not found in /nowhere"):
        xla_gpu.include_dir()
