"""Holds the rules of the house that no compiler checks (docs/design.md).

Which folder may include which, which Python module may import which framework, how long a file may
be, that no file names a path of one machine, and that none tells to install a name that is not
registered. Prints each breach; the exit code is their number
(at most 1).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

MAX_LINES = 600

# A folder of src/ may include itself and these. `core` is the ground; ops and xla meet only in the
# registry; capi and cli stand on top.
ALLOWED = {
    "core": set(),
    "cuda": {"core"},
    "ops": {"core", "cuda"},
    "xla": {"core"},
    "capi": {"core", "cuda", "xla"},
    "cli": {"core", "cuda", "ops", "xla", "capi"},
}
# Within a layer that is listed here, a folder may include itself and these; "" is what lies in no
# folder of its own. An op names the common ground that it stands on and the ops it is made of.
ALLOWED_WITHIN = {
    "ops": {
        "paged_attention": {"paged_cache"},
        "grouped_matmul": {"paged_cache"},
        "quantize_rows": {"paged_cache"},
        "rotary_embedding": {"paged_cache"},
        "update_kv_cache": {"paged_cache"},
        "ragged_paged_attention_v3": {"paged_cache", "paged_attention", "update_kv_cache"},
    },
    "xla": {"compat": {""}, "testing": {""}},
}
# External headers that only one folder may include.
OWNED_HEADERS = {
    re.compile(r"^(xla/|.*pjrt_c_api)"): "xla",
    re.compile(r"^(cuda\.h|cuda_runtime|nvrtc|cuda_.*\.h)"): "cuda",
}
# Frameworks, and the modules of python/xla_gpu that may import them.
OWNED_IMPORTS = {
    "jax": re.compile(r"^(jax|torchax|vllm_xla)"),
    "jaxlib": re.compile(r"^jax"),
    "torch": re.compile(r"^(torch|vllm)"),
    "torch_xla": re.compile(r"^(torch_xla|vllm)"),
    "torchax": re.compile(r"^(torchax|vllm_xla)"),
    "triton": re.compile(r"^_triton"),
    # Of vllm_xla only _names knows theirs, in the tables of its releases.
    "vllm": re.compile(r"^vllm_cuda"),
    "tpu_inference": re.compile(r"^vllm_xla/_names"),
    "tokamax": re.compile(r"^vllm_xla/_names"),
}
# The packages of python/xla_gpu for one framework each, and the others that each may import.
FRAMEWORK_PACKAGES = {
    "jax": set(),
    "torch": set(),
    "torch_xla": {"torch"},
    "torchax": {"jax", "torch"},
    "vllm_cuda": {"torch"},
    "vllm_xla": {"jax"},
}
MACHINE_PATH = re.compile(
    r"(?<![\w.$}/])/(root|work|home/\w+|Users/\w+)/\w|index-url|pypi\.org/simple"
)
# "pip install xla-gpu": until this project is published, whoever registers the name runs code on
# the machines of those who follow. From a checkout it is '.[EXTRA]', else the wheel's file. A
# command may go on past the end of a line, and a C++ or Python string past its quotes.
UNREGISTERED = re.compile(
    r"""\b(?:re)?install\b(?:[^\n`;&|(]|\\\n|"\s*\n\s*f?")*?"""
    r"""(?<=[\s'"])xla[-_.]gpu(?=[\[\s'"`),;=<>~!]|$)"""
)
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
LIMITED_SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake", ".cpp"}


def folder_of(parts: tuple[str, ...]) -> str:
    """The folder of its layer that a file lies in, or nothing."""
    return parts[2] if len(parts) > 3 else ""


def check_includes(path: PurePosixPath, text: str) -> list[str]:
    """Includes of a C++ or device source under src/ that its folder may not have."""
    if path.parts[0] != "src" or len(path.parts) < 3:
        return []
    layer = path.parts[1]
    if layer not in ALLOWED:
        return [f"{path}: src/{layer} is no layer; allowed are {', '.join(ALLOWED)}"]
    problems = []
    folder = folder_of(path.parts)
    if path.stem.endswith(("_test", "_fuzz", "_bench")):  # these look at a layer through others
        allowed, siblings, owners = set(ALLOWED), None, set(ALLOWED)
    else:
        allowed, siblings, owners = ALLOWED[layer] | {layer}, ALLOWED_WITHIN.get(layer), {layer}
    for include in INCLUDE.findall(text):
        parts = PurePosixPath(include).parts
        if parts[0] == "src" and parts[1] not in allowed:
            problems.append(f"{path}: src/{layer} may not include {include}")
        elif (
            siblings is not None
            and parts[:2] == ("src", layer)
            and folder_of(parts) not in siblings.get(folder, set()) | {folder}
        ):
            problems.append(f"{path}: src/{layer}/{folder} may not include {include}")
        for pattern, owner in OWNED_HEADERS.items():
            if pattern.match(include) and owner not in owners:
                problems.append(f"{path}: only src/{owner} may include {include}")
    return problems


def imported_modules(tree: ast.AST) -> set[str]:
    """The names of all modules that a syntax tree imports, wherever it does."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def check_imports(path: PurePosixPath, text: str) -> list[str]:
    """Imports in python/xla_gpu of frameworks, and of packages for them, by modules of others."""
    if path.parts[:2] != ("python", "xla_gpu") or path.suffix != ".py":
        return []
    module = "/".join(path.parts[2:])
    imported = imported_modules(ast.parse(text))
    problems = [
        f"{path}: may not import {name}; only python/xla_gpu/{owner.pattern.strip('^')}* may"
        for name in sorted({name.split(".")[0] for name in imported})
        if (owner := OWNED_IMPORTS.get(name)) and not owner.match(module)
    ]
    package = PurePosixPath(path.parts[2]).stem
    if package in FRAMEWORK_PACKAGES:
        others = FRAMEWORK_PACKAGES.keys() - FRAMEWORK_PACKAGES[package] - {package}
        problems += [
            f"{path}: xla_gpu.{package} may not import xla_gpu.{other}"
            for other in sorted(others)
            if f"xla_gpu.{other}" in {".".join(name.split(".")[:2]) for name in imported}
        ]
    return problems


def check_text(path: PurePosixPath, text: str) -> list[str]:
    """A source file's length, paths of one machine, the installation of an unregistered name."""
    problems = []
    lines = text.count("\n") + 1
    if path.suffix in LIMITED_SUFFIXES and lines > MAX_LINES:
        problems.append(f"{path}: {lines} lines; a file has at most {MAX_LINES}")
    for pattern, why in (
        (MACHINE_PATH, "which is of one machine"),
        (UNREGISTERED, "a name that is not registered in the package index"),
    ):
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{path}:{line}: names {match.group()!r}, {why}")
    return problems


def check(root: Path, files: list[str]) -> list[str]:
    """All problems of `files`, which are named from `root`."""
    problems = []
    for name in files:
        path = PurePosixPath(name)
        try:
            text = (root / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary, or deleted and not yet committed
        if path.suffix in {".h", ".cc", ".cu", ".cuh"}:
            problems += check_includes(path, text)
        problems += check_imports(path, text)
        if path.name not in {"check_layers.py", "test_check_layers.py"}:
            problems += check_text(path, text)
    return problems


def main() -> int:
    """Checks the files that git tracks or would track."""
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    problems = check(root, sorted(set(listed.stdout.splitlines())))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
