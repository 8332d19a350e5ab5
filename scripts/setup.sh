#!/usr/bin/env bash
# What a fresh machine lacks, in steps that may be repeated. Python packages are those of
# requirements/*.txt alone, whose hashes pip compares (scripts/lock.sh makes the files). Usage:
#   scripts/setup.sh system GROUP...  Debian/Ubuntu packages of requirements/apt-GROUP.txt
#   scripts/setup.sh venv FILE...     the Python environment .venv with requirements/FILE.txt
#   scripts/setup.sh torch            another, .venv-torch, with requirements/torch.txt (6 GB)
#   scripts/setup.sh vllm             and .venv-vllm, with requirements/vllm.txt (3 GB, and CUDA's
#                                     libraries of .venv-torch); needs a Python 3.12
#   scripts/setup.sh wheel            and .venv-wheel, with requirements/wheel.txt (a compiler: 500 MB)
#   scripts/setup.sh gpu              JAX's CUDA plugin into .venv, where there is an NVIDIA GPU
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf -- '-- %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

packages_of() {
  local group
  for group in "$@"; do grep -Ev '^(#|$)' "requirements/apt-$group.txt"; done
}

installed() { [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

system() {
  local missing=() package all
  all=$(packages_of "$@")
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian or Ubuntu system: these packages, or yours of that content, are needed: ${all//$'\n'/ }"
    return
  fi
  for package in $all; do installed "$package" || missing+=("$package"); done
  ((${#missing[@]})) || return 0
  local as_root=() root=
  if [[ $(id -u) != 0 ]]; then
    sudo -n true 2>/dev/null || die "packages are missing and this user may not install them; run
  sudo apt-get install ${missing[*]}"
    as_root=(sudo) root="sudo "
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  say "missing packages: ${missing[*]}; reading the package lists with ${root}apt-get update"
  "${apt[@]}" update
  local install=(install --yes --no-install-recommends "${missing[@]}") brings
  brings=$("${apt[@]}" --simulate "${install[@]}" | awk '/^Inst /{printf " %s", $2}')
  say "installing with ${root}apt-get, with all that they need:$brings"
  "${apt[@]}" "${install[@]}" >/dev/null
}

# make_venv FOLDER FILE...: the environment FOLDER with requirements/FILE.txt, of the Python that
# BASE_PYTHON names and with the options of pip in PIP_OPTIONS.
make_venv() {
  local folder=$1 files=() options=() name base=${BASE_PYTHON:-python3}
  shift
  if ! "$folder/bin/python" -c 'import pip' 2>/dev/null; then
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
      die "$base is $("$base" --version); requirements/*.txt are for 3.11 and newer (set BASE_PYTHON=python3.12)"
    say "making $folder with $("$base" --version)"
    rm -rf "$folder"
    "$base" -m venv "$folder"
    # The package is used from the source tree; its library is the one in build/release. The entry
    # points are pyproject.toml's: by them torch_xla finds the device XLA_GPU, and vLLM its platform.
    "$folder/bin/python" - <<'PY'
import pathlib, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
(site / "xla_gpu_source_tree.pth").write_text(f"{pathlib.Path('python').resolve()}\n")
info = site / "xla_gpu_source_tree-0.dist-info"
info.mkdir()
(info / "METADATA").write_text("Metadata-Version: 2.1\nName: xla-gpu-source-tree\nVersion: 0\n")
(info / "entry_points.txt").write_text(
    "[torch_xla.plugins]\nXLA_GPU = xla_gpu.torch_xla_plugin:XlaGpuPlugin\n"
    "[vllm.platform_plugins]\nxla_gpu = xla_gpu.vllm_xla:platform_plugin\n"
    "[vllm.general_plugins]\nxla_gpu = xla_gpu.vllm_xla:general_plugin\n"
    "xla_gpu_cuda = xla_gpu.vllm_cuda:register\n"
)
PY
  fi
  for name in "$@"; do files+=(-r "requirements/$name.txt"); done
  say "installing Python packages of ${files[*]} in $folder"
  read -ra options <<<"${PIP_OPTIONS:-}"
  install "$folder" "${options[@]}" "${files[@]}"
}

install() { "$1/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "${@:2}"; }

venv() { make_venv .venv "$@"; }
torch() { make_venv .venv-torch torch; }
wheel() { make_venv .venv-wheel wheel; }

# vllm-tpu has a wheel for Python 3.12 alone. Its torch and .venv-torch's load the same CUDA libraries
# (and use none on the CPU): 4 GB that need not be there twice.
vllm() {
  local python versions
  versions=$(command -v pyenv >/dev/null && pyenv prefix "$(pyenv latest 3.12 2>/dev/null)" 2>/dev/null) || true
  for python in ${versions:+"$versions/bin/python3"} python3.12 python3; do
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null || continue
    BASE_PYTHON=$python PIP_OPTIONS="--no-deps --no-compile" make_venv .venv-vllm vllm
    ln -sfn "$(echo "$PWD"/.venv-torch/lib/python3*/site-packages/nvidia)" \
      .venv-vllm/lib/python3.12/site-packages/nvidia
    return
  done
  die "vLLM on XLA needs Python 3.12 with its venv module; none is there"
}

# The plugin is of jaxlib's own version, and of a CUDA that the driver runs.
gpu() {
  [[ -e /dev/nvidiactl ]] || return 0
  local driver cuda=cuda12
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
  ((${driver%%.*} >= 580)) 2>/dev/null && cuda=cuda13
  say "installing JAX's plugin for the GPU of requirements/$cuda.txt"
  install .venv -r "requirements/$cuda.txt"
}

step=${1:-}
shift || true
case $step in
  system | venv | torch | vllm | wheel | gpu) "$step" "$@" ;;
  *) sed -n '2,10s/^# //p' "$0" >&2; exit 2 ;;
esac
