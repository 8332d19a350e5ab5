# Every target sets up what it needs (scripts/setup.sh), may be repeated, and is quick the second
# time: stamp files remember what is installed, Ninja what is built.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
PY := .venv/bin/python
STAMPS := .venv/.stamps
RELEASE := build/release
# What the Python package and the tests read to find the library and the program.
export XLA_GPU_LIBRARY := $(CURDIR)/$(RELEASE)/libxla_gpu.so
export XLA_GPU_PROGRAM := $(CURDIR)/$(RELEASE)/xla-gpu
# So that ccache knows a source again in another clone, and with precompiled headers.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros
# Where the C++ side looks for PJRT plugins and pip packages.
export VIRTUAL_ENV := $(CURDIR)/.venv

.DEFAULT_GOAL := help
.SECONDARY:
.PHONY: configure library
.PHONY: help build demo test test-torch test-vllm bench bench-gpu test-gpu compat fuzz format lint wheel clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- Set-up ----------------------------------------------------------------------------------

build/.stamps/system-%: requirements/apt-%.txt scripts/setup.sh
	@scripts/setup.sh system $*
	@mkdir -p $(@D) && touch $@

$(STAMPS)/%: requirements/%.txt scripts/setup.sh | build/.stamps/system-build
	@scripts/setup.sh venv $*
	@mkdir -p $(@D) && touch $@

$(STAMPS)/gpu: $(STAMPS)/test requirements/cuda12.txt requirements/cuda13.txt
	@scripts/setup.sh gpu
	@touch $@

.venv-torch/.complete: requirements/torch.txt scripts/setup.sh | build/.stamps/system-build
	@scripts/setup.sh torch
	@touch $@

.venv-wheel/.complete: requirements/wheel.txt scripts/setup.sh | build/.stamps/system-build
	@scripts/setup.sh wheel
	@touch $@

.venv-vllm/.complete: requirements/vllm.txt scripts/setup.sh .venv-torch/.complete
	@scripts/setup.sh vllm
	@touch $@

configure: $(STAMPS)/test
	@cmake --preset release --log-level=WARNING -DPython3_EXECUTABLE=$(CURDIR)/$(PY) >/dev/null

# Ninja tells its progress in one line of a terminal, and elsewhere nothing but what fails.
BUILD := cmake --build --preset release --parallel $(JOBS)
NINJA_OPTIONS := $(if $(MAKE_TERMOUT),,-- --quiet)

build: configure  ## Build the library, the program and the tests in build/release
	@$(BUILD) $(NINJA_OPTIONS)

library: configure
	@echo "-- building the library and the program"
	@$(BUILD) --target xla_gpu_pjrt xla-gpu $(NINJA_OPTIONS)

# ---- Use -------------------------------------------------------------------------------------

demo: library $(STAMPS)/gpu  ## Paged attention as a custom call inside real XLA, from C++ and from JAX
	@scripts/demo.sh

bench: build $(STAMPS)/gpu  ## Speed on this machine, to build/bench; UPDATE=1: over docs/benchmarks; RUNS=3: the CPU's thrice
	@RUNS=$(RUNS) scripts/bench.sh $(if $(UPDATE),--update)

bench-gpu: build $(STAMPS)/gpu .venv-torch/.complete  ## Beside every installed peer, a grid of shapes; BENCH="--shapes REGEX"
	@scripts/bench_gpu.sh $(if $(UPDATE),--update) $(BENCH)

# ---- Tests -----------------------------------------------------------------------------------

test: build  ## All tests that need no GPU: C++ (ctest), then Python (pytest)
	@ctest --preset release --parallel $(JOBS)
	@$(PY) -m pytest -n $(JOBS) --dist loadgroup tests

# Two runs: autograd must not have worked on the CPU before it first meets an XLA device.
test-torch: build .venv-torch/.complete  ## Tests with PyTorch, PyTorch/XLA, torchax and Triton, in .venv-torch
	@VIRTUAL_ENV=$(CURDIR)/.venv-torch .venv-torch/bin/python -m pytest -n $(JOBS) \
	  --dist loadgroup tests/torch tests/torchax tests/triton \
	  'tests/docs/test_pages.py::test_page[docs/pytorch.md]' \
	  'tests/docs/test_pages.py::test_page[docs/torchax.md]' \
	  'tests/docs/test_pages.py::test_page[docs/triton.md]'
	@VIRTUAL_ENV=$(CURDIR)/.venv-torch .venv-torch/bin/python -m pytest -n $(JOBS) \
	  --dist loadgroup tests/torch_xla tests/xla_gpu 'tests/docs/test_pages.py::test_page[docs/pytorch-xla.md]'

# The environment comes without bytecode: vLLM's many processes must keep what the first compiled.
test-vllm: build .venv-vllm/.complete  ## Tests of vLLM on XLA over HTTP, in .venv-vllm (Python 3.12)
	@env -u PYTHONDONTWRITEBYTECODE VIRTUAL_ENV=$(CURDIR)/.venv-vllm .venv-vllm/bin/python -m pytest \
	  -n $(JOBS) --dist loadfile tests/vllm 'tests/docs/test_pages.py::test_page[docs/vllm.md]'

test-gpu:  ## All tests that need an NVIDIA GPU, offline, with the library in build/release
	@scripts/test_gpu.sh

compat: build  ## The tests with every supported jax, torch and Triton release, from this one library
	@scripts/compat.sh

fuzz: $(STAMPS)/test build/.stamps/system-lint  ## Each fuzz target for FUZZ_SECONDS (60)
	@scripts/fuzz.sh $(FUZZ_SECONDS)

# ---- Care ------------------------------------------------------------------------------------

format: $(STAMPS)/lint  ## Format all C++, CUDA and Python
	@scripts/lint.sh --fix

lint: build $(STAMPS)/lint build/.stamps/system-lint  ## Formats, ruff, shellcheck, layers, clang-tidy
	@scripts/lint.sh

wheel: .venv-wheel/.complete  ## The wheel for glibc 2.28 and newer, in dist/; ARCH=aarch64: for Arm
	@scripts/wheel.sh $(if $(ARCH),--arch $(ARCH))

clean:  ## Remove build outputs; .venv and fetched headers stay
	@rm -rf build/release build/debug build/asan build/tsan build/fuzz build/wheel* build/zig dist
