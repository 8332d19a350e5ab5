#!/usr/bin/env bash
# Builds the wheel and uses it in empty environments: the program, the library and the headers must
# work with neither JAX nor torch there.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
dist=$(mktemp -d)
trap 'rm -rf "$dist"' EXIT
settings=()
if [[ -n ${RELEASE_BUILD:-} ]]; then  # take its headers, so that ccache knows the sources
  for variable in XLA_FFI_INCLUDE_DIR PJRT_INCLUDE_DIR; do
    value=$(sed -n "s/^$variable:PATH=//p" "$RELEASE_BUILD/CMakeCache.txt")
    settings+=(--config-settings="cmake.define.$variable=$value")
  done
fi
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$dist" \
  "${settings[@]}" .
wheels=("$dist"/*.whl)
[[ ${#wheels[@]} == 1 && ${wheels[0]} == "$dist"/xla_gpu-*-py3-none-linux_x86_64.whl ]] ||
  { echo "wheel: expected one py3-none-linux_x86_64 wheel, got ${wheels[*]}" >&2; exit 1; }
echo "wheel: $(basename "${wheels[0]}"), $(stat -c %s "${wheels[0]}") bytes"

try_python() {
  local python=$1 env
  env=$dist/$("$python" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
  "$python" -m venv "$env"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "${wheels[0]}"
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
    [[ -n $exported && -z $(grep -v '^xla_gpu_' <<<"$exported") ]] ||
      { echo "wheel: libxla_gpu.so exports more than its C ABI: $exported" >&2; exit 1; }
    readelf --wide --dynamic "$package/libxla_gpu.so" | grep -q 'NOW.*NODELETE'
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
for kind in ("platform", "general"):
    (entry,) = importlib.metadata.entry_points(group=f"vllm.{kind}_plugins")
    assert callable(entry.load()) and entry.value == f"xla_gpu.vllm_xla:{kind}_plugin"

folder = pathlib.Path(xla_gpu.__file__).parent
assert (folder / "libxla_gpu.so").is_file()
assert (folder / "libxla_gpu_pjrt.so").is_file()
assert xla_gpu.library_dir() == str(folder)
assert xla_gpu.include_dir() == str(folder / "include")
assert not [path for path in folder.iterdir() if path.is_symlink()]
assert len(list(folder.glob("libxla_gpu.so*"))) == 1
assert not {"jax", "torch", "numpy"} & set(sys.modules), "import xla_gpu must need none of them"
PY
  )
}
for python in ${WHEEL_PYTHONS:-python3}; do try_python "$python"; done
echo "wheel: ok"
