"""What the user's functions of a Triton kernel (grid, heuristics, ...) are shown of a call."""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

from xla_gpu import _kernel
from xla_gpu._ops import TensorSpec

# Bytes of an element.
SIZES = {"pred": 1, "f8e5m2": 1, "f8e4m3fn": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
SIZES |= {f"{sign}{8 * size}": size for sign in "iu" for size in (1, 2, 4, 8)}
# Triton's names of dtypes, where they are not the library's.
TRITON_NAMES = {"f16": "fp16", "f32": "fp32", "f64": "fp64"}
TRITON_NAMES |= {"f8e5m2": "fp8e5", "f8e4m3fn": "fp8e4nv", "pred": "u1"}
_FROM_TRITON = {theirs: ours for ours, theirs in TRITON_NAMES.items()}
_FROM_TRITON |= {"i1": "pred", "int1": "pred"}


def from_triton(name: str) -> str:
    """The library's name of a dtype of Triton's."""
    return _FROM_TRITON.get(name, name)


class DType(str):
    """A dtype's name ("bf16"), equal to torch's, NumPy's, JAX's and Triton's dtypes of its kind."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self) == (_kernel.dtype_name(other) or from_triton(str(other)))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


@dataclasses.dataclass(frozen=True)
class Tensor(TensorSpec):
    """A tensor's type as functions see it, with torch's methods that need no memory."""

    def dim(self) -> int:
        """The rank."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """The bytes of an element."""
        return SIZES[str(self.dtype)]

    def stride(self, dim: int | None = None) -> Any:
        """The elements from one index to the next; tensors are dense and row-major."""
        strides = tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def is_contiguous(self) -> bool:
        """That it is dense and row-major."""
        return True


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a kernel's parameters as functions see them."""
    return {
        name: Tensor(DType(v.dtype), v.shape) if isinstance(v, TensorSpec) else v
        for name, v in values.items()
    }


def is_function(value: Any) -> bool:
    """Whether a user gave a function to be asked: not one that Triton compiles, nor a type."""
    return isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType))


def ask(kernel: str, what: str, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """What a user's function says of a call.

    Args:
      kernel: its name, and
      what: what the function is, for errors.
      function: it gets the values that its parameters are named for; with a single parameter of
        another name, as in Triton's `lambda meta: ...`, all of them as a dict.
      values: of the kernel's parameters.
    """
    parameters = inspect.signature(function).parameters.values()
    wanted = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    meta = shown(values)
    if len(wanted) == 1 and wanted[0] not in values:
        return function(meta)
    return _kernel.call_with(kernel, meta, {}, function, what)
