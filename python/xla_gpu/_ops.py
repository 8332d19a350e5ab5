"""Ops as function calls through the C ABI: types in, types out, and runs on memory addresses.

The framework modules (jax, torch, ...) stand on this one; it knows no framework.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from xla_gpu import _lib
from xla_gpu._errors import InvalidArgumentError

# Names as XLA and the library's messages write them -> xla_gpu_dtype, NumPy's (ml_dtypes') names.
_INTS = ["pred", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
_FLOATS = {"f16": 10, "f32": 11, "f64": 12, "bf16": 16, "f8e5m2": 19, "f8e4m3fn": 20}
DTYPES = dict(zip(_INTS, range(1, 10))) | _FLOATS
_NUMPYS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_NUMPYS += ["float16", "float32", "float64", "bfloat16", "float8_e5m2", "float8_e4m3fn"]
NUMPY_NAMES = dict(zip(DTYPES, _NUMPYS, strict=True))
NUMPY_DTYPE_NAMES = {numpys: ours for ours, numpys in NUMPY_NAMES.items()}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The type of a dense row-major tensor: a dtype name ("bf16") and a shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Result:
    """What a result of a call is.

    Attributes:
      spec: its type.
      name: as in the schema.
      kind: "output", "alias" or "scratch" (work space, which no user sees; always last).
      alias_of: of an alias, the index of the argument whose buffer it shares.
    """

    spec: TensorSpec
    name: str
    kind: str
    alias_of: int | None


@dataclasses.dataclass(frozen=True)
class TensorRef:
    """A tensor at an address of host memory (platform "Host") or device memory ("CUDA")."""

    spec: TensorSpec
    address: int


AttrValue = bool | int | float | str | Sequence[int]


def spec_of(array: Any) -> TensorSpec:
    """The type of anything with NumPy's `shape` and `dtype`; ValueError for an unknown dtype."""
    name = NUMPY_DTYPE_NAMES.get(str(array.dtype))
    if name is None:
        allowed = ", ".join(NUMPY_DTYPE_NAMES)
        raise InvalidArgumentError(
            f"dtype {array.dtype} has no counterpart in XLA; allowed: {allowed}"
        )
    return TensorSpec(name, tuple(array.shape))


def count_seqs(op: str, num_seqs: Any, shape: Sequence[int]) -> Any:
    """The sequences of a call whose context_lens has this shape; None stands for all."""
    if len(shape) != 1:
        return 0  # the library says what is wrong with it
    if num_seqs is None:
        return shape[0]
    if isinstance(num_seqs, bool) or not 0 <= num_seqs <= shape[0]:
        raise InvalidArgumentError(
            f"{op}: num_seqs is {num_seqs!r}; it must be 0 to {shape[0]}, as many sequences as "
            "context_lens has, or None for all"
        )
    return num_seqs


def _c_ints(values: Sequence[int], what: str) -> Sequence[int]:
    for value in values:
        _lib.c_int(value, what)
    return values


def _c_tensors(tensors: Sequence[TensorRef], keep: list[Any]) -> ctypes.Array[_lib.Tensor]:
    out = (_lib.Tensor * max(1, len(tensors)))()
    for slot, tensor in zip(out, tensors, strict=False):
        shape = tensor.spec.shape
        dims = (ctypes.c_int64 * max(1, len(shape)))(*_c_ints(shape, "a dimension"))
        keep.append(dims)
        slot.struct_size = ctypes.sizeof(_lib.Tensor)
        slot.data = _lib.c_address(tensor.address, "a tensor's address")
        slot.dtype = DTYPES.get(tensor.spec.dtype, 0)
        slot.rank = len(shape)
        slot.dims = dims
    return out


def _c_attr(slot: _lib.Attr, name: str, value: AttrValue, keep: list[Any]) -> None:
    slot.struct_size = ctypes.sizeof(_lib.Attr)
    slot.name = _lib.c_text(name, "an attribute's name")
    if isinstance(value, bool):  # before int: a bool is one
        slot.type, slot.i = 0, int(value)
    elif isinstance(value, int):
        slot.type, slot.i = 1, _lib.c_int(value, f"attribute '{name}'")
    elif isinstance(value, float):
        slot.type, slot.f = 2, value
    elif isinstance(value, str):
        text = value.encode()
        slot.type, slot.s, slot.s_size = 3, text, len(text)
    else:
        ints = (ctypes.c_int64 * max(1, len(value)))(*_c_ints(value, f"attribute '{name}'"))
        keep.append(ints)
        slot.type, slot.ints, slot.ints_size = 4, ints, len(value)


class CCall:
    """An xla_gpu_call together with the memory it points into."""

    def __init__(
        self,
        op: str,
        platform: str,
        args: Sequence[TensorRef],
        results: Sequence[TensorRef],
        attrs: Mapping[str, AttrValue],
        stream: int = 0,
    ) -> None:
        self._keep: list[Any] = []
        c_attrs = (_lib.Attr * max(1, len(attrs)))()
        for slot, (name, value) in zip(c_attrs, attrs.items(), strict=False):
            _c_attr(slot, name, value, self._keep)
        self.struct = _lib.Call(
            struct_size=ctypes.sizeof(_lib.Call),
            op=_lib.c_text(op, "op"),
            platform=_lib.c_text(platform, "platform"),
            stream=_lib.c_address(stream, "stream"),
            args=_c_tensors(args, self._keep),
            num_args=len(args),
            results=_c_tensors(results, self._keep),
            num_results=len(results),
            attrs=c_attrs,
            num_attrs=len(attrs),
        )


def infer(
    op: str,
    platform: str,
    args: Sequence[TensorSpec],
    attrs: Mapping[str, AttrValue],
) -> list[Result]:
    """Checks a call by its types and returns what its results are.

    Args:
      op: the op's name ("paged_attention") or custom-call target.
      platform: "Host" or "CUDA" (which may add a workspace result).
      args: the types of the arguments, absent optional ones left out.
      attrs: attribute values by name.

    Raises:
      InvalidArgumentError (a ValueError): with the library's message, naming the argument.
    """
    call = CCall(op, platform, [TensorRef(spec, 0) for spec in args], [], attrs)
    text = _lib.text_of(_lib.load().xla_gpu_infer, ctypes.byref(call.struct))
    return [
        Result(TensorSpec(r["dtype"], tuple(r["shape"])), r["name"], r["kind"], r["alias_of"])
        for r in json.loads(text)
    ]


def opaque(
    op: str,
    platform: str,
    args: Sequence[TensorSpec],
    attrs: Mapping[str, AttrValue],
    results: Sequence[TensorSpec] = (),
) -> str:
    """Checks a call and returns the text that describes it to a legacy handler (backend_config).

    Arguments and errors as of `infer`; `results` are their types, if empty those that it returns.
    """
    arg_refs, result_refs = ([TensorRef(s, 0) for s in specs] for specs in (args, results))
    call = CCall(op, platform, arg_refs, result_refs, attrs)
    return _lib.text_of(_lib.load().xla_gpu_opaque, ctypes.byref(call.struct))


def run(
    op: str,
    platform: str,
    args: Sequence[TensorRef],
    results: Sequence[TensorRef],
    attrs: Mapping[str, AttrValue],
    stream: int = 0,
) -> None:
    """Runs an op on memory: on "Host" before it returns, on "CUDA" enqueued on `stream`.

    The caller keeps the memory alive and big enough for its spec. Raises XlaGpuError.
    """
    call = CCall(op, platform, args, results, attrs, stream)
    _lib.check(_lib.load().xla_gpu_run(ctypes.byref(call.struct)))
