"""Holds the tables of python/xla_gpu/vllm_xla/_names.py against releases, without importing them.

    python scripts/check_vllm_names.py FOLDER...

Each FOLDER is a site-packages, or wheels of tpu-inference, vllm-tpu and tokamax unzipped into one;
what it lacks is passed over. The release is that of its tpu-inference; of one that the tables do
not know the newest one's names are looked for, which tells what it takes to know it. Prints each
name that is not there, or whose parameters are others; the exit code is 1 if there is one.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_TABLES = Path(__file__).parents[1] / "python/xla_gpu/vllm_xla/_names.py"


def tables() -> ModuleType:
    """The module _names, which needs nothing installed."""
    spec = importlib.util.spec_from_file_location("_names", _TABLES)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def tree(folder: Path, module: str) -> ast.Module | None:
    """The syntax of a module, or None if it is not there."""
    path = folder / module.replace(".", "/")
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.exists():
            return ast.parse(file.read_text())
    return None


def defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that statements define, those under `if` and `try` too, and the statement."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            yield from ((name, node) for name in names)
        elif isinstance(node, ast.If | ast.Try):
            handlers = [s for h in getattr(node, "handlers", []) for s in h.body]
            yield from defined([*node.body, *handlers, *node.orelse])


def find(folder: Path, module: str, name: str, *rest: str) -> ast.stmt | None:
    """Where module.name.rest is defined; by an import, if that is of what the folder lacks."""
    syntax = tree(folder, module)
    node = dict(defined(syntax.body)).get(name) if syntax else None
    if isinstance(node, ast.ImportFrom) and node.module:
        (real,) = (alias.name for alias in node.names if name in (alias.asname, alias.name))
        return find(folder, node.module, real, *rest) if tree(folder, node.module) else node
    if isinstance(node, ast.Import) and rest:
        (real,) = (alias.name for alias in node.names if alias.asname == name)
        return find(folder, real, *rest) if tree(folder, real) else node
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute | ast.Name):
        return find(folder, module, *ast.unparse(node.value).split("."), *rest)
    if not rest:
        return node
    if not isinstance(node, ast.ClassDef):
        return None
    bases = (find(folder, module, *ast.unparse(base).split("."), *rest) for base in node.bases)
    return dict(defined(node.body)).get(rest[0]) or next(filter(None, bases), None)


def parameters(node: ast.stmt) -> str | None:
    """The names of a function's parameters, of a class method's without the class."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    a = node.args
    last = [*filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]
    names = [arg.arg for arg in (*a.posonlyargs, *a.args, *last)]
    bound = any(isinstance(d, ast.Name) and d.id == "classmethod" for d in node.decorator_list)
    return ", ".join(names[bound:])


def release_of(folder: Path) -> str | None:
    """That of the folder's tpu-inference, without its local part."""
    for path in folder.glob("tpu_inference-*.dist-info"):
        return re.split("[-+]", path.name.removesuffix(".dist-info"))[1]
    return None


def problems(folder: Path, release: str) -> list[str]:
    """What of the release's names the folder does not have."""
    names, found = tables(), []

    def here(module: str) -> bool:
        return (folder / module.partition(".")[0]).is_dir()

    for module, row in names.TAKEN.items():
        for name in filter(None, (names.of(release, row) or "").split(", ")):
            if here(module) and find(folder, module, name) is None:
                found.append(f"{module} has no {name}")
    for place, functions in names.REPLACED.items():
        module, _, owner = place.partition(":")
        for name, row in functions.items():
            want = names.of(release, row)
            if want is None or not here(module):
                continue
            node = find(folder, module, *owner.split(), name)
            has = node and parameters(node)
            if has != want and not isinstance(node, ast.Import | ast.ImportFrom):
                found.append(f"{place} should have {name}({want}) but has {name}({has})")
    return found


def main(folders: list[str]) -> int:
    """Prints the problems of each folder."""
    known, wrong = tables().RELEASES, 0
    for folder in map(Path, folders):
        release = release_of(folder)
        if release is None:
            sys.exit(f"{folder} has no tpu_inference")
        faults = problems(folder, release if release in known else known[-1])
        print(f"tpu-inference {release}: {len(faults) or 'no'} other names than in the tables")
        print("".join(f"  {fault}\n" for fault in faults), end="")
        wrong += len(faults)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
