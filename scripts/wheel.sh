#!/usr/bin/env bash
# `make wheel`: the wheel for every Linux of x86-64, or of aarch64, with glibc 2.28 or newer, on either.
# zig is the compiler (clang, with any release's glibc to link against and libc++ as a static library);
# auditwheel gives the wheel its name, if the name is true.
# Usage: scripts/wheel.sh [--arch x86_64|aarch64] [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
die() { echo "wheel: $*" >&2; exit 1; }
arch=x86_64 glibc=2.28
if [[ ${1:-} == --arch ]]; then
  arch=${2:-}
  [[ $arch == x86_64 || $arch == aarch64 ]] || die "--arch is '$arch': x86_64 or aarch64"
  shift 2
fi
folder=${1:-dist} python=$PWD/.venv-wheel/bin/python tools=$PWD/build/zig/$arch

zig=$("$python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')
mkdir -p "$tools"
for compiler in cc c++; do
  cat >"$tools/$compiler" <<SH
#!/bin/sh
export ZIG_GLOBAL_CACHE_DIR=$PWD/build/zig/cache
exec $zig $compiler -target $arch-linux-gnu.$glibc -g0 -s -Wno-unused-command-line-argument "\$@"
SH
  chmod +x "$tools/$compiler"
done
# Highway and nlohmann_json without what else lies in the system's folder: the headers of its own glibc.
mkdir -p "$tools/include"
for headers in hwy nlohmann; do
  [[ -d /usr/include/$headers ]] || die "no /usr/include/$headers: apt-get install libhwy-dev nlohmann-json3-dev"
  ln -sfn "/usr/include/$headers" "$tools/include/$headers"
done
cat >"$tools/nlohmann_json-config.cmake" <<'CMAKE'
add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
set_target_properties(nlohmann_json::nlohmann_json PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}/include)
CMAKE

# ccache: the wrapper's date says nothing, what it starts does.
version=$("$zig" version)
export CC=$tools/cc CXX=$tools/c++ CCACHE_COMPILERTYPE=clang \
  CCACHE_COMPILERCHECK="string:zig $version $arch $glibc"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
_PYTHON_HOST_PLATFORM=linux-$arch "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation --wheel-dir "$made" \
  --config-settings=build-dir="build/wheel-$arch" \
  --config-settings=install.strip=false \
  --config-settings=cmake.define.CMAKE_SYSTEM_NAME=Linux \
  --config-settings=cmake.define.CMAKE_SYSTEM_PROCESSOR="$arch" \
  --config-settings=cmake.define.CMAKE_PREFIX_PATH="$tools" \
  --config-settings=cmake.define.HWY_INCLUDE_DIR="$tools/include" .
# auditwheel reads libraries of every architecture, but takes the names of this machine's alone.
auditwheel="import platform, runpy
platform.machine = lambda: '$arch'
runpy.run_module('auditwheel', run_name='__main__')"
PATH=${python%/*}:$PATH "$python" -c "$auditwheel" repair --plat "manylinux_${glibc/./_}_$arch" --only-plat \
  --exclude libxla_gpu.so --wheel-dir "$folder" "$made"/*.whl
