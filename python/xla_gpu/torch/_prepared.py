"""A call of the library made ready once: later calls of the same types only fill in addresses.

What a call costs on the host bounds how short a decode step can be. The library has a plan cache of
its own; this is the same on the Python side, where building the structs of the C ABI is what costs.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_gpu import _lib, _ops
from xla_gpu.torch import _schema

# More problems than a server meets; past it a thread starts anew.
MAX_PREPARED = 4096

_WORD = ctypes.sizeof(ctypes.c_uint64)
_WORDS_PER_TENSOR = ctypes.sizeof(_lib.Tensor) // _WORD
_DATA_WORD = _lib.Tensor.data.offset // _WORD


@functools.cache
def _run_function() -> Callable[[int], int | None]:
    """xla_gpu_run, which takes the address of a call and gives that of a status or None."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    return prototype(("xla_gpu_run", _lib.load()))


def _no_stream(index: int) -> int:
    return 0


def _stream_function() -> Callable[[int], int]:
    """The address of torch's current stream of a device, by the shortest way this torch has."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


class Prepared:
    """One problem on one device, for one thread (it is written to at every call).

    Attributes:
      index: the CUDA device's, -1 on the CPU.
      makers: what allocates each result, given the arguments.
      sizes: bytes of each argument.
    """

    __slots__ = ("_address", "_keep", "_stream", "_struct", "_words", "index", "makers", "sizes")

    def __init__(
        self,
        call: _schema.OpCall,
        specs: Sequence[_ops.TensorSpec],
        results: Sequence[_ops.TensorSpec],
        device: torch.device,
        platform: str,
    ) -> None:
        tensors = [_ops.TensorRef(spec, 0) for spec in (*specs, *results)]
        made = _ops.CCall(call.op, platform, tensors, [], call.attrs)
        self._struct = made.struct
        self._struct.num_args, self._struct.num_results = len(specs), len(results)
        base = ctypes.addressof(self._struct.args.contents)
        first_result = base + len(specs) * ctypes.sizeof(_lib.Tensor)
        self._struct.results = ctypes.cast(first_result, ctypes.POINTER(_lib.Tensor))
        words = (ctypes.c_uint64 * (_WORDS_PER_TENSOR * len(tensors))).from_address(base)
        # Every data pointer, as one strided view.
        self._words = memoryview(words).cast("B").cast("Q")[_DATA_WORD::_WORDS_PER_TENSOR]
        self._address = ctypes.addressof(self._struct)
        self._keep = made
        self._stream = _stream_function() if platform == "CUDA" else _no_stream
        self.index = device.index if platform == "CUDA" else -1
        self.makers = [_maker(spec, specs, device) for spec in results]
        self.sizes = [
            math.prod(spec.shape) * _schema.TORCH_DTYPES[spec.dtype].itemsize for spec in specs
        ]

    def run(self, addresses: list[int]) -> None:
        """Runs the call on the arguments and results at these addresses; XlaGpuError."""
        self._words[:] = array("Q", addresses)
        if self.index >= 0:
            self._struct.stream = self._stream(self.index)
        status = _run_function()(self._address)
        if status:
            _lib.check(status)


def _maker(
    spec: _ops.TensorSpec, specs: Sequence[_ops.TensorSpec], device: torch.device
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    if spec in specs:  # empty_like is the quickest of torch's allocations
        like = specs.index(spec)
        return lambda args: torch.empty_like(args[like])
    dtype = _schema.TORCH_DTYPES[spec.dtype]
    return lambda args: torch.empty(spec.shape, dtype=dtype, device=device)


class _Thread(threading.local):
    """What a thread has prepared, by key; and the CUDA devices whose context it has made."""

    def __init__(self) -> None:
        self.prepared: dict[Any, Prepared] = {}
        self.devices: set[int] = set()


thread = _Thread()


def ensure_context(index: int) -> None:
    """Makes the device's context this thread's: a new thread has none until the runtime is asked.

    The caller has made the device torch's current one.
    """
    if index not in thread.devices:
        torch.cuda.mem_get_info(index)
        thread.devices.add(index)
