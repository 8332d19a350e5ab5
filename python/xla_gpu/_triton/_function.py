"""A Triton function as kernels of this library: a definition for each combination of types.

A variant is what Triton compiles once: dtypes, constants, and which numbers are divisible by 16. It
becomes a definition (src/ops/user_kernel/definition.h) with the machine code in it; the numbers are
attributes of its calls.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from xla_gpu import _kernel, _kernels, _ops
from xla_gpu._errors import InvalidArgumentError
from xla_gpu._ops import AttrValue, TensorSpec
from xla_gpu._triton import _compile, _device
from xla_gpu._triton._compile import Constant, Image, Pointer, Scalar
from xla_gpu._triton._decorators import Configuration, Decorated
from xla_gpu._triton._images import image_of
from xla_gpu._triton._meta import ask, is_function

# What is compiled for where there is no GPU, and the Host implementation runs.
HOST_ARCH = 90
# Calls have 32 attributes at most, a third of which the library needs.
MAX_SCALARS = 16
# Names that calls use for something else; a parameter of such a name gets a longer one.
RESERVED = {"kernel", "definition", "optional_args", "grid", "block", "shared_memory"}
RESERVED |= {"workspace_bytes", "result_types", "workspace", "stream"}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A call as the library takes it.

    Attributes:
      definition: the kernel's, the content of a JSON text.
      arguments: the types of its arguments, by name, in order.
      results: the types of its results, in order: outputs, then what is updated in place.
      attributes: the call's: scalars, grid, block, ...
    """

    definition: dict[str, Any]
    arguments: dict[str, TensorSpec]
    results: dict[str, TensorSpec]
    attributes: dict[str, AttrValue]


class TritonFunction:
    """A @triton.jit function and what its user said of it (xla_gpu.triton_kernel).

    Attributes:
      name: the custom calls' target.
      members: what definitions of all variants have: name, doc, capture, a Host implementation.
      params: Triton's parameters by name.
      inputs: the names of those that calls give, in order.
      called: what the definition names each parameter.
    """

    def __init__(
        self,
        kernel: Any,
        *,
        grid: Any,
        outputs: Mapping[str, Any],
        in_place: Iterable[str],
        constexprs: Any,
        scalars: Mapping[str, Any],
        options: Mapping[str, Any],
        members: Mapping[str, Any],
        arch: str | int | None,
    ) -> None:
        _compile.version()
        self.name = str(members["name"])
        self._decorated = Decorated(self.name, kernel)
        self._fn = self._decorated.fn
        self.params: dict[str, Any] = {param.name: param for param in self._fn.params}
        self.outputs = dict(outputs)
        self.in_place = (in_place,) if isinstance(in_place, str) else tuple(in_place)
        self.decided: dict[str, str] = self._decorated.decided
        self.inputs = [name for name in self.params if name not in self.outputs]
        self.scalars = dict(scalars)
        self._grid, self._constexprs, self.members = grid, constexprs or {}, dict(members)
        self._options = {n: v for n, v in options.items() if v is not None}
        self._arch = None if arch is None else _compile.capability(self.name, arch)
        self.called = {n: f"{n}_" if n in RESERVED else n for n in self.params}
        self._images: dict[Any, tuple[Image, str]] = {}
        self._choices: dict[Any, int] = {}
        self._check()

    def error(self, message: str) -> InvalidArgumentError:
        """An error that begins with the kernel's name."""
        return InvalidArgumentError(f"{self.name}: {message}")

    def _check(self) -> None:
        """Errors that need no call."""
        self._check_names("outputs", self.outputs, constant=False)
        self._check_names("in_place", self.in_place, constant=False)
        self._check_names("scalars", self.scalars, constant=False)
        for what, names in (("in_place", self.in_place), ("scalars", self.scalars)):
            both = [name for name in names if name in self.outputs]
            if both:
                raise self.error(f"{', '.join(both)} is in outputs and in {what}")
        if not self.outputs and not self.in_place:
            raise self.error("it has neither outputs nor in_place; a kernel writes something")
        if isinstance(self._constexprs, Mapping):
            self._check_names("constexprs", self._constexprs, constant=True)
        elif not is_function(self._constexprs):
            raise self.error(
                f"constexprs is {self._constexprs!r}; it must be a dict, or a function of "
                "arguments that gives one"
            )
        twice = sorted(self._options.keys() & self._decorated.decided.keys())
        if twice:
            raise self.error(f"{', '.join(twice)} is given, and chosen by @triton.autotune")
        _compile.check_options(self.name, self._options, self._arch or 90)
        if not is_function(self._grid):
            _kernel._dims(self.name, "grid", self._grid)

    def _check_names(self, what: str, names: Iterable[str], constant: bool) -> None:
        """That they are parameters of the kind that may be said there."""
        allowed = [n for n, p in self.params.items() if bool(p.is_constexpr) == constant]
        for name in names:
            if name not in allowed:
                kind = "no tl.constexpr" if constant else "a tl.constexpr"
                kind = f"{kind} of it" if name in self.params else "no parameter of it"
                raise self.error(f"{what} has {name!r}, {kind}; allowed are {', '.join(allowed)}")
            if name in self._decorated.decided:
                raise self.error(f"{what} has {name}, which {self._decorated.decided[name]} says")

    # ---- A call ------------------------------------------------------------------------------

    def resolve(self, values: Mapping[str, Any], unaligned: frozenset[str]) -> Variant:
        """Compiles the function for a call, or finds that it did.

        Args:
          values: by parameter: a TensorSpec for a tensor, a number, None, or a constant.
          unaligned: the tensors whose addresses need not be multiples of 16.

        Raises:
          InvalidArgumentError: for a call that cannot be, or does not compile.
          UnimplementedError: for what Triton offers and this does not.
        """
        given = self._complete(values)
        runs_on_host = self._arch is None and self._has_host and _device.find() is None
        arch = self._arch or (HOST_ARCH if runs_on_host else self._device_arch)
        self._decorated.check_globals()
        configurations = self._decorated.configurations(given, self._options)
        chosen = 0
        if len(configurations) > 1 and not runs_on_host:
            chosen = self._choose(configurations, arch, unaligned)
        return self._variant(configurations[chosen], arch, unaligned)

    @property
    def _has_host(self) -> bool:
        return "Host" in self.members.get("implementations", {})

    @property
    def _device_arch(self) -> int:
        device = _device.find()
        if device is None:
            raise self.error(
                "there is no NVIDIA GPU here to compile it for; say which one: arch='sm_90'"
            )
        return device.arch

    def _complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """With scalars, defaults, constants and outputs that the call does not give."""
        given = dict(values)
        for name, value in self.scalars.items():
            if name not in given:
                given[name] = self._asked(f"scalars[{name!r}]", value, given)
        for name in self.inputs:
            if name not in given and self.params[name].has_default:
                given[name] = self.params[name].default
        for name in self.in_place:
            if name in given and not isinstance(given[name], TensorSpec):
                raise self.error(f"{name} is {given[name]!r}; in_place names it, so it is an array")
        specs = {name: v for name, v in given.items() if isinstance(v, TensorSpec)}
        for name, form in self.outputs.items():
            said = self._asked(f"outputs[{name!r}]", form, given)
            given[name] = _kernel.output_spec(self.name, name, said, specs)
        constants = self._asked("constexprs", self._constexprs, given)
        if not isinstance(constants, Mapping):
            raise self.error(f"constexprs gave {constants!r}; it must give a dict")
        self._check_names("constexprs", constants, constant=True)
        for name, value in constants.items():
            if name not in values:
                given[name] = self._asked(f"constexprs[{name!r}]", value, given)
        return given

    def _asked(self, what: str, value: Any, given: Mapping[str, Any]) -> Any:
        return ask(self.name, what, value, given) if is_function(value) else value

    def _choose(
        self, configurations: list[Configuration], arch: int, unaligned: frozenset[str]
    ) -> int:
        """The quickest configuration's index, by Triton's key: some values, and all dtypes."""
        from xla_gpu._triton import _autotune  # no other call needs what it imports

        tuner = self._decorated.tuner
        values = configurations[0].values
        key = (
            f"sm_{arch}",
            tuple(sorted(unaligned)),
            tuple(f"{name}={values.get(name)}" for name in tuner.keys),
            tuple(v.dtype for v in values.values() if isinstance(v, TensorSpec)),
            tuple(one.text for one in configurations),
        )
        if key not in self._choices:
            self._choices[key] = _autotune.choose(
                _autotune.Problem(
                    kernel=self.name,
                    source=str(self._fn.cache_key),
                    key=key,
                    texts=key[-1],
                    variant=lambda i: self._variant(configurations[i], arch, unaligned),
                    reset=tuple(tuner.reset_to_zero or ()),
                    restore=tuple(tuner.restore_value or ()),
                )
            )
        return self._choices[key]

    # ---- A variant ---------------------------------------------------------------------------

    def _variant(self, one: Configuration, arch: int, unaligned: frozenset[str]) -> Variant:
        missing = [name for name in self.params if name not in one.values]
        if missing:
            remedy = (
                "constexprs or the call" if self.params[missing[0]].is_constexpr else "the call"
            )
            raise self.error(f"{', '.join(missing)} is missing; say it in {remedy}")
        parameters = {
            name: _compile.specialize(self.name, param, one.values[name], name not in unaligned)
            for name, param in self.params.items()
        }
        key = (
            arch,
            repr(sorted(one.options.items())),
            tuple(p.key if isinstance(p, Constant) else p for p in parameters.values()),
        )
        if key not in self._images:
            _compile.check_options(self.name, one.options, arch)
            image = image_of(self.name, self._fn, parameters, one.options, arch)
            self._images[key] = image, base64.b64encode(image.cubin).decode()
        image, encoded = self._images[key]
        grid = _kernel._dims(self.name, "grid", self._asked("grid", self._grid, one.values))
        blocks = tuple(n * clusters for n, clusters in zip(grid, image.cluster))
        attributes: dict[str, AttrValue] = {
            self.called[name]: one.values[name] for name in self.attributes(one.values)
        }
        attributes |= {"grid": blocks, "block": (image.threads, 1, 1)}
        made = [one.values[name] for name in self.outputs]
        if made:
            types = [(_ops.DTYPES[spec.dtype], len(spec.shape), *spec.shape) for spec in made]
            attributes["result_types"] = tuple(itertools.chain.from_iterable(types))
        if image.shared_memory:
            attributes["shared_memory"] = image.shared_memory
        if image.scratch_bytes:
            attributes["workspace_bytes"] = image.scratch_bytes * math.prod(blocks)
        tensors = {self.called[n]: v for n, v in one.values.items() if isinstance(v, TensorSpec)}
        definition = self._definition(one.values, parameters, image, encoded)
        arguments, results = (
            {each["name"]: tensors[each["name"]] for each in definition[kind]}
            for kind in ("arguments", "results")
        )
        return Variant(definition, arguments, results, attributes)

    def attributes(self, values: Mapping[str, Any]) -> list[str]:
        """The numbers of a call that are its attributes; the others are constants of the kernel.

        Calls have room for so many. Floats go first: not each of them can be written as JSON.
        """
        found = [
            name
            for name, param in self.params.items()
            if not param.is_constexpr and isinstance(values.get(name), bool | int | float)
        ]
        return sorted(found, key=lambda name: not isinstance(values[name], float))[:MAX_SCALARS]

    def _definition(
        self,
        values: Mapping[str, Any],
        parameters: Mapping[str, _compile.Parameter],
        image: Image,
        encoded: str,
    ) -> dict[str, Any]:
        called, attributes = self.called, self.attributes(values)
        takes: list[Any] = []
        for name, parameter in parameters.items():
            if isinstance(parameter, Scalar) and name not in attributes:
                takes.append({"value": values[name], "type": parameter.type})
            elif not isinstance(parameter, Constant):
                takes.append(called[name])
        needs_scratch = image.scratch_bytes > 0
        for name in image.trailing:
            takes.append("workspace" if name == "global_scratch" and needs_scratch else None)
        aligned = [n for n, p in parameters.items() if isinstance(p, Pointer) and p.aligned]
        cuda: dict[str, Any] = {
            "kind": "cuda_image",
            "image": encoded,
            "entry": image.entry,
            "arch": image.arch,
            "parameters": takes,
            "aligned": [called[name] for name in aligned],
            "cluster": list(image.cluster),
            "cooperative": image.cooperative,
            "programmatic": image.programmatic,
        }
        arguments = [n for n in self.inputs if isinstance(parameters[n], Pointer)]
        types = {n: p.type for n, p in parameters.items() if isinstance(p, Scalar)}
        host = self.members.get("implementations", {})
        specs = {called[n]: values[n] for n in arguments}
        scalars = {called[n]: values[n] for n in attributes}
        return {
            **self.members,
            "doc": f"{self.members['doc']}\n\n{_told(parameters, image)}".strip(),
            "arguments": [{"name": called[n], "dtypes": [values[n].dtype]} for n in arguments],
            "results": [
                *({"name": called[n]} for n in self.outputs),
                *({"name": called[n], "alias_of": called[n]} for n in self.in_place),
            ],
            "scalars": [
                {
                    "name": called[n],
                    "type": types.get(n, "i32"),  # of a 1, which the code is compiled for
                    "derived": is_function(self.scalars.get(n)),
                }
                for n in attributes
            ],
            "workspace": needs_scratch,
            "implementations": {
                **_kernels.instances(self.name, host, specs, scalars),
                "CUDA": cuda,
            },
        }


def _told(parameters: Mapping[str, _compile.Parameter], image: Image) -> str:
    """What this variant is, which also keeps variants of the same machine code apart."""
    import triton

    told = []
    for name, p in parameters.items():
        if isinstance(p, Constant):
            told.append(f"{name} = {p.value!r}")
        elif isinstance(p, Pointer):
            told.append(f"{name}: *{p.dtype}" + ("" if p.aligned else ", unaligned"))
        else:
            told.append(f"{name}: {p.type}" + (", divisible by 16" if p.divisible else ""))
    return f"Compiled by Triton {triton.__version__} for {image.arch}: {'; '.join(told)}."
