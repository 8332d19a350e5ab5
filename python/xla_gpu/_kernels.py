"""`xla_gpu.cuda_kernel`, `host_kernel` and their siblings: kernels from what the user has."""

from __future__ import annotations

import base64
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_gpu import _kernel
from xla_gpu._errors import InvalidArgumentError, NotFoundError
from xla_gpu._kernel import Kernel

Source = str | os.PathLike[str]


def _read(name: str, source: Source, line: int) -> tuple[str, str]:
    """The text, and the name that messages of its compiler have."""
    if isinstance(source, os.PathLike) or (
        "\n" not in source and "{" not in source and re.search(r"\.\w+$", source)
    ):
        path = pathlib.Path(source)
        if not path.is_file():
            raise NotFoundError(f"{name}: the source file {path} does not exist")
        return path.read_text(), str(path)
    return source, ""


def _definition(
    name: str,
    implementations: Mapping[str, Mapping[str, Any]],
    outputs: Mapping[str, Any],
    in_place: Sequence[str],
    scalars: Mapping[str, Any],
    **members: Any,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Callable[..., Any]]]:
    """The definition's content, the outputs whose types calls tell, and derived scalars."""
    results: list[dict[str, Any]] = []
    told: dict[str, Any] = {}
    for result, given in outputs.items():
        if isinstance(given, str):
            results.append({"name": result, "like": given})
        else:
            results.append({"name": result})
            told[result] = given
    results += [{"name": arg, "alias_of": arg} for arg in in_place]
    described: list[dict[str, Any]] = []
    derived: dict[str, Callable[..., Any]] = {}
    for scalar, given in scalars.items():
        described.append({"name": scalar, **_scalar(name, scalar, given, derived)})
    definition = {
        "name": name,
        "implementations": {p: dict(i) for p, i in implementations.items()},
        "results": results,
        "scalars": described,
        **{key: value for key, value in members.items() if value is not None},
    }
    return definition, told, derived


def _scalar(
    kernel: str, name: str, given: Any, derived: dict[str, Callable[..., Any]]
) -> dict[str, Any]:
    """A scalar's description: of a dtype, a default, a function of arguments, or a pair."""
    made: dict[str, Any] = {}
    value = given
    if isinstance(given, tuple):
        if len(given) != 2 or _kernel.dtype_name(given[0]) is None:
            raise InvalidArgumentError(
                f"{kernel}: scalars[{name!r}] is {given!r}; a pair must be (dtype, default or "
                "function of arguments)"
            )
        made["type"], value = _kernel.dtype_name(given[0]), given[1]
    elif _kernel.dtype_name(given) is not None and not isinstance(given, bool | int | float):
        return {"type": _kernel.dtype_name(given)}
    if callable(value):
        derived[name] = value
        return made | {"derived": True}
    if isinstance(value, bool | int | float):
        return made | {"default": value}
    raise InvalidArgumentError(
        f"{kernel}: scalars[{name!r}] is {given!r}; it must be a dtype, a default, a function of "
        "arguments, or (dtype, one of the last two)"
    )


def _host(name: str, host: Any) -> dict[str, Any]:
    """The Host implementation that `host` is: C++ source, or a kernel that has one."""
    if isinstance(host, Kernel):
        made = host._definition["implementations"].get("Host")
        if made is None:
            raise InvalidArgumentError(
                f"{name}: host is {host!r}, which has no Host implementation"
            )
        return dict(made)
    raise InvalidArgumentError(
        f"{name}: host is {type(host).__name__}; it must be an xla_gpu.host_kernel"
    )


def cuda_kernel(
    source: Source,
    entry: str | Callable[..., str],
    *,
    grid: Any,
    block: Any,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    parameters: Sequence[Any] | None = None,
    shared_memory: Any = 0,
    workspace: Any = None,
    options: Sequence[str] = (),
    include_dirs: Sequence[Source] = (),
    defines: Mapping[str, Any] | None = None,
    cluster: tuple[int, int, int] | None = None,
    name: str | None = None,
    host: Any = None,
    capture: bool = True,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> Kernel:
    """A kernel of CUDA C++ source, compiled by NVRTC for the GPU that runs it.

    What a call takes is read from the kernel's declaration: pointers that `outputs` does not name
    are arguments, numbers are scalars, which a call gives by name. Functions of arguments are given
    those that their parameters name, as objects with `shape`, `dtype` ("f32"), `size` and `ndim`,
    and scalars as numbers: `grid=lambda x: xla_gpu.cdiv(x.size, 256)`.

    Args:
      source: the text, or the path of a file.
      entry: the kernel: a name, or of a template an expression ("scale<float, 256>"), which may be
        a function of arguments. It need not be extern "C".
      grid: blocks, 1 to 3 ints, or a function of arguments that gives them.
      block: threads of a block, likewise.
      outputs: by the name of a pointer: an argument's name (like that), (shape, dtype), or a
        function of arguments that gives one of these.
      in_place: pointers that are arguments and results: under jit the buffer is reused if the
        argument is not needed afterwards, else copied first.
      scalars: by name, what the declaration does not say: a default, a dtype, (dtype, default), or
        a function of arguments, which no call then gives.
      parameters: what the kernel takes in order, where its declaration cannot be read (macros).
      shared_memory: bytes of dynamic shared memory, or a function of arguments.
      workspace: bytes of scratch memory for the pointer `workspace`, or a function of arguments.
      options: NVRTC's ("--use_fast_math").
      include_dirs: folders for #include; the toolkit's own are found.
      defines: macros by name; None for one without a value.
      cluster: blocks of a cluster.
      name: the custom call's target; the entry's name if not given.
      host: a kernel of `host_kernel` with the same parameters, for CPUs.
      capture: whether XLA may replay the launch in command buffers.
      vmap: "sequential" (a loop), "expand_dims" (arguments that are not batched get a first
        dimension of 1) or "broadcast_all"; None refuses.
      gradient: (arguments, results, gradients of results, **scalars) -> gradients of the arguments.
      sharding: how the call may be split over devices, in Shardy's form: "i j, j -> i".
      doc: the docstring.

    Returns:
      The kernel: `kernel(x, y, alpha=2.0)`.

    Raises:
      InvalidArgumentError (a ValueError): for a description that does not fit the source.
      NotFoundError: no such file.
    """
    base = entry if isinstance(entry, str) else None
    if base is None and name is None:
        raise InvalidArgumentError(
            "cuda_kernel: name is None; a kernel whose entry is a function of arguments needs one"
        )
    name = name or re.sub(r"<.*", "", str(base), flags=re.DOTALL).split("::")[-1].strip()
    text, file = _read(name, source, 0)
    flags = [f"-I{os.fspath(folder)}" for folder in include_dirs]
    flags += [f"-D{k}" if v is None else f"-D{k}={v}" for k, v in (defines or {}).items()]
    cuda: dict[str, Any] = {
        "kind": "cuda_source",
        "text": text,
        "file": file or f"{name}.cu",
        "entry": base or name,
        "options": [*flags, *options],
    }
    if parameters is not None:
        cuda["parameters"] = list(parameters)
    if cluster is not None:
        cuda["cluster"] = list(cluster)
    implementations = {"CUDA": cuda}
    if host is not None:
        implementations["Host"] = _host(name, host)
    definition, told, derived = _definition(
        name,
        implementations,
        outputs or {},
        in_place,
        scalars or {},
        doc=doc,
        capture=capture,
        workspace=workspace is not None or None,
    )
    variant = None
    if base is None:
        variant = _entry_variant(definition, cuda, entry)
    return Kernel(
        definition,
        outputs=told,
        launch={"grid": grid, "block": block, "shared_memory": shared_memory},
        derived=derived,
        workspace=workspace or 0,
        variant=variant,
        vmap=vmap,
        gradient=gradient,
        sharding=sharding,
    )


def _entry_variant(
    definition: Mapping[str, Any], cuda: Mapping[str, Any], entry: Any
) -> Callable[..., Mapping[str, Any]]:
    def variant(specs: _kernel.Specs, scalars: _kernel.Scalars) -> Mapping[str, Any]:
        chosen = _kernel.call_with(str(definition["name"]), specs, scalars, entry, "entry")
        implementations = {**definition["implementations"], "CUDA": {**cuda, "entry": chosen}}
        return {"implementations": implementations}

    return variant


def host_kernel(
    source: Source | Any,
    entry: str | None = None,
    *,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    arguments: Sequence[Any] | None = None,
    parameters: Sequence[Any] | None = None,
    workspace: Any = None,
    options: Sequence[str] = (),
    name: str | None = None,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> Kernel:
    """A kernel for the CPU: C++ source, or a C function.

    Args:
      source: C++ text or the path of a file, compiled by the system's compiler ($CXX, else c++);
        or a C function: "path/to/lib.so:symbol", (path, symbol), an address, a ctypes function, a
        numba cfunc.
      entry: of a source, the function's name, or a template's instance ("scale<float>").
      arguments: of a C function, which tells nothing of itself: names, or {"name", "dtypes"}.
      outputs, in_place, scalars, parameters, workspace, name, vmap, gradient, sharding, doc: as of
        `cuda_kernel`. A C function takes arguments, outputs and scalars in this order unless
        `parameters` says otherwise; its scalars need a dtype.
      options: the compiler's ("-O3", "-march=native").

    Returns:
      The kernel: `kernel(x, y, alpha=2.0)`; also what `cuda_kernel` takes as `host`.

    Raises:
      InvalidArgumentError (a ValueError): for a description that does not fit the source.
      NotFoundError: no such file, library or symbol.
    """
    host: dict[str, Any]
    if entry is not None:
        name = name or re.sub(r"<.*", "", entry, flags=re.DOTALL).split("::")[-1].strip()
        text, file = _read(name, source, 0)
        host = {
            "kind": "host_source",
            "text": text,
            "file": file or f"{name}.cc",
            "entry": entry,
            "options": list(options),
        }
    else:
        name, host = _function(name, source)
    if parameters is not None:
        host["parameters"] = list(parameters)
    definition, told, derived = _definition(
        name,
        {"Host": host},
        outputs or {},
        in_place,
        scalars or {},
        doc=doc,
        workspace=workspace is not None or None,
        arguments=_arguments(arguments),
    )
    return Kernel(
        definition,
        outputs=told,
        derived=derived,
        workspace=workspace or 0,
        vmap=vmap,
        gradient=gradient,
        sharding=sharding,
    )


def _arguments(given: Sequence[Any] | None) -> list[Any] | None:
    if given is None:
        return None
    return [{"name": one} if isinstance(one, str) else dict(one) for one in given]


def _function(name: str | None, function: Any) -> tuple[str, dict[str, Any]]:
    """The name and the members of a C function in any of the forms that `register` takes."""
    from xla_gpu import _handlers

    address = getattr(function, "address", None)  # numba's cfunc
    if isinstance(address, int):
        name = name or str(getattr(function, "native_name", function))
        _handlers.keep(function)
        return name, {"kind": "function", "address": address}
    if isinstance(function, str | tuple):
        path, symbol = function if isinstance(function, tuple) else function.rpartition(":")[::2]
        return name or str(symbol), {
            "kind": "function",
            "library": os.fspath(path),
            "symbol": str(symbol),
        }
    pointer = _handlers.address_of(function)
    return name or str(getattr(function, "__name__", f"function_{pointer:x}")), {
        "kind": "function",
        "address": pointer,
    }


def cubin_kernel(
    image: Source | bytes,
    entry: str,
    *,
    arguments: Sequence[Any],
    grid: Any,
    block: Any,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    parameters: Sequence[Any] | None = None,
    shared_memory: Any = 0,
    workspace: Any = None,
    cluster: tuple[int, int, int] | None = None,
    name: str | None = None,
    host: Any = None,
    capture: bool = True,
    vmap: str | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: str | None = None,
    doc: str | None = None,
) -> Kernel:
    """A kernel of machine code: a cubin, PTX text or a fatbin.

    Args:
      image: the bytes, or the path of a file.
      entry: the kernel's name in it (mangled, where it is not extern "C").
      arguments: names of the arrays that it takes, or {"name": ..., "dtypes": [...]}.
      scalars: by name a dtype, or (dtype, default or function of arguments).
      parameters: what the kernel takes in order; by default arguments, outputs, scalars. Their
        number and sizes are compared with the image's when it is loaded (CUDA 12.4 and newer).
      grid, block, outputs, in_place, shared_memory, workspace, cluster, name, host, capture, vmap,
      gradient, sharding, doc: as of `cuda_kernel`.

    Raises:
      InvalidArgumentError (a ValueError): for a description that cannot be.
      NotFoundError: no such file.
    """
    name = name or entry
    if isinstance(image, str | os.PathLike) and not str(image).lstrip().startswith("."):
        path = pathlib.Path(image)
        if not path.is_file():
            raise NotFoundError(f"{name}: the image {path} does not exist")
        image = path.read_bytes()
    data = image if isinstance(image, bytes) else str(image).encode()
    cuda: dict[str, Any] = {
        "kind": "cuda_image",
        "image": base64.b64encode(data).decode(),
        "entry": entry,
    }
    if parameters is not None:
        cuda["parameters"] = list(parameters)
    if cluster is not None:
        cuda["cluster"] = list(cluster)
    implementations = {"CUDA": cuda}
    if host is not None:
        implementations["Host"] = _host(name, host)
    definition, told, derived = _definition(
        name,
        implementations,
        outputs or {},
        in_place,
        scalars or {},
        doc=doc,
        capture=capture,
        workspace=workspace is not None or None,
        arguments=_arguments(arguments),
    )
    return Kernel(
        definition,
        outputs=told,
        launch={"grid": grid, "block": block, "shared_memory": shared_memory},
        derived=derived,
        workspace=workspace or 0,
        vmap=vmap,
        gradient=gradient,
        sharding=sharding,
    )
