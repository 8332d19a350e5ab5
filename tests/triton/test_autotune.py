"""The choice of a configuration: with a device that is made up, and without one."""

import contextlib
import logging
import pathlib
import warnings

import pytest
import triton_kernels as kernels
import xla_gpu
from test_variants import blocks, told
from xla_gpu import _ops
from xla_gpu._errors import StatusCode, XlaGpuError
from xla_gpu._ops import TensorSpec
from xla_gpu._triton import _autotune, _device, _disk

X = TensorSpec("f32", (1000,))
DEVICE = _device.Device("Made-up GPU", 90, 1 << 20, 0)


class Bench:
    """Memory by number; a run takes as long as `time` says of its attributes."""

    stream = 7

    def __init__(self, time):
        self.allocated, self.log, self._time = [], [], time

    def allocate(self, size):
        self.allocated.append(size)
        return 4096 * len(self.allocated)

    def fill(self, address, size, pattern):
        assert pattern

    def zero(self, address, size):
        self.log.append(("zero", address, size))

    def copy(self, to, source, size):
        self.log.append(("copy", to, source, size))

    def microseconds(self, enqueue):
        enqueue()
        return self._time(self.call)


@pytest.fixture
def device(monkeypatch):
    """Sets the time of a run, a function of (op, args, results, attributes); gives the benches."""
    benches = []

    def start(time):
        @contextlib.contextmanager
        def bench(device):
            benches.append(Bench(time))
            yield benches[-1]

        def run(op, platform, args, results, attributes, stream):
            assert (platform, stream) == ("CUDA", 7)
            benches[-1].call = (op, args, results, attributes)

        monkeypatch.setattr(_device, "find", lambda: DEVICE)
        monkeypatch.setattr(_device, "bench", bench)
        monkeypatch.setattr(_ops, "run", run)
        return benches

    return start


def block_of(call):
    return 1024 // call[3]["grid"][0]


def tuned(fn=kernels.tuned, **changes):
    return xla_gpu.triton_kernel(fn, grid=blocks, **{"outputs": {"out": "x"}, **changes})


def grid_of(kernel, x=X, n=1024):
    return kernel.variant(x, x, n).attributes["grid"][0]


def test_without_a_device_the_first_is_taken_and_said():
    with pytest.warns(RuntimeWarning, match="no sm_90 GPU to time 4 configurations on; the first"):
        assert grid_of(tuned(name="said_once", arch=90)) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grid_of(tuned(name="said_once", arch=90))


def test_a_device_of_another_architecture_times_nothing(device):
    benches = device(block_of)
    with pytest.warns(RuntimeWarning, match="no sm_80 GPU"):
        tuned(arch=80).variant(X, X, 1024)
    assert not benches


def test_the_quickest_is_chosen_once_for_a_key(device):
    benches = device(lambda call: abs(block_of(call) - 500))
    kernel = tuned()
    assert grid_of(kernel) == 2  # blocks of 512
    assert grid_of(kernel) == 2
    assert grid_of(kernel, TensorSpec("f32", (7,))) == 2
    assert len(benches) == 1
    grid_of(kernel, n=2048)
    grid_of(kernel, TensorSpec("bf16", (1000,)))
    assert len(benches) == 3
    assert benches[0].allocated == [2 << 20, 4000, 4000, 4000]


def test_the_choice_is_kept_on_disk(device):
    benches = device(lambda call: abs(block_of(call) - 250))
    assert grid_of(tuned()) == 4
    assert grid_of(tuned()) == 4
    assert len(benches) == 1


@pytest.mark.parametrize("kept", [None, [], {"configuration": "BLOCK: 3"}, {"configuration": 3}])
def test_what_cannot_have_been_kept_is_chosen_again(device, monkeypatch, kept):
    benches = device(lambda call: abs(block_of(call) - 250))
    monkeypatch.setattr(_disk, "read", lambda facts: kept)
    assert grid_of(tuned()) == grid_of(tuned()) == 4
    assert len(benches) == 2


def test_without_a_cache_on_disk(device, monkeypatch):
    benches = device(block_of)
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", "")
    grid_of(tuned())
    grid_of(tuned())
    assert len(benches) == 2


def test_a_cache_that_cannot_be_written(device, monkeypatch, tmp_path):
    device(block_of)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        assert grid_of(tuned()) == 8


def test_what_cannot_be_launched_is_skipped(device):
    def time(call):
        if block_of(call) < 1024:
            raise XlaGpuError("too much shared memory", StatusCode.INVALID_ARGUMENT)
        return 1.0

    device(time)
    assert grid_of(tuned()) == 1


def test_what_cannot_be_compiled_is_skipped(device, monkeypatch):
    device(block_of)
    configs = [kernels.triton.Config({"BLOCK": 3}), kernels.triton.Config({"BLOCK": 512})]
    fn = kernels.triton.autotune(configs=configs, key=["n"])(kernels.add)
    assert grid_of(tuned(fn)) == 2


def test_no_memory_for_the_timing(device, monkeypatch):
    device(block_of)

    def allocate(self, size):
        raise XlaGpuError("cuMemAlloc failed", StatusCode.RESOURCE_EXHAUSTED)

    monkeypatch.setattr(Bench, "allocate", allocate)
    with pytest.warns(RuntimeWarning, match="none of its configurations could be timed"):
        assert grid_of(tuned()) == 8


def test_tensors_are_reset(device):
    benches = device(block_of)
    kernel = tuned(kernels.zeroed, outputs={}, in_place=["total"])
    told(kernel.variant(X, X, 1024))
    (bench,) = benches
    _, args, results, _ = bench.call
    assert results[0].address == args[0].address
    assert ("zero", args[0].address, 4000) in bench.log


def test_prune_configs_by(device):
    seen = set()

    def time(call):
        seen.add(block_of(call))
        return block_of(call)

    device(time)
    xla_gpu.triton_kernel(kernels.pruned, grid=blocks, outputs={"out": "x"}).variant(X, X, 1024)
    assert seen == {512, 1024}  # the two largest by perf_model


def test_autotune_over_heuristics(device):
    device(lambda call: -call[3]["block"][0])
    variant = tuned(kernels.both).variant(X, X, 1000)
    assert variant.attributes["block"] == (256, 1, 1)
    assert "BLOCK = 1024" in variant.definition["doc"]


@pytest.mark.parametrize("variable", [True, False])
def test_the_log(device, monkeypatch, capsys, caplog, variable):
    device(block_of)
    if variable:
        monkeypatch.setenv("XLA_GPU_LOG", "info")
    else:
        caplog.set_level(logging.INFO, "xla_gpu")
    grid_of(tuned())
    said = capsys.readouterr().err if variable else caplog.text
    assert "add:    128.00 us  BLOCK: 128" in said
    assert "autotuned in" in said


def test_patterns():
    for dtype, size in (("f32", 4), ("f64", 8), ("f16", 2), ("bf16", 2)):
        pattern = _autotune._pattern(dtype)
        assert len(pattern) == size << 14
        assert len(set(pattern)) > 200
    assert not any(_autotune._pattern("i32"))


def test_no_driver():
    assert pathlib.Path("/dev/nvidia0").exists() or _device._driver() is None
