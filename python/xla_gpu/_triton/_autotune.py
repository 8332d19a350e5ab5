"""@triton.autotune: which configuration is the quickest here, timed once and kept on disk.

JAX traces with types alone, so that the timing has memory of its own: random floats, and zeros
elsewhere, since an index of zero is always a right one. The library launches, as in the program.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import json
import logging
import math
import os
import random
import statistics
import struct
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xla_gpu import _lib, _ops
from xla_gpu._errors import StatusCode, XlaGpuError
from xla_gpu._ops import TensorRef, TensorSpec
from xla_gpu._triton import _device, _disk
from xla_gpu._triton._meta import SIZES

if TYPE_CHECKING:
    from xla_gpu._triton._function import Variant

_WARM_UP_US, _TIMED_US = 5_000, 25_000  # of the device's time, a configuration
_MOST_RUNS = 200
_log = logging.getLogger("xla_gpu")


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is to be chosen, and for what.

    Attributes:
      kernel: its name.
      source: a digest of its text and what that uses.
      key: all else that the choice is kept by.
      texts: of the configurations.
      variant: the call by configuration i, whose compilation may fail.
      reset, restore: tensors that are zeros, or as at first, before each run.
    """

    kernel: str
    source: str
    key: Any
    texts: Sequence[str]
    variant: Callable[[int], Variant]
    reset: Sequence[str]
    restore: Sequence[str]


def choose(problem: Problem) -> int:
    """The index of the quickest configuration on this machine's GPU; the first without one."""
    import triton

    device = _device.find()
    if device is None or f"sm_{device.arch}" != problem.key[0]:
        _warn(f"{problem.kernel}: no {problem.key[0]} GPU to time {len(problem.texts)} "
              f"configurations on; the first is taken: {problem.texts[0]}")  # fmt: skip
        return 0
    key = repr(problem.key)
    facts = ["autotune", triton.__version__, device.name, problem.kernel, problem.source, key]
    known = _known(_disk.read(facts), problem)
    if known is not None:
        _say(f"{problem.kernel}: autotuned before: {problem.texts[known]}")
        return known
    start = time.perf_counter()
    times = _times(problem, device)
    chosen = min(range(len(times)), key=times.__getitem__)
    for text, microseconds in zip(problem.texts, times):
        _say(f"{problem.kernel}: {microseconds:9.2f} us  {text}")
    if math.isinf(times[chosen]):
        _warn(f"{problem.kernel}: none of its configurations could be timed; the first is taken")
        return 0
    _say(
        f"{problem.kernel}: autotuned in {time.perf_counter() - start:.2f} s for {problem.key[2]}: "
        f"{problem.texts[chosen]}"
    )
    kept = {"configuration": problem.texts[chosen], "microseconds": times[chosen]}
    _disk.write(facts, f"choice of @triton.autotune for {problem.kernel}", kept)
    return chosen


def _known(kept: Any, problem: Problem) -> int | None:
    """The choice that was kept; None where it cannot be one."""
    try:
        return list(problem.texts).index(kept["configuration"])
    except (ValueError, KeyError, TypeError):
        return None


def _say(message: str) -> None:
    """To the log; to standard error with XLA_GPU_LOG=info, where no log was set up."""
    _log.info(message)
    if os.environ.get("XLA_GPU_LOG") == "info" and not _log.isEnabledFor(logging.INFO):
        import sys

        print(f"xla_gpu: {message}", file=sys.stderr, flush=True)


@functools.cache
def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


# ---- Timing ------------------------------------------------------------------------------------


def _times(problem: Problem, device: _device.Device) -> list[float]:
    """Microseconds by configuration; infinity for one that cannot be compiled or launched."""
    times = []
    try:
        with _device.bench(device) as bench:
            memory = _Memory(bench)
            flush = bench.allocate(2 * device.l2_bytes), 2 * device.l2_bytes
            for i, text in enumerate(problem.texts):
                try:
                    times.append(_time(problem, problem.variant(i), bench, memory, flush))
                except XlaGpuError as e:
                    if e.code == StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    _say(f"{problem.kernel}: skipped {text}: {e}")
                    times.append(math.inf)
    except XlaGpuError as e:
        _say(f"{problem.kernel}: {e}")
        times += [math.inf] * (len(problem.texts) - len(times))
    return times


class _Memory:
    """Tensors on the device by name, made once for all configurations."""

    def __init__(self, bench: _device.Bench) -> None:
        self._bench = bench
        self._made: dict[tuple[str, TensorSpec], int] = {}

    def ref(self, name: str, spec: TensorSpec) -> TensorRef:
        if (name, spec) not in self._made:
            size = _bytes(spec)
            address = self._bench.allocate(size)
            self._bench.fill(address, size, _pattern(spec.dtype))
            self._made[name, spec] = address
        return TensorRef(spec, self._made[name, spec])


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * SIZES[spec.dtype]


@functools.cache
def _pattern(dtype: str) -> bytes:
    """Random floats between -1 and 1, and zeros for all that may be an index."""
    count = 1 << 14
    generator = random.Random(0)
    values = [generator.uniform(-1, 1) for _ in range(count)]
    if dtype in ("f32", "f64"):
        return array.array("f" if dtype == "f32" else "d", values).tobytes()
    if dtype == "f16":
        return struct.pack(f"<{count}e", *values)
    singles = array.array("f", values).tobytes()
    if dtype == "bf16":  # the upper half of an f32
        return b"".join(singles[i + 2 : i + 4] for i in range(0, len(singles), 4))
    return bytes(count)


def _time(
    problem: Problem,
    variant: Variant,
    bench: _device.Bench,
    memory: _Memory,
    flush: tuple[int, int],
) -> float:
    """The median time of a run, each with a cold L2 cache."""
    text = json.dumps(variant.definition).encode()
    told = _lib.text_of(_lib.load().xla_gpu_define_kernel, text, len(text))
    op = json.loads(told)["key"]
    args = [memory.ref(name, spec) for name, spec in variant.arguments.items()]
    results = [
        args[r.alias_of] if r.alias_of is not None else memory.ref(r.name, r.spec)
        for r in _ops.infer(op, "CUDA", list(variant.arguments.values()), variant.attributes)
    ]
    named = dict(zip([*variant.results, *variant.arguments], [*results, *args]))
    reset = [name for name in problem.reset if name in named]
    restore = [name for name in problem.restore if name in named]
    kept = {name: memory.ref(f"{name} at first", named[name].spec) for name in restore}

    def prepare() -> None:
        for name in reset:
            bench.zero(named[name].address, _bytes(named[name].spec))
        for name, first in kept.items():
            bench.copy(named[name].address, first.address, _bytes(first.spec))
        bench.zero(*flush)

    def run() -> None:
        _ops.run(op, "CUDA", args, results, variant.attributes, bench.stream)

    def timed() -> float:
        prepare()
        return bench.microseconds(run)

    timed()  # loads it
    once = timed()
    for _ in range(min(_MOST_RUNS, int(_WARM_UP_US / max(1.0, once)))):
        timed()
    runs = max(5, min(_MOST_RUNS, int(_TIMED_US / max(1.0, once))))
    return statistics.median(timed() for _ in range(runs))
