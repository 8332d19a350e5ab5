"""Roads by which a kernel of one's own gets into a framework, for benchmarks/own_kernels.py.

A road is a function that brings SAXPY (out = 2 * x + y, f32) into its framework and returns what is
called on two arrays. Its body is all that a user writes besides the kernel itself, whose text is
here; what it needs to import it imports there.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import os
import pathlib
import subprocess
import textwrap
from collections.abc import Callable
from typing import Any

KERNEL_CPP = """
void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
  for (long i = 0; i < n; ++i) out[i] = alpha * x[i] + y[i];
}
"""
KERNEL_CUDA = """
__global__ void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
  long i = blockIdx.x * long(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = alpha * x[i] + y[i];
}
"""


@dataclasses.dataclass(frozen=True)
class Road:
    """One way, and what is known of it without trying.

    Attributes:
      make: brings the kernel in; returns the function of (x, y).
      name: what the table calls it.
      platform: "CPU" or "GPU".
      framework: "jax" or "torch": whose arrays are called, timed and transformed.
      packages: modules without which it is not tried.
      takes: the front ends that can call what it makes.
      compiles: "here" where a machine without a GPU can compile the kernel, else "GPU".
      is_kernel: False of rows that the others are compared with.
    """

    make: Callable[[], Callable[[Any, Any], Any]]
    name: str
    platform: str
    framework: str
    packages: tuple[str, ...] = ()
    takes: str = ""
    compiles: str = "here"
    is_kernel: bool = True

    @property
    def key(self) -> str:
        return self.make.__name__

    @property
    def lines(self) -> int:
        """Lines of code that a user writes besides the kernel."""
        source = textwrap.dedent(inspect.getsource(self.make))
        (function,) = ast.parse(source).body
        assert isinstance(function, ast.FunctionDef)
        start = function.body[1 if ast.get_docstring(function) else 0].lineno
        lines = (line.strip() for line in source.splitlines()[start - 1 : function.end_lineno])
        return sum(bool(line) and not line.startswith("#") for line in lines)


ROADS: dict[str, Road] = {}


def road(name: str, platform: str, framework: str, **known: Any) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        made = Road(make, name, platform, framework, **known)
        ROADS[made.key] = made
        return make

    return add


def build(compiler: list[str], text: str, suffix: str) -> str:
    """The path of the library made of `text`, once: what a user's Makefile would do."""
    digest = hashlib.sha256("\0".join([*compiler, text]).encode()).hexdigest()[:16]
    folder = pathlib.Path(os.environ["ROADS_CACHE"])
    source, library = folder / f"{digest}{suffix}", folder / f"{digest}.so"
    if not library.exists():
        source.write_text(text)
        subprocess.run([*compiler, "-shared", "-o", library, source], check=True)
    return str(library)
