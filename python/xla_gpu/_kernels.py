"""`xla_gpu.cuda_kernel`, `host_kernel` and their siblings: kernels from what the user has."""

from __future__ import annotations

import base64
import math
import numbers
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_gpu import _given, _kernel, _schema
from xla_gpu._errors import InvalidArgumentError, NotFoundError
from xla_gpu._kernel import Kernel

Source = str | os.PathLike[str]


def read(name: str, source: Source) -> tuple[str, str]:
    """The text, and the name that messages of its compiler have."""
    if isinstance(source, os.PathLike) or (
        "\n" not in source and "{" not in source and re.search(r"\.\w+$", source)
    ):
        content = _content(f"{name}: the source file", source)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise InvalidArgumentError(f"{name}: the source file {source} is not UTF-8: {e}") from e
        if "\0" in text:
            raise InvalidArgumentError(f"{name}: the source file {source} has a NUL byte")
        return text, os.fspath(source)
    return source, ""


def _content(said: str, file: Source) -> bytes:
    path = pathlib.Path(file)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{said} {path} does not exist") from None
    except OSError as e:
        raise InvalidArgumentError(f"{said} {path} cannot be read: {e.strerror}") from e


class Entry(str):
    """The name of a template of which a function of a call's arguments says the instance."""

    instance: Callable[..., str]

    def __new__(cls, function: str, name: str | None, instance: Callable[..., str]) -> Entry:
        if name is None:
            raise InvalidArgumentError(
                f"{function}: name is None; a kernel whose entry is a function of arguments needs "
                "one, that of the template"
            )
        made = super().__new__(cls, name)
        made.instance = instance
        return made


def instances(
    name: str,
    implementations: Mapping[str, Mapping[str, Any]],
    specs: _kernel.Specs,
    scalars: _kernel.Scalars,
) -> dict[str, Mapping[str, Any]]:
    """The implementations with the entries that a call of these arguments has."""
    made = dict(implementations)
    for platform, code in implementations.items():
        if isinstance(entry := code.get("entry"), Entry):
            chosen = _kernel.call_with(name, specs, scalars, entry.instance, "entry")
            made[platform] = {**code, "entry": chosen}
    return made


def make(
    name: str,
    implementations: Mapping[str, Mapping[str, Any]],
    *,
    outputs: Mapping[str, Any] | None,
    in_place: Sequence[str],
    scalars: Mapping[str, Any] | None,
    parameters: Sequence[Any] | None,
    workspace: Any,
    rules: Mapping[str, Any],
    launch: Mapping[str, Any] | None = None,
    **members: Any,
) -> Kernel:
    """The kernel of these implementations; `members` are the definition's, None for absent ones.

    `parameters` are those of each implementation but a Host's of its own (`host_of`).
    """
    code = {platform: dict(made) for platform, made in implementations.items()}
    if parameters is not None:
        for made in code.values():
            made.setdefault("parameters", list(parameters))
    results: list[dict[str, Any]] = []
    told: dict[str, Any] = {}
    for result, given in (outputs or {}).items():
        results.append(
            {"name": result, "like": given} if isinstance(given, str) else {"name": result}
        )
        if not isinstance(given, str):
            told[result] = given
    results += [{"name": arg, "alias_of": arg} for arg in in_place]
    derived: dict[str, Callable[..., Any]] = {}
    described = [
        {"name": scalar, **_scalar(name, scalar, given, derived)}
        for scalar, given in (scalars or {}).items()
    ]
    definition = {
        "name": name,
        "implementations": code,
        "results": results,
        "scalars": described,
        "workspace": workspace is not None,
        **{key: value for key, value in members.items() if value is not None},
    }

    has_instances = any(isinstance(made.get("entry"), Entry) for made in code.values())

    def variant(specs: _kernel.Specs, scalars: _kernel.Scalars) -> Mapping[str, Any]:
        return {"implementations": instances(name, code, specs, scalars)}

    return Kernel(
        definition,
        outputs=told,
        launch=launch,
        derived=derived,
        workspace=0 if workspace is None else workspace,
        variant=variant if has_instances else None,
        **rules,
    )


def _scalar(
    kernel: str, name: str, given: Any, derived: dict[str, Callable[..., Any]]
) -> dict[str, Any]:
    """A scalar's description: of a dtype, a default, a function of arguments, or a pair."""
    made: dict[str, Any] = {}
    value = given
    if isinstance(given, tuple):
        if len(given) != 2 or _kernel.dtype_name(given[0]) is None:
            raise InvalidArgumentError(
                f"{kernel}: scalars[{name!r}] is {_given.came(given)}; a pair must be (dtype, "
                "default or function of arguments)"
            )
        made["type"], value = _kernel.dtype_name(given[0]), given[1]
    elif _kernel.dtype_name(given) is not None and not isinstance(given, bool | int | float):
        return {"type": _kernel.dtype_name(given)}
    if _given.is_function(value):
        derived[name] = value
        return made | {"derived": True}
    if isinstance(value, numbers.Integral):
        value = value if isinstance(value, bool) else int(value)  # NumPy's too
        _schema.number(f"{kernel}: scalars[{name!r}]", "float", value)
    elif isinstance(value, numbers.Real):
        value = _schema.number(f"{kernel}: scalars[{name!r}]", "float", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgumentError(
            f"{kernel}: scalars[{name!r}] is {given!r}; a default must be finite, a call may give "
            "others"
        )
    if isinstance(value, bool | int | float):
        return made | {"default": value}
    raise InvalidArgumentError(
        f"{kernel}: scalars[{name!r}] is {_given.came(given)}; it must be a dtype, a default, a "
        "function of arguments, or (dtype, one of the last two)"
    )


def host_of(name: str, host: Any, entry: str | None = None) -> dict[str, Any]:
    """The Host implementation that `host` is: a kernel that has one, or C++ source of the entry."""
    if isinstance(host, Kernel):
        made = host._definition["implementations"].get("Host")
        if made is None:
            raise InvalidArgumentError(
                f"{name}: host is {host!r}, which has no Host implementation"
            )
        return dict(made)
    if isinstance(host, str | os.PathLike):
        return host_source(name, host, entry or name)
    raise InvalidArgumentError(
        f"{name}: host is {type(host).__name__}; it must be an xla_gpu.host_kernel, or C++ source"
    )


def host_source(
    name: str, source: Source, entry: str, options: Sequence[str] = ()
) -> dict[str, Any]:
    """The members of an implementation of C++ source."""
    text, file = read(name, source)
    return {
        "kind": "host_source",
        "text": text,
        "file": file,  # no name of the kernel's: kernels of one text are compiled once
        "entry": entry,
        "options": list(options),
    }


@_given.checked(entry=_given.ENTRY)
def cuda_kernel(
    source: Source,
    entry: str | Callable[..., str],
    *,
    grid: Any,
    block: Any,
    outputs: Mapping[str, Any] | None = None,
    in_place: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    arguments: Sequence[Any] | None = None,
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
      in_place: pointers that are arguments and results. In JAX the result is a new array: under
        jit the buffer is reused if the argument is not needed afterwards, else copied first. A
        torch tensor is written, and returned.
      scalars: by name, what the declaration does not say: a default, a dtype, (dtype, default), or
        a function of arguments, which no call then gives.
      arguments: names of the arrays that it takes, or {"name", "dtypes", "optional"}, where some
        are optional or the declaration cannot be read (macros); then with
      parameters: what the kernel takes, in order: names, None, {"value": 3, "type": "i32"}, ...
      shared_memory: bytes of dynamic shared memory, or a function of arguments.
      workspace: bytes of scratch memory for the pointer `workspace`, or a function of arguments.
      options: NVRTC's ("--use_fast_math").
      include_dirs: folders for #include; the toolkit's own are found.
      defines: macros by name; None for one without a value. True and False are 1 and 0.
      cluster: blocks of a cluster.
      name: the custom call's target; the entry's name if not given.
      host: for CPUs, with the same parameters: C++ source that has a function of the same entry, or
        a kernel of `host_kernel`.
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
    if not isinstance(entry, str):
        entry = Entry("cuda_kernel", name, entry)
    name = name or name_of(entry)
    text, file = read(name, source)
    flags = [f"-I{os.fspath(folder)}" for folder in include_dirs]
    values = {k: int(v) if isinstance(v, bool) else v for k, v in (defines or {}).items()}
    flags += [f"-D{k}" if v is None else f"-D{k}={v}" for k, v in values.items()]
    cuda: dict[str, Any] = {
        "kind": "cuda_source",
        "text": text,
        "file": file or f"{name}.cu",
        "entry": entry,
        "options": [*flags, *options],
    }
    return make(
        name,
        _with_host(name, {**cuda, **_cluster(cluster)}, host, entry),
        outputs=outputs,
        in_place=in_place,
        scalars=scalars,
        parameters=parameters,
        workspace=workspace,
        rules={"vmap": vmap, "gradient": gradient, "sharding": sharding},
        launch={"grid": grid, "block": block, "shared_memory": shared_memory},
        doc=doc,
        capture=capture,
        arguments=arguments_of(arguments),
    )


def _with_host(
    name: str, cuda: Mapping[str, Any], host: Any, entry: str | None = None
) -> dict[str, Any]:
    return {"CUDA": cuda} if host is None else {"CUDA": cuda, "Host": host_of(name, host, entry)}


def _cluster(cluster: tuple[int, int, int] | None) -> dict[str, Any]:
    return {} if cluster is None else {"cluster": list(map(int, cluster))}


def name_of(entry: str) -> str:
    """A kernel's name without namespaces and template arguments."""
    return re.sub(r"<.*", "", entry, flags=re.DOTALL).split("::")[-1].strip()


def arguments_of(given: Sequence[Any] | None) -> list[Any] | None:
    if given is None:
        return None
    return [{"name": one} if isinstance(one, str) else dict(one) for one in given]


def platforms_of(name: str, platform: str | Sequence[str]) -> list[str]:
    platforms = [platform] if isinstance(platform, str) else list(platform)
    if not platforms or any(one not in ("CUDA", "Host") for one in platforms):
        raise InvalidArgumentError(
            f"{name}: platform is {platform!r}; allowed are 'CUDA', 'Host' and both"
        )
    return platforms


@_given.checked()
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
    if isinstance(image, os.PathLike) or (isinstance(image, str) and "\n" not in image):
        image = _content(f"{name}: the image", image)
    data = image if isinstance(image, bytes) else image.encode()
    cuda: dict[str, Any] = {
        "kind": "cuda_image",
        "image": base64.b64encode(data).decode(),
        "entry": entry,
    }
    return make(
        name,
        _with_host(name, {**cuda, **_cluster(cluster)}, host),
        outputs=outputs,
        in_place=in_place,
        scalars=scalars,
        parameters=parameters,
        workspace=workspace,
        rules={"vmap": vmap, "gradient": gradient, "sharding": sharding},
        launch={"grid": grid, "block": block, "shared_memory": shared_memory},
        doc=doc,
        capture=capture,
        arguments=arguments_of(arguments),
    )
