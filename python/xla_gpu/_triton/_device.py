"""The CUDA device of this process through the driver, for what is timed before a program runs.

Only the functions that timing needs; the library launches (xla_gpu_run).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from xla_gpu._errors import StatusCode, XlaGpuError

_OUT_OF_MEMORY = 2
_NON_BLOCKING = 1
_MAJOR, _MINOR, _L2_BYTES = 75, 76, 38  # CU_DEVICE_ATTRIBUTE_*


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
      name: the driver's ("NVIDIA H200").
      arch: the compute capability: 90.
      l2_bytes: of its cache.
    """

    name: str
    arch: int
    l2_bytes: int
    handle: int


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _call(function: str, *args: Any) -> None:
    """A function of the driver; XlaGpuError with its name for any other answer than success."""
    driver = _driver()
    assert driver is not None
    code = getattr(driver, function)(*args)
    if code == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(text))
    said = text.value.decode() if text.value else str(code)
    out_of_memory = code == _OUT_OF_MEMORY
    raise XlaGpuError(
        f"cuda: {function} failed: {said}",
        StatusCode.RESOURCE_EXHAUSTED if out_of_memory else StatusCode.INTERNAL,
    )


@functools.cache
def find() -> Device | None:
    """The first GPU that this process sees; None without one."""
    count = ctypes.c_int()
    driver = _driver()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    _call("cuDeviceGet", ctypes.byref(handle), 0)
    _call("cuDeviceGetName", name, len(name), handle)
    values = []
    for attribute in (_MAJOR, _MINOR, _L2_BYTES):
        value = ctypes.c_int()
        _call("cuDeviceGetAttribute", ctypes.byref(value), attribute, handle)
        values.append(value.value)
    return Device(name.value.decode(), 10 * values[0] + values[1], values[2], handle.value)


class Bench:
    """Memory and a stream of a device, for one timing; all is freed at its end.

    Attributes:
      stream: the CUstream's address.
    """

    def __init__(self) -> None:
        stream = ctypes.c_void_p()
        _call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self.stream = stream.value or 0
        self._allocated: list[int] = []
        self._events = []
        for _ in range(2):
            event = ctypes.c_void_p()
            _call("cuEventCreate", ctypes.byref(event), 0)
            self._events.append(event)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes; XlaGpuError (RESOURCE_EXHAUSTED) where there are none."""
        address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, size)))
        self._allocated.append(address.value)
        return address.value

    def zero(self, address: int, size: int) -> None:
        """Enqueues zeros."""
        stream = ctypes.c_void_p(self.stream)
        count = ctypes.c_size_t(size)
        _call("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(0), count, stream)

    def copy(self, to: int, source: int, size: int) -> None:
        """Enqueues a copy on the device."""
        to_, from_ = ctypes.c_uint64(to), ctypes.c_uint64(source)
        stream = ctypes.c_void_p(self.stream)
        _call("cuMemcpyDtoDAsync_v2", to_, from_, ctypes.c_size_t(size), stream)

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Writes the pattern again and again."""
        first = min(size, len(pattern))
        _call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), pattern, ctypes.c_size_t(first))
        done = first
        while done < size:  # doubles what is there
            more = min(done, size - done)
            self.copy(address + done, address, more)
            done += more
        self.wait()

    def wait(self) -> None:
        """Until all that was enqueued is done."""
        _call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def microseconds(self, enqueue: Callable[[], None]) -> float:
        """The time on the device of what `enqueue` enqueues."""
        begin, end = self._events
        _call("cuEventRecord", begin, ctypes.c_void_p(self.stream))
        enqueue()
        _call("cuEventRecord", end, ctypes.c_void_p(self.stream))
        _call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        _call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1e3

    def close(self) -> None:
        """Frees everything; after a failed kernel the driver refuses, which changes nothing."""
        driver = _driver()
        assert driver is not None
        driver.cuStreamSynchronize(ctypes.c_void_p(self.stream))
        for address in self._allocated:
            driver.cuMemFree_v2(ctypes.c_uint64(address))
        for event in self._events:
            driver.cuEventDestroy_v2(event)
        driver.cuStreamDestroy_v2(ctypes.c_void_p(self.stream))


@contextlib.contextmanager
def bench(device: Device) -> Iterator[Bench]:
    """A Bench in the device's primary context, the one of XLA and torch."""
    context, last = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.handle)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            made = Bench()
            try:
                yield made
            finally:
                made.close()
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(last))
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", device.handle)
