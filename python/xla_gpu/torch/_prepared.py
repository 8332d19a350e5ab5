"""A call of the library made ready once: later calls of the same types only fill in addresses.

What a call costs on the host bounds how short a decode step can be. The library has a plan cache of
its own; this is the same on the Python side, where building the structs of the C ABI is what costs.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from xla_gpu import _lib, _ops
from xla_gpu.torch import _schema

# More problems than a server meets; past it a thread starts anew.
MAX_PREPARED = 4096

_WORD = ctypes.sizeof(ctypes.c_uint64)
_WORDS_PER_TENSOR = ctypes.sizeof(_lib.Tensor) // _WORD
_DATA_WORD = _lib.Tensor.data.offset // _WORD


_pointer = ctypes.c_void_p
# These take the address of a call; that with the GIL held, its tensors and room for a status too.
_run = ctypes.CFUNCTYPE(_pointer, _pointer)(("xla_gpu_run", _lib.load()))
_clear = ctypes.CFUNCTYPE(None, _pointer)(("xla_gpu_object_call_clear", _lib.load()))
_run_objects = ctypes.PYFUNCTYPE(ctypes.c_int, _pointer, ctypes.py_object, _pointer)(
    ("xla_gpu_run_objects", _lib.load())
)


def _no_stream(index: int) -> int:
    return 0


def _stream_function() -> Callable[[int], int]:
    """The address of torch's current stream of a device, by the shortest way this torch has."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


class _ObjectCall(ctypes.Structure):
    """xla_gpu_object_call."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("call", ctypes.c_void_p),
        ("exchange_api", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("none", ctypes.c_void_p),
        ("tuple_item", ctypes.c_void_p),
        ("release_gil", ctypes.c_void_p),
        ("acquire_gil", ctypes.c_void_p),
        ("plan", ctypes.c_void_p),
    ]


# The address of torch's DLPackExchangeAPI (2.10 and later), 0 where it has none.
_exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_EXCHANGE_API = 0 if _exchange is None else _lib.capsule_address(_exchange)


def _python_function(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


class Prepared:
    """One problem on one device, for one thread (it is written to at every call).

    Attributes:
      index: the CUDA device's, -1 on the CPU.
      makers: what gives each result's tensor, given the arguments: a new one, or the one that is
        written in place.
      object_call: the address of the same call for objects, 0 where torch does not offer that.
    """

    __slots__ = (
        "_address",
        "_clear",
        "_keep",
        "_object_call",
        "_run_objects",
        "_status",
        "_status_address",
        "_stream",
        "_struct",
        "_words",
        "index",
        "makers",
        "object_call",
    )

    def __init__(
        self,
        call: _schema.OpCall,
        specs: Sequence[_ops.TensorSpec],
        results: Sequence[_ops.Result],
        device: torch.device,
        platform: str,
        in_place: bool,
    ) -> None:
        tensors = [_ops.TensorRef(spec, 0) for spec in (*specs, *(r.spec for r in results))]
        made = _ops.CCall(call.op.id, platform, tensors, [], call.attrs)
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
        self.makers = [
            itemgetter(r.alias_of)
            if in_place and r.alias_of is not None
            else _maker(r.spec, specs, device)
            for r in results
        ]
        self.object_call = 0
        if _EXCHANGE_API:
            self._prepare_objects(device)

    def _prepare_objects(self, device: torch.device) -> None:
        self._object_call = _ObjectCall(
            struct_size=ctypes.sizeof(_ObjectCall),
            call=self._address,
            exchange_api=_EXCHANGE_API,
            device_type=1 if device.type == "cpu" else 2,
            device_id=max(self.index, 0),
            none=id(None),
            tuple_item=_python_function("PyTuple_GetItem"),
            release_gil=_python_function("PyEval_SaveThread"),
            acquire_gil=_python_function("PyEval_RestoreThread"),
        )
        self.object_call = ctypes.addressof(self._object_call)
        self._run_objects = _run_objects
        self._clear = _clear
        self._status = ctypes.c_void_p()
        self._status_address = ctypes.addressof(self._status)

    def __del__(self) -> None:
        if getattr(self, "object_call", 0):
            self._clear(self.object_call)

    def results(
        self, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """The results' tensors, `out` for the first where it is given."""
        if out is None:
            return [make(tensors) for make in self.makers]
        return [out, *[make(tensors) for make in self.makers[1:]]]

    def run_objects(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """As run, on the tensors themselves; False, with nothing done, if they are of other types.

        Only where `object_call` is not 0.
        """
        try:
            outcome: int = self._run_objects(self.object_call, tensors, self._status_address)
        except (BufferError, RuntimeError, TypeError, ValueError):
            return False  # torch cannot show one of them to others: the checks say why
        if outcome == 2:
            _lib.check(self._status.value)
        return outcome == 0

    def run(self, addresses: list[int]) -> None:
        """Runs the call on the arguments and results at these addresses; XlaGpuError."""
        self._words[:] = array("Q", addresses)
        if self.index >= 0:
            self._struct.stream = self._stream(self.index)
        status = _run(self._address)
        if status:
            _lib.check(status)


def _maker(
    spec: _ops.TensorSpec, specs: Sequence[_ops.TensorSpec], device: torch.device
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    if spec in specs:  # empty_like is the quickest of torch's allocations
        like, empty_like = specs.index(spec), torch.empty_like
        return lambda args: empty_like(args[like])
    # A method of a tensor, with a plain int where it may: torch.empty reads dtype and device anew.
    new_empty = torch.empty(0, dtype=_schema.TORCH_DTYPES[spec.dtype], device=device).new_empty
    size = spec.shape[0] if len(spec.shape) == 1 else spec.shape
    return lambda args: new_empty(size)


class _Thread(threading.local):
    """What a thread has prepared, and the CUDA devices whose context it has made.

    Attributes:
      prepared: by all that a problem depends on.
      recent: by what mostly changes from call to call; the library compares the rest.
    """

    def __init__(self) -> None:
        self.prepared: dict[Any, Prepared] = {}
        self.recent: dict[Any, Prepared] = {}
        self.devices: set[int] = set()


thread = _Thread()


def ensure_context(index: int) -> None:
    """Makes the device's context this thread's: a new thread has none until the runtime is asked.

    The caller has made the device torch's current one.
    """
    if index not in thread.devices:
        torch.cuda.mem_get_info(index)
        thread.devices.add(index)
