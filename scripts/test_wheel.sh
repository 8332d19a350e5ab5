#!/usr/bin/env bash
# Builds the wheels of scripts/wheel.sh for each ARCH (both) and the one of `pip wheel .`, and uses those
# for this machine in empty environments: the program, the library and the headers must work with
# neither JAX nor torch there, and the README's Python with the oldest and the newest JAX. That for
# another machine is used in its XLA under qemu, where that is installed (requirements/apt-wheel.txt).
# Usage: scripts/test_wheel.sh [x86_64|aarch64]...
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD here=$(uname -m)
archs=("$@")
((${#archs[@]})) || archs=(x86_64 aarch64)
die() { echo "wheel: $*" >&2; exit 1; }
dist=$(mktemp -d)
trap 'rm -rf "$dist"' EXIT

# manylinux ARCH: makes that wheel. The name is auditwheel's; what it stands for, read another way.
manylinux() {
  local arch=$1 elf_machine="Advanced Micro Devices X86-64" made=$dist/$1 wheel files machine other glibc licenses
  scripts/wheel.sh --arch "$arch" "$made"
  wheel=$(echo "$made"/*.whl)
  [[ $wheel == "$made"/xla_gpu-*-py3-none-manylinux_2_28_$arch.whl ]] || die "made $wheel"
  .venv/bin/python -m zipfile -e "$wheel" "$made/unpacked"
  readarray -t files < <(grep --recursive --files-with-matches --binary $'^\x7fELF' "$made/unpacked")
  ((${#files[@]} == 4)) || die "its libraries and programs: ${files[*]}"
  machine=$(readelf --file-header "${files[@]}" | sed -n 's/^ *Machine: *//p' | sort -u)
  [[ $arch == x86_64 ]] || elf_machine=AArch64
  [[ $machine == "$elf_machine" ]] || die "it holds code for $machine"
  other=$(readelf --wide --dynamic "${files[@]}" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
    grep -Ev '^(lib(c|m|dl|pthread)\.so\.[026]+|ld-linux-[a-z0-9-]+\.so\.[12]|libxla_gpu\.so)$' || true)
  [[ -z $other ]] || die "it needs $other"
  readelf --wide --dynamic "$made/unpacked/xla_gpu/libxla_gpu.so" | grep 'SONAME.*\[libxla_gpu\.so\]' >/dev/null
  glibc=$(readelf --wide --version-info "${files[@]}" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
  [[ $(printf '%s\n' "$glibc" GLIBC_2.28 | sort -V | tail -n 1) == GLIBC_2.28 ]] || die "it needs $glibc"
  licenses=$(cd "$made"/unpacked/*.dist-info/licenses && echo LICENSE licenses/*)
  [[ $licenses == "LICENSE licenses/llvm.txt licenses/third-party.txt" ]] || die "its licences: $licenses"
  echo "wheel: $(basename "$wheel"), $(stat -c %s "$wheel") bytes, needs $glibc"
}

# emulated ARCH: the C ABI and paged attention in the stock XLA of another architecture than this machine's.
emulated() {
  local made=$dist/$1 package=$dist/$1/unpacked/xla_gpu compile=build/zig/$1 flags run added attended
  run=("qemu-$1-static" -L "/usr/$1-linux-gnu")
  if ! command -v "${run[0]}" >/dev/null || [[ ! -e /usr/$1-linux-gnu/lib/libstdc++.so.6 ]]; then
    echo "wheel: SKIPPED: no ${run[0]}, or no libraries of $1 for it"
    return
  fi
  flags=(-I"$package/include" -L"$package" -lxla_gpu "-Wl,-rpath,$package")
  "$compile/cc" examples/cpp/simple_add.c "${flags[@]}" -o "$made/simple_add"
  "$compile/c++" -std=c++17 examples/cpp/paged_attention.cc "${flags[@]}" -o "$made/paged_attention"
  grep --after-context 2 '^xla-cpu-pjrt==' requirements/headers.txt >"$made/xla.txt"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes \
    --only-binary=:all: --platform "manylinux_2_27_$1" --target "$made/xla" -r "$made/xla.txt"
  added=$("${run[@]}" "$made/simple_add")
  [[ $added == "xla_gpu "*": 11 22 33 44" ]] || die "simple_add on $1: $added"
  attended=$(XLA_GPU_PJRT_PLUGIN=$(echo "$made"/xla/xla_plugins/*/*.so) "${run[@]}" "$made/paged_attention")
  [[ $attended == "on Host: 20.0000 2.0000 22.0334 2.2033" ]] || die "paged attention on $1: $attended"
  echo "wheel: the library runs on $1, in its XLA too"
}

make --no-print-directory .venv-wheel/.complete
for arch in "${archs[@]}"; do
  manylinux "$arch"
  [[ $arch == "$here" ]] || emulated "$arch"
done
if [[ ! -e $dist/$here ]]; then
  echo "wheel: ok"
  exit
fi
wheel=$(echo "$dist/$here"/*.whl)

# Every extra can be had, as far as the packages' metadata tell; 3.12 is the Python of them all.
while read -r extra; do
  .venv/bin/uv pip compile --quiet --no-header --no-annotate --python-version 3.12 - \
    <<<"xla-gpu[$extra] @ file://$wheel" >"$dist/packages" || die "extra $extra cannot be installed"
  echo "wheel: [$extra]: $(grep -c == "$dist/packages") packages"
done < <(sed -n 's/^Provides-Extra: //p' "$dist/$here"/unpacked/*.dist-info/METADATA)

settings=() compilers=()
if [[ -n ${RELEASE_BUILD:-} ]]; then  # take its headers and compilers, so that ccache knows the objects
  cached() { sed -n "s/^$1:[A-Z]*=//p" "$RELEASE_BUILD/CMakeCache.txt"; }
  for variable in XLA_FFI_INCLUDE_DIR PJRT_INCLUDE_DIR; do
    settings+=(--config-settings="cmake.define.$variable=$(cached "$variable")")
  done
  compilers=(CC="$(cached CMAKE_C_COMPILER)" CXX="$(cached CMAKE_CXX_COMPILER)")
fi
env "${compilers[@]}" .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
  --wheel-dir "$dist/local" "${settings[@]}" .
local_wheel=$(echo "$dist"/local/*.whl)
[[ $local_wheel == "$dist"/local/xla_gpu-*-py3-none-linux_$here.whl ]] || die "pip wheel made $local_wheel"
echo "wheel: $(basename "$local_wheel"), $(stat -c %s "$local_wheel") bytes"

# check PYTHON WHEEL: in the new environment $env, in which it stays.
check() {
  env=$(mktemp -d -p "$dist")
  "$1" -m venv "$env"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$2"
  (
    # Nothing of the source tree or of this shell's environment may help.
    cd "$env"
    unset PYTHONPATH XLA_GPU_LIBRARY XLA_GPU_PROGRAM
    bin/xla-gpu --version
    bin/xla-gpu ops --json | bin/python -c 'import json, sys; assert json.load(sys.stdin)'
    # Exit code 1 says that no XLA runtime was found, which is true here.
    bin/xla-gpu doctor || [[ $? == 1 ]]
    { bin/xla-gpu doctor --json || [[ $? == 1 ]]; } |
      bin/python -c 'import json, sys; assert json.load(sys.stdin)["library"]'
    package=$(bin/python -c 'import xla_gpu; print(xla_gpu.library_dir())')
    exported=$(nm --dynamic --defined-only --format=just-symbols "$package/libxla_gpu.so")
    [[ -n $exported && -z $(grep -Ev '^(xla_gpu|__tvm_ffi)_' <<<"$exported") ]] ||
      die "libxla_gpu.so exports more than its C ABI and its TVM-FFI functions: $exported"
    readelf --wide --dynamic "$package/libxla_gpu.so" | grep 'NOW.*NODELETE' >/dev/null
    # Projects outside find it by both packages (docs/cpp.md).
    cmake -S "$root/examples/cpp" -B examples -Dxla_gpu_ROOT="$package" >/dev/null
    cmake --build examples >/dev/null
    examples/simple_add
    export PKG_CONFIG_PATH=$package/pkgconfig
    read -ra flags <<<"$(pkg-config --cflags --libs xla_gpu)"
    cc "$root/examples/cpp/simple_add.c" "${flags[@]}" -o simple_add
    LD_LIBRARY_PATH=$package ./simple_add
    bin/python - <<'PY'
import pathlib
import sys
import xla_gpu

# The compatibility plugin finds its library beside it; without a stock plugin its table says so.
import ctypes
import importlib.metadata

api = ctypes.CDLL(str(pathlib.Path(xla_gpu.__file__).with_name("libxla_gpu_pjrt.so"))).GetPjrtApi
api.restype = ctypes.c_void_p
assert api()
(entry,) = importlib.metadata.entry_points(group="torch_xla.plugins")
assert (entry.name, entry.value) == ("XLA_GPU", "xla_gpu.torch_xla_plugin:XlaGpuPlugin")
# vLLM's are loadable without vLLM.
groups = ("vllm.platform_plugins", "vllm.general_plugins")
vllm = [p for group in groups for p in importlib.metadata.entry_points(group=group)]
assert [(p.name, p.value) for p in vllm] == [
    ("xla_gpu", "xla_gpu.vllm_xla:platform_plugin"),
    ("xla_gpu", "xla_gpu.vllm_xla:general_plugin"),
    ("xla_gpu_cuda", "xla_gpu.vllm_cuda:register"),
]
assert all(callable(p.load()) for p in vllm)

folder = pathlib.Path(xla_gpu.__file__).parent
assert (folder / "libxla_gpu.so").is_file() and (folder / "py.typed").is_file()
assert (folder / "libxla_gpu_pjrt.so").is_file()
assert xla_gpu.library_dir() == str(folder)
assert xla_gpu.include_dir() == str(folder / "include")
assert not [path for path in folder.iterdir() if path.is_symlink()]
assert len(list(folder.glob("libxla_gpu.so*"))) == 1
assert not {"jax", "torch", "numpy"} & set(sys.modules), "import xla_gpu must need none of them"
PY
  )
}

# check_jax PACKAGE...: on top of check, with what pip resolves for the extra and these packages.
check_jax() {
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "${wheel}[jax]" "$@"
  mkdir "$env/readme"
  .venv/bin/python - "$env/readme" <<'PY'
import pathlib
import sys

sys.path.insert(0, "tests/docs")
from pages import ROOT, blocks_of

folder = pathlib.Path(sys.argv[1])
for page in [ROOT / "README.md", ROOT / "python/README.md"]:
    for block in blocks_of(page):
        if block.language == "python" and block.kind == "run" and "torch" not in block.text:
            (folder / f"{page.parent.name}-line-{block.line}.py").write_text(block.text)
assert len(list(folder.iterdir())) >= 2
PY
  (
    cd "$env/readme"
    unset PYTHONPATH XLA_GPU_LIBRARY XLA_GPU_PROGRAM XLA_GPU_COMPILER
    export VIRTUAL_ENV=$env
    ../bin/xla-gpu doctor
    for page in *.py; do
      echo "wheel: $("$env/bin/python" --version), $("$env/bin/pip" list 2>/dev/null | grep '^jax '), README $page"
      "$env/bin/python" "$page"
    done
  )
}

# find_python VERSION: one that can make environments, or nothing.
find_python() {
  local python
  for python in "python$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python3; do
    "$python" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null || continue
    echo "$python"
    return
  done
}

check python3 "$local_wheel"
tested=0
while read -r -u 3 version packages; do
  python=$(find_python "$version")
  [[ -n $python ]] || { echo "wheel: SKIPPED: no Python $version on this machine"; continue; }
  check "$python" "$wheel"
  check_jax $packages
  ((++tested))
done 3<<'END'
3.10 jax==0.4.38 jaxlib==0.4.38
3.13
END
if ((tested == 0)); then
  check python3 "$wheel"
  check_jax
fi
echo "wheel: ok"
