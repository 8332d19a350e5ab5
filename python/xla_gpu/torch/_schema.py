"""The schemas of torch.ops.xla_gpu.*, derived from those of the library's ops.

A torch op returns a fixed number of results, so an op of the library becomes several: its `forms`.
A call of one becomes an `OpCall`: the library's op, its arguments in order, its attributes. Every
backend (CPU, CUDA, fake, XLA, JAX under torchax) goes this way, so that all accept the same calls
and refuse the others with the same words.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from xla_gpu import _ops, _schema
from xla_gpu._errors import InvalidArgumentError

NAMESPACE = "xla_gpu"

# torch's dtypes -> the library's names.
DTYPES = {
    getattr(torch, torchs): ours
    for ours, torchs in _ops.NUMPY_NAMES.items()
    if hasattr(torch, torchs)
}
TORCH_DTYPES = {ours: torchs for torchs, ours in DTYPES.items()}

_ATTR_TYPES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "string": "str",
    "dtype": "ScalarType",
}


@dataclasses.dataclass(frozen=True)
class OpCall:
    """One call of an op of the library.

    Attributes:
      op: the library's.
      names: of the arguments, in the order of `args`.
      args: the tensors, absent optional ones left out.
      attrs: every attribute by name, `optional_args` among them where optional arguments came.
    """

    op: _schema.Op
    names: tuple[str, ...]
    args: tuple[torch.Tensor, ...]
    attrs: dict[str, _ops.AttrValue]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One of a torch op's: torch's type, and the default as torch and Python write it or None."""

    name: str
    type: str
    default: str | None = None

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default}"


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """A torch op: an op of the library with one set of results.

    In place and functional forms have names of their own, since an overload that does not match
    costs an exception a call.

    Attributes:
      name: the torch op's, "update_kv_cache_pair".
      op: the library's.
      results: what its calls have, in order; in place, what an optional argument brings as well.
      in_place: whether results that share an argument's memory are written there, not returned.
    """

    name: str
    op: _schema.Op
    results: tuple[_schema.Result, ...]
    in_place: bool = False

    @functools.cached_property
    def args(self) -> tuple[_schema.Arg, ...]:
        """The arguments that a call may have, in the library's order."""
        others = {r.only_with for r in self.op.results if r not in self.results}
        return tuple(arg for arg in self.op.args if arg.name not in others)

    @functools.cached_property
    def required(self) -> tuple[str, ...]:
        """The arguments that every call has, in the signature's order.

        One that a result asks for stands behind the argument that the result before it is.
        """
        names = [arg.name for arg in self.args if not arg.optional]
        optional = {arg.name for arg in self.args if arg.optional}
        for before, result in zip(("", *(r.alias_of for r in self.results)), self.results):
            if result.only_with in optional and not self.in_place:
                at = names.index(before) + 1 if before in names else len(names)
                names.insert(at, result.only_with)
        return tuple(names)

    @functools.cached_property
    def optional(self) -> tuple[str, ...]:
        """The other arguments."""
        return tuple(arg.name for arg in self.args if arg.name not in self.required)

    @functools.cached_property
    def attrs(self) -> tuple[_schema.Attr, ...]:
        """The attributes that a call gives."""
        switches = {r.only_with for r in self.op.results}
        return tuple(a for a in self.op.attrs if a.name not in switches and not a.derived)

    @functools.cached_property
    def fixed(self) -> dict[str, bool]:
        """The attributes that bring the form's results."""
        switches = {r.only_with for r in self.results}
        return {attr.name: True for attr in self.op.attrs if attr.name in switches}

    @functools.cached_property
    def parameters(self) -> tuple[list[Parameter], list[Parameter]]:
        """What a call may give: by position or name, and by name only."""
        written = [r.alias_of for r in self.results if r.alias_of and self.in_place]
        types = {name: f"Tensor({chr(ord('a') + i)}!)" for i, name in enumerate(written)}
        required = [Parameter(name, types.get(name, "Tensor")) for name in self.required]
        optional = [
            Parameter(name, types.get(name, "Tensor") + "?", "None") for name in self.optional
        ]
        for attr in self.attrs:
            (optional if attr.keyword_only else required).append(_parameter(attr))
        return required, optional

    @functools.cached_property
    def signature(self) -> str:
        """The parameters as Python writes them: "a, b, *, c=None"."""
        return self._joined(str)

    @functools.cached_property
    def torch_schema(self) -> str:
        """As torch.library.define takes it."""
        returned = ["Tensor" for r in self.results if not (self.in_place and r.alias_of)]
        returns = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
        return f"{self.name}({self._joined(lambda p: f'{p.type} {p}')}) -> {returns}"

    def _joined(self, text: Callable[[Parameter], str]) -> str:
        positional, named = (list(map(text, each)) for each in self.parameters)
        return ", ".join(positional + ["*"] * bool(named) + named)

    def attributes(self, options: Sequence[Any]) -> dict[str, _ops.AttrValue]:
        """The library's attributes, of the values of `attrs`."""
        values = {
            attr.name: _schema.attribute(self.op.name, attr, value, dtype_name)
            for attr, value in zip(self.attrs, options, strict=True)
        }
        return {name: value for name, value in values.items() if value is not None} | self.fixed


def _parameter(attr: _schema.Attr) -> Parameter:
    if attr.none_is_default:
        return Parameter(attr.name, _ATTR_TYPES[attr.type] + "?", "None")
    default = json.dumps(attr.default) if isinstance(attr.default, str) else repr(attr.default)
    return Parameter(attr.name, _ATTR_TYPES[attr.type], None if attr.default is None else default)


def _forms(op: _schema.Op) -> Iterator[Form]:
    """One for the results of every call, one for each more, and one in place."""
    results = [r for r in op.results if r.kind != "scratch"]
    yield Form(op.name, op, tuple(r for r in results if not r.only_with))
    for more in results:
        if more.only_with:
            its = tuple(r for r in results if r.only_with in ("", more.only_with))
            yield Form(f"{op.name}_{more.form}", op, its)
    if any(r.alias_of for r in results):
        its = tuple(r for r in results if r.alias_of or not r.only_with)
        yield Form(f"{op.name}_", op, its, in_place=True)


# Name -> torch op.
FORMS = {form.name: form for op in _schema.schemas().values() for form in _forms(op)}


def torch_op(form: Form) -> Any:
    """The op in torch.ops, once it is registered."""
    return getattr(getattr(torch.ops, NAMESPACE), form.name).default


def describe(tensor: torch.Tensor) -> str:
    """The type of a tensor as messages write it: "bf16[8,32,128]"."""
    dtype = DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{dtype}[{','.join(map(str, tensor.shape))}]"


def dtype_name(value: Any) -> str | None:
    """The library's name of a torch.dtype, None of anything else."""
    return DTYPES.get(value) if isinstance(value, torch.dtype) else None


def spec_of(op: str, name: str, tensor: torch.Tensor) -> _ops.TensorSpec:
    """The library's type of a tensor; InvalidArgumentError for a dtype that it does not know."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidArgumentError(
            f"{op}: {name} is {describe(tensor)}; {tensor.dtype} has no counterpart in XLA"
        )
    return _ops.TensorSpec(dtype, tuple(tensor.shape))


def check_devices(call: OpCall) -> torch.device:
    """The device that all arguments are on; else an error that names one that is not."""
    device = call.args[0].device
    for name, tensor in zip(call.names, call.args, strict=True):
        if tensor.device != device:
            raise InvalidArgumentError(
                f"{call.op.name}: {name} {describe(tensor)} is on {tensor.device} but "
                f"{call.names[0]} is on {device}; all arguments must be on one device"
            )
    return device


def specs_of(call: OpCall) -> list[_ops.TensorSpec]:
    """The types of a call's arguments."""
    return [spec_of(call.op.name, n, t) for n, t in zip(call.names, call.args, strict=True)]
