"""What torch.ops.xla_gpu.* do on CPU and CUDA tensors: calls of the library on their memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import torch

from xla_gpu import _ops
from xla_gpu._errors import InvalidArgumentError, UnimplementedError, XlaGpuError
from xla_gpu._schema import Arg, Op
from xla_gpu.torch import _schema
from xla_gpu.torch._prepared import MAX_PREPARED, Prepared, ensure_context, thread
from xla_gpu.torch._schema import Form, OpCall

Tensors = tuple[torch.Tensor, ...]
Gradients = Callable[[Any, Tensors, Tensors, Tensors], Sequence[torch.Tensor | None]]

_PLATFORMS = {"cpu": "Host", "cuda": "CUDA"}

# By C functions alone: these run for every tensor of every call.
_type_of = attrgetter("shape", "dtype", "device")
_is_contiguous = torch.Tensor.is_contiguous
_data_ptr = torch.Tensor.data_ptr
_INDICES = (torch.int32, torch.int64)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class Kernel:
    """The implementation of one torch op, for calls that bring the same arguments.

    Attributes:
      form: the torch op.
      name: its name, in torch.ops.xla_gpu.
      args: those that come, in the library's order; `names` are theirs.
      results: what such a call has, work space left out.
      pick: gives what the torch op returns of the results: one, several as a tuple, or None.
      written: positions in the tensors of what it changes in place.
      floats: gives the tensors that may be floating, as a tuple.
      varying: beside the first tensor, the one whose shape changes most from call to call.
      gradients: (options, arguments, results, gradients of results) -> gradients of arguments;
        None where the op has none, and `instead_of_gradient` says what to do.
    """

    def __init__(self, form: Form, names: tuple[str, ...]) -> None:
        self.form, self.name, self.names = form, form.name, names
        self.args = [arg for arg in form.args if arg.name in names]
        brought = ("", *form.fixed, *names)
        self.results = [r for r in form.results if r.only_with in brought]
        aliases = [r.alias_of if form.in_place else "" for r in self.results]
        returned = [i for i, alias in enumerate(aliases) if not alias]
        self.pick = itemgetter(*returned) if returned else lambda results: None
        self.written = tuple(names.index(alias) for alias in aliases if alias)
        floats = [
            i for i, a in enumerate(self.args) if not a.dtypes or any("f" in d for d in a.dtypes)
        ] or [0]
        self.floats = itemgetter(*floats, floats[0])  # of one alone it would be no tuple
        self.varying = 0
        self._only_result = len(returned) == 1
        self.gradients: Gradients | None = None
        self.instead_of_gradient = form.op.instead_of_gradient

    def returns(self, pick: Callable[[Sequence[torch.Tensor]], Any]) -> None:
        """Has `pick` choose of all results, work space behind them."""
        self.pick, self._only_result = pick, pick == itemgetter(0)

    def call(self, tensors: Tensors, options: Sequence[Any]) -> OpCall:
        """The library's call; InvalidArgumentError for attributes that cannot be right."""
        self.check_present(tensors)
        op, attrs = self.attributes(tensors, options)
        optional = [arg.name for arg in self.args if arg.optional]
        if optional:
            attrs["optional_args"] = ",".join(optional)
        args = tuple(_vector(a, t) if a.vector else t for a, t in zip(self.args, tensors))
        return OpCall(op, self.names, args, attrs)

    def attributes(
        self, tensors: Tensors, options: Sequence[Any]
    ) -> tuple[Op, dict[str, _ops.AttrValue]]:
        """The library's op and its attributes, of the values that a call gives."""
        return self.form.op, self.form.attributes(options)

    def told(self, call: OpCall) -> dict[str, _ops.TensorSpec]:
        """The types of results that the call's attributes say, by name."""
        return {}

    def dispatch(self, tensors: Tensors, options: Sequence[Any]) -> Any:
        """The call of the torch op, by torch's dispatcher."""
        return self._dispatch(self.form, tensors, options)

    def functional(self, tensors: Tensors, options: Sequence[Any]) -> Sequence[torch.Tensor]:
        """All results, by the call of the torch op that writes nothing in place."""
        forms = (f for f in _schema.FORMS.values() if f.op is self.form.op and not f.in_place)
        form = next(f for f in forms if list(f.results) == self.results)
        results = self._dispatch(form, tensors, options)
        return results if isinstance(results, tuple) else (results,)

    def _dispatch(self, form: Form, tensors: Tensors, options: Sequence[Any]) -> Any:
        named = {attr.name: value for attr, value in zip(self.form.attrs, options)}
        return _schema.torch_op(form)(**dict(zip(self.names, tensors)), **named)

    def __call__(self, tensors: Tensors, options: Any, out: torch.Tensor | None = None) -> Any:
        """Runs the op on CPU or CUDA tensors; gives what the torch op returns.

        `out` takes the first result: contiguous, of its type and device, which is not checked.
        """
        try:
            short_key = (self, options, tensors[0].shape, tensors[self.varying].shape)
            recent = thread.recent.get(short_key)
            if recent is not None and (recent.index < 0 or recent.index == _current_device()):
                if self._only_result and len(recent.makers) == 1:
                    result = recent.makers[0](tensors) if out is None else out
                    if recent.run_objects((*tensors, result)):
                        return result
                else:
                    results = recent.results(tensors, out)
                    if recent.run_objects((*tensors, *results)):
                        return self.pick(results)
            key = (self, options, *map(_type_of, tensors), *map(_is_contiguous, tensors))
        except AttributeError:
            self.check_present(tensors)
            raise
        prepared = thread.prepared.get(key)
        if prepared is not None and prepared.object_call:
            thread.recent[short_key] = prepared
        if prepared is None:
            try:
                return self._first(key, tensors, options, out)
            except XlaGpuError as error:
                raise error.with_traceback(None) from None  # to end here, not in layers below
        if prepared.index >= 0 and prepared.index != _current_device():
            with torch.cuda.device(prepared.index):
                return self._run(prepared, tensors, out)
        return self._run(prepared, tensors, out)

    def _run(self, prepared: Prepared, tensors: Tensors, out: torch.Tensor | None) -> Any:
        results = prepared.results(tensors, out)
        prepared.run(list(map(_data_ptr, (*tensors, *results))))
        return self.pick(results)

    def _first(self, key: Any, tensors: Tensors, options: Any, out: torch.Tensor | None) -> Any:
        """The first call of its types: all checks, with their messages."""
        call = self.call(tensors, options)
        device = _schema.check_devices(call)
        if device.type not in _PLATFORMS:
            raise UnimplementedError(
                f"{call.op.name}: {call.names[0]} is on {device}; allowed are CPU and CUDA tensors"
            )
        specs = _schema.specs_of(call)
        args = tuple(map(self._dense, self.args, call.args))
        platform = _PLATFORMS[device.type]
        results = _ops.infer(call.op.id, platform, specs, call.attrs)
        prepared = Prepared(call, specs, results, device, platform, self.form.in_place)
        if not self.varying:  # tables of indices grow with the batch and its contexts
            sizes = [(t.dtype in _INDICES, t.ndim, t.numel()) for t in args]
            self.varying = sizes.index(max(sizes))
        as_given = all(a.data_ptr() == t.data_ptr() for a, t in zip(args, tensors))
        if as_given:
            if len(thread.prepared) >= MAX_PREPARED:
                thread.prepared.clear()
                thread.recent.clear()
            thread.prepared[key] = prepared
        if platform == "Host":
            return self._run(prepared, args, out)
        with torch.cuda.device(device):
            ensure_context(prepared.index)
            return self._run(prepared, args, out)

    def check_present(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """A required tensor may come as None, which torch lets pass: InvalidArgumentError."""
        for name, tensor in zip(self.names, tensors):
            if tensor is None:
                message = f"{self.name}: {name} is None; it must be a tensor"
                raise InvalidArgumentError(message) from None

    def check_written(self, tensors: Tensors) -> None:
        """For devices whose tensors are values: one that is written twice keeps the last only."""
        seen: dict[int, str] = {}
        for i in self.written:
            before = seen.setdefault(id(tensors[i]), self.names[i])
            if before != self.names[i]:
                raise InvalidArgumentError(
                    f"{self.name}: {before} and {self.names[i]} are one tensor; each is written, "
                    "and must be a tensor of its own"
                )

    def _dense(self, arg: Arg, tensor: torch.Tensor) -> torch.Tensor:
        """The argument dense and row-major; an error where that may not take a copy."""
        what = f"{self.form.op.name}: {arg.name}"
        if tensor.layout != torch.strided:
            raise InvalidArgumentError(
                f"{what} is {tensor.layout}; it must be dense (torch.strided)"
            )
        written = self.names.index(arg.name) in self.written
        if (arg.no_copy or written) and not tensor.is_contiguous():
            kind = "a cache" if arg.no_copy else "what is written in place"
            raise InvalidArgumentError(
                f"{what} {_schema.describe(tensor)} has strides {tuple(tensor.stride())}; {kind} "
                "must be contiguous, since a call does not copy it (call .contiguous() once, when "
                "it is made)"
            )
        return tensor.contiguous()


def _vector(arg: Arg, tensor: torch.Tensor) -> torch.Tensor:
    """Of rank 1, f32 of any floats: frameworks keep scales as 0-d tensors of what they like."""
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    convert = tensor.dtype.is_floating_point and "f32" in arg.dtypes
    return tensor.to(torch.float32) if convert else tensor


# ---- The ops' arguments ----------------------------------------------------------------------

# What takes the arguments of a torch op: (kernel, the tensors that came, the values of the
# form's attributes).
Inputs = tuple[Kernel, Tensors, tuple[Any, ...]]


@functools.cache
def kernel(form: Form, names: tuple[str, ...]) -> Kernel:
    """The kernel for calls that bring these optional arguments."""
    for name in form.required:
        if name not in names and any(a.name == name and a.optional for a in form.args):
            raise InvalidArgumentError(f"{form.name}: {name} is None; it must be a tensor")
    return Kernel(form, tuple(a.name for a in form.args if not a.optional or a.name in names))


def define(form: Form, body: str, **names: Any) -> Callable[..., Any]:
    """A function with the form's signature, as dataclasses make theirs: nothing is quicker."""
    source = f"def {form.name}({form.signature}):\n    {body}\n"
    exec(compile(source, f"<xla_gpu.torch {form.name}>", "exec"), names)
    function: Callable[..., Any] = names[form.name]
    return function


def _inputs(form: Form) -> Callable[..., Inputs]:
    always = [a.name for a in form.args if a.name in form.required]
    brings = [a.name for a in form.args if a.optional]

    def some(tensors: Tensors, optional: Sequence[Any], options: tuple[Any, ...]) -> Inputs:
        given = tuple([name for name, t in zip(brings, optional) if t is not None])
        run = kernel(form, given)
        return run, (*tensors, *[t for t in optional if t is not None]), options

    def written(names: Sequence[str]) -> str:
        return f"({''.join(f'{name}, ' for name in names)})"

    options = written([a.name for a in form.attrs])
    body = f"return plain, {written(always)}, {options}"
    if form.optional:
        none = " is None and ".join(form.optional) + " is None"
        others = written([a.name for a in form.args if not a.optional])
        body = f"if {none}: {body}\n    return some({others}, {written(brings)}, {options})"
    return define(
        form, body, plain=kernel(form, tuple(n for n in brings if n in always)), some=some
    )


INPUTS = {name: _inputs(form) for name, form in _schema.FORMS.items()}


@dataclasses.dataclass(frozen=True)
class TorchOp:
    """What an op in torch.ops.xla_gpu is.

    Attributes:
      torch_schema: as torch.library.define takes it.
      inputs: binds the arguments of a call.
      in_place: whether it writes into arguments.
      vmap: the rule for torch.library.register_vmap; None for torch's own way.
    """

    torch_schema: str
    inputs: Callable[..., Inputs]
    in_place: bool = False
    vmap: Callable[..., Any] | None = None
