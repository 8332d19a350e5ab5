"""A Triton function as machine code, with all that a launch of it needs; no GPU is asked.

Of Triton (3.2 to 3.9 were tried) this uses triton.compile, ASTSource, GPUTarget, the parameters of
a JITFunction and the metadata of what was compiled. Its binder, its launcher and its driver, which
change from release to release, are not used: the cubin's own list of parameters, compared with what
is believed here, says whether a release is another.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

from xla_gpu._errors import InvalidArgumentError, StatusCode, UnimplementedError, XlaGpuError
from xla_gpu._ops import TensorSpec
from xla_gpu._triton._cubin import kernel_info
from xla_gpu._triton._meta import SIZES, TRITON_NAMES, from_triton

OLDEST = (3, 2)
MAX_SCRATCH_ALIGNMENT = 256  # XLA's buffers'


@dataclasses.dataclass(frozen=True)
class Pointer:
    """A parameter that is a tensor's address; `aligned`: to 16 bytes at every call."""

    dtype: str
    aligned: bool


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A parameter that is a number; `divisible`: by 16 at every call."""

    type: str
    divisible: bool


@dataclasses.dataclass(frozen=True)
class Constant:
    """A parameter that the machine code is compiled for, and does not have."""

    value: Any

    @property
    def key(self) -> Any:
        """Equal for what Triton compiles alike: 1, True and 1.0 are not."""
        kind = type(self.value)
        try:
            hash(self.value)
        except TypeError:
            return kind, repr(self.value)
        return kind, repr(self.value) if isinstance(self.value, float) else self.value


Parameter = Pointer | Scalar | Constant


@dataclasses.dataclass(frozen=True)
class Image:
    """Machine code of one kernel.

    Attributes:
      cubin: the file.
      entry: the kernel's name in it.
      arch: what it runs on, e.g. "sm_90a".
      trailing: the names of pointers that it takes after the declared parameters.
      threads: a block's.
      cluster: blocks of a cluster in x, y, z; the grid counts blocks, Triton's counts clusters.
      shared_memory: dynamic, in bytes a block.
      scratch_bytes: global memory that each block needs.
      cooperative, programmatic: how it wants to be launched.
    """

    cubin: bytes
    entry: str
    arch: str
    trailing: tuple[str, ...]
    threads: int
    cluster: tuple[int, int, int]
    shared_memory: int
    scratch_bytes: int
    cooperative: bool
    programmatic: bool


@functools.cache
def version() -> tuple[int, int]:
    """(3, 5) of Triton 3.5.1; XlaGpuError where it is missing or too old."""
    try:
        import triton
    except ImportError as e:
        raise XlaGpuError(
            f"Triton is not installed ({e}); pip install triton", StatusCode.FAILED_PRECONDITION
        ) from e
    found = re.match(r"(\d+)\.(\d+)", triton.__version__)
    number = (int(found[1]), int(found[2])) if found else OLDEST
    if number < OLDEST:
        raise XlaGpuError(
            f"Triton {triton.__version__} is too old; 3.2 and newer are supported",
            StatusCode.FAILED_PRECONDITION,
        )
    return number


def capability(name: str, arch: str | int) -> int:
    """90 of "sm_90", "sm_90a" or 90."""
    found = re.fullmatch(r"(?:sm_)?(\d{2,3})[af]?", str(arch))
    if found is None:
        raise InvalidArgumentError(f"{name}: arch is {arch!r}; it must be as 'sm_90'")
    return int(found[1])


def specialize(name: str, param: Any, value: Any, aligned: bool) -> Parameter:
    """What Triton makes of a parameter (a KernelParam) that is given `value`.

    Args:
      name: of the kernel, for errors.
      param: the parameter.
      value: a TensorSpec, a bool, an int, a float or None; anything for a constexpr.
      aligned: of a tensor, whether its address is a multiple of 16 at every call.
    """
    if param.is_constexpr or value is None:
        return Constant(value)
    declared = str(getattr(param, "annotation_type", "") or "")
    whole = bool(param.do_not_specialize)
    whole_alignment = whole or bool(getattr(param, "do_not_specialize_on_alignment", False))
    what = f"{name}: {param.name}"
    if isinstance(value, TensorSpec):
        dtype = declared.lstrip("*").removeprefix("k")
        if declared and not declared.startswith("*"):
            raise InvalidArgumentError(f"{what} is {value}; it is declared as a scalar, {declared}")
        if declared and from_triton(dtype) != value.dtype:
            raise InvalidArgumentError(f"{what} is {value}; it is declared as {declared}")
        return Pointer(value.dtype, aligned and not whole_alignment)
    if declared.startswith("*"):
        raise InvalidArgumentError(
            f"{what} is {value!r}; it is declared as a pointer, {declared}: give it an array"
        )
    if isinstance(value, bool):
        kind = declared or "u1"
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidArgumentError(f"{what} is {value}; it must fit 64 bits with a sign")
        if value == 1 and not whole and not declared:
            return Constant(1)
        kind = declared or ("i32" if -(2**31) <= value < 2**31 else "i64")
    elif isinstance(value, float):
        kind = declared or "fp32"
    else:
        raise InvalidArgumentError(
            f"{what} is {_came(value)}; allowed are arrays, numbers and None"
            + ("" if not isinstance(value, str) else "; declare it tl.constexpr to give it a text")
        )
    kind = from_triton(kind)
    if kind not in SIZES or kind.startswith("f8"):
        raise UnimplementedError(f"{what} is declared as {declared}, which no scalar can be here")
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return Scalar(kind, is_int and value % 16 == 0 and not whole_alignment)


def _came(value: Any) -> str:
    if hasattr(value, "block_shape"):
        return (
            "a tensor descriptor made on the host, which has to hold an address that XLA tells at "
            "the launch only; make it in the kernel (tl.make_tensor_descriptor)"
        )
    return f"{type(value).__name__} {value!r}"[:100]


def check_options(name: str, options: Mapping[str, Any], arch: int) -> None:
    """InvalidArgumentError for options that Triton does not know, or num_warps that cannot be."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    try:
        known = make_backend(GPUTarget("cuda", arch, 32)).parse_options({}).__dict__
    except Exception as e:
        raise InvalidArgumentError(f"{name}: Triton has nothing for sm_{arch}: {e}") from e
    for option, value in options.items():
        if option not in known:
            raise InvalidArgumentError(
                f"{name}: '{option}' is neither a parameter of the kernel nor an option of this "
                f"Triton ({', '.join(sorted(known))})"
            )
        if option == "num_warps" and value not in (1, 2, 4, 8, 16, 32):
            raise InvalidArgumentError(
                f"{name}: num_warps is {value!r}; allowed are 1, 2, 4, 8, 16 and 32"
            )
        counts = option in ("num_stages", "num_ctas")
        if counts and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InvalidArgumentError(
                f"{name}: {option} is {value!r}; it must be an int of 1 or more"
            )
        if option == "num_ctas" and value > 1 and arch < 90:  # Triton 3.3 and 3.4 would abort
            raise InvalidArgumentError(
                f"{name}: num_ctas is {value}, which needs sm_90 or newer; it is for sm_{arch}"
            )


def _source(fn: Any, parameters: Mapping[str, Parameter]) -> Any:
    """The ASTSource of a JITFunction."""
    from triton.compiler import ASTSource

    signature, constants, divisible = {}, {}, []
    for i, param in enumerate(fn.params):
        given = parameters[param.name]
        if isinstance(given, Constant):
            signature[param.name] = "constexpr"
            constants[param.name] = given.value
            continue
        pointer = isinstance(given, Pointer)
        dtype = given.dtype if isinstance(given, Pointer) else given.type
        prefix = ("*k" if param.is_const else "*") if pointer else ""
        theirs = "i1" if dtype == "pred" and version() < (3, 4) else TRITON_NAMES.get(dtype, dtype)
        signature[param.name] = prefix + theirs
        if given.aligned if isinstance(given, Pointer) else given.divisible:
            divisible.append(i)
    if version() >= (3, 3):
        attributes = {(i,): [["tt.divisibility", 16]] for i in divisible}
        return ASTSource(fn, signature, constants, attributes)
    # 3.2: attributes are an object, and constants are not in the signature.
    from triton.backends.compiler import AttrsDescriptor

    described = AttrsDescriptor()
    described.arg_properties = {"tt.divisibility": divisible, "tt.equal_to": []}
    signature = {name: kind for name, kind in signature.items() if kind != "constexpr"}
    return ASTSource(fn, signature, constants, described)


def compile_image(
    name: str,
    fn: Any,
    parameters: Mapping[str, Parameter],
    options: Mapping[str, Any],
    arch: int,
) -> Image:
    """Compiles a function, or takes it from Triton's cache.

    Args:
      name: of the kernel, for errors.
      fn: the JITFunction.
      parameters: what each of its parameters is.
      options: Triton's (num_warps, ...).
      arch: the compute capability: 90.

    Raises:
      InvalidArgumentError: where Triton cannot compile it, with Triton's message.
      UnimplementedError: where it takes or needs what is not offered here.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    debug = bool(getattr(fn, "debug", False)) or os.environ.get("TRITON_DEBUG") == "1"
    target = GPUTarget("cuda", arch, 32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = triton.compile(
                _source(fn, parameters), target=target, options={"debug": debug, **options}
            )
    except Exception as e:  # Triton's, the kernel's own static_assert, ptxas's
        why = f": {e.__cause__}" if e.__cause__ is not None else ""
        raise InvalidArgumentError(
            f"{name}: Triton {triton.__version__} cannot compile it for sm_{arch}: "
            f"{type(e).__name__}: {e}{why}"
        ) from e
    said = made.metadata
    cluster = tuple(getattr(said, "cluster_dims", ()) or (getattr(said, "num_ctas", 1), 1, 1))
    since = {"global_scratch": (3, 3), "profile_scratch": (3, 5)}
    trailing = tuple(name for name, first in since.items() if version() >= first)
    cubin = made.asm["cubin"]
    found = kernel_info(cubin, said.name)
    sizes = [
        8 if isinstance(p, Pointer) else SIZES[p.type]
        for p in (parameters[param.name] for param in fn.params)
        if not isinstance(p, Constant)
    ] + [8] * len(trailing)
    if found.parameters != tuple(sizes):
        raise UnimplementedError(
            f"{name}: the machine code of Triton {triton.__version__} takes parameters of "
            f"{list(found.parameters)} bytes, not of {sizes}; is this release supported?"
        )
    if getattr(said, "profile_scratch_size", 0):
        raise UnimplementedError(f"{name}: it is instrumented (Proton), which is not offered here")
    alignment = getattr(said, "global_scratch_align", 1)
    if alignment > MAX_SCRATCH_ALIGNMENT:
        raise UnimplementedError(
            f"{name}: it needs global scratch aligned to {alignment} bytes; "
            f"{MAX_SCRATCH_ALIGNMENT} is the most"
        )
    return Image(
        cubin=cubin,
        entry=said.name,
        arch=f"sm_{arch}" + ("a" if arch >= 90 else ""),
        trailing=trailing,
        threads=found.threads or 32 * said.num_warps,  # warp specialisation adds warps
        cluster=(cluster[0], cluster[1], cluster[2]),
        shared_memory=said.shared,
        scratch_bytes=getattr(said, "global_scratch_size", 0) or 0,
        cooperative=bool(getattr(said, "launch_cooperative_grid", False)),
        programmatic=bool(getattr(said, "launch_pdl", False)),
    )
