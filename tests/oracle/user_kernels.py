"""Kernels of the user's for tests of every framework: C++ for the CPU, and random signatures."""

import dataclasses

import numpy as np
import torch
import xla_gpu
from xla_gpu import _lib

SOURCE = """
#include <cstdint>
void scale(const float* x, int64_t n, float alpha, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = alpha * x[i];
}
void scale_gradient(const float* g, int64_t n, float alpha, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = alpha * g[i];
}
void add_to(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}
void swap_out(float* y, const float* x, int64_t n, float* before) {
  for (int64_t i = 0; i < n; ++i) {
    before[i] = y[i];
    y[i] = x[i];
  }
}
void pairs(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[2 * i] = x[i];
    out[2 * i + 1] = -x[i];
  }
}
void row_sums(const float* x, int64_t rows, int64_t columns, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    out[i] = 0;
    for (int64_t j = 0; j < columns; ++j) out[i] += x[i * columns + j];
  }
}
template <typename T, int kFactor>
void times(const T* x, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * kFactor;
}
"""
SIZE = {"n": lambda x: x.size}

scale_gradient = xla_gpu.host_kernel(
    SOURCE,
    "scale_gradient",
    outputs={"out": "g"},
    scalars={"n": lambda g: g.size},
    vmap="broadcast_all",
)
scale = xla_gpu.host_kernel(
    SOURCE,
    "scale",
    outputs={"out": "x"},
    scalars={**SIZE, "alpha": 2.0},
    vmap="broadcast_all",
    gradient=lambda args, results, gradients, alpha: (scale_gradient(gradients[0], alpha=alpha),),
    doc="alpha * x.",
)
add_to = xla_gpu.host_kernel(SOURCE, "add_to", in_place=["y"], scalars=SIZE, vmap="sequential")
swap_out = xla_gpu.host_kernel(
    SOURCE, "swap_out", outputs={"before": "y"}, in_place=["y"], scalars=SIZE, vmap="sequential"
)
pairs = xla_gpu.host_kernel(
    SOURCE, "pairs", outputs={"out": lambda x: ((2 * x.size,), x.dtype)}, scalars=SIZE
)
row_sums = xla_gpu.host_kernel(
    SOURCE,
    "row_sums",
    outputs={"out": lambda x: ((x.shape[0],), x.dtype)},
    scalars={"rows": lambda x: x.shape[0], "columns": lambda x: x.shape[1]},
    vmap="sequential",
)

add = xla_gpu.external_kernel(  # an XLA FFI handler, that of an op
    _lib.handler_address("simple_add", "Host", 4),
    convention="ffi",
    platform="Host",
    arguments=["a", "b"],
    outputs={"out": "a"},
    name="add",
)

# ---- Random signatures ---------------------------------------------------------------------------

_TYPES = {
    "f32": ("float", torch.float32),
    "f64": ("double", torch.float64),
    "i8": ("signed char", torch.int8),
    "i32": ("int", torch.int32),
    "i64": ("long long", torch.int64),
    "u8": ("unsigned char", torch.uint8),
}
_SCALARS = {"f32": "float", "f64": "double", "i32": "int", "i64": "long long", "pred": "bool"}


@dataclasses.dataclass
class Case:
    """A kernel that weighs all that it is given, and a call of it.

    Each result is sum_k (k + 1) * argument_k[i mod its size] + the scalars likewise; what is in
    place gets 1 added. All values are small integers, so that every dtype holds them exactly.
    """

    kernel: xla_gpu.Kernel
    args: dict[str, torch.Tensor]
    scalars: dict[str, float]
    in_place: tuple[str, ...]
    outputs: dict[str, tuple[tuple[int, ...], str]]

    def want(self):
        """All results, in order, as int64."""
        results = []
        for shape, _ in self.outputs.values():
            count = int(np.prod(shape, dtype=np.int64))
            total = torch.zeros(count, dtype=torch.int64)
            for weight, value in self._weighted():
                flat = torch.as_tensor(value).reshape(-1).to(torch.int64)
                index = torch.arange(count) % max(1, flat.numel())
                total += weight * (flat[index] if flat.numel() else 0)
            results.append(total.reshape(shape))
        return results + [self.args[name].to(torch.int64) + 1 for name in self.in_place]

    def _weighted(self):
        names = [a.name for a in self.kernel.schema.args]
        for i, name in enumerate(names):
            if name in self.args:
                yield i + 1, self.args[name]
        for i, value in enumerate(self.scalars.values()):
            yield i + 1, int(value)

    def call(self, args=None):
        """The results as a list, of these arguments or the case's own."""
        args = dict(self.args if args is None else args)
        optional = {a.name for a in self.kernel.schema.args if a.optional}
        named = {name: args.pop(name) for name in list(args) if name in optional}
        results = self.kernel(*args.values(), **named, **self.scalars)
        return list(results) if isinstance(results, tuple) else [results]


def random_case(rng, dtypes=tuple(_TYPES), cuda=False):
    """Of 1 to 5 arguments, some optional but on CUDA, 0 to 4 scalars and 1 to 3 results."""
    count = int(rng.integers(1, 6))
    names = [f"a{i}" for i in range(count)]
    types = {name: str(rng.choice(dtypes)) for name in names}
    is_optional = {
        name: i > 0 and not cuda and bool(rng.random() < 0.3) for i, name in enumerate(names)
    }
    names.sort(key=is_optional.get)
    in_place = tuple(n for n in names if not is_optional[n] and rng.random() < 0.3)
    scalars = {f"s{i}": str(rng.choice(list(_SCALARS))) for i in range(rng.integers(0, 5))}
    out_count = int(rng.integers(0 if in_place else 1, 3))
    args = {}
    for name in names:
        if not is_optional[name] or rng.random() < 0.5:
            shape = tuple(rng.integers(0 if rng.random() < 0.2 else 1, 4, rng.integers(0, 4)))
            values = rng.integers(0, 3, shape)
            args[name] = torch.as_tensor(values).to(_TYPES[types[name]][1])
    outputs, told = {}, {}
    for i in range(out_count):
        like = str(rng.choice([n for n in names if not is_optional[n]]))
        if rng.random() < 0.5:
            outputs[f"o{i}"] = (tuple(args[like].shape), types[like])
            told[f"o{i}"] = like
        else:
            dtype = str(rng.choice(dtypes))
            outputs[f"o{i}"] = ((*args[like].shape, 2), dtype)
            told[f"o{i}"] = _twice(like, dtype)
    sizes = {f"n_{o}": _size(shape_of) for o, shape_of in told.items()}
    sizes |= {f"n_{n}": _size_or_0(n) for n in names}
    pointers = [f"{'' if n in in_place else 'const '}{_TYPES[types[n]][0]}* {n}" for n in names]
    pointers += [f"{_TYPES[t][0]}* {o}" for o, (_, t) in outputs.items()]
    numbers = [f"{_SCALARS[t]} {s}" for s, t in scalars.items()]
    numbers += [f"long long {n}" for n in sizes]
    weighted = [
        f"if (n_{n}) total += {i + 1} * (long long){n}[i % n_{n}];" for i, n in enumerate(names)
    ]
    weighted += [f"total += {i + 1} * (long long){s};" for i, s in enumerate(scalars)]
    body = "".join(
        f"for (long long i = 0; i < n_{o}; ++i) {{ long long total = 0; {' '.join(weighted)} "
        f"{o}[i] = total; }}\n"
        for o in outputs
    )
    body += "".join(f"for (long long i = 0; i < n_{n}; ++i) {n}[i] += 1;\n" for n in in_place)
    source = f"void mix({', '.join(pointers + numbers)}) {{\n{body}}}\n"
    described = {"outputs": told, "in_place": in_place, "scalars": sizes}
    if cuda:
        source = f"__global__ {source}"
        kernel = xla_gpu.cuda_kernel(source, "mix", grid=1, block=1, **described)
    else:
        described["arguments"] = [
            {"name": n, "dtypes": [types[n]], "optional": is_optional[n]} for n in names
        ]
        kernel = xla_gpu.host_kernel(source, "mix", options=["-O0"], **described)
    values = {s: _value(t, int(rng.integers(0, 3))) for s, t in scalars.items()}
    return Case(kernel, args, values, in_place, outputs)


def _value(dtype, number):
    return bool(number) if dtype == "pred" else float(number) if dtype[0] == "f" else number


def _named(name, function):
    """`function` with one parameter, of this name."""
    made = {}
    exec(f"def of({name}=None): return function({name})", {"function": function}, made)
    return made["of"]


def _twice(like, dtype):
    return _named(like, lambda spec: ((*spec.shape, 2), dtype))


def _size(of):
    if isinstance(of, str):
        return _named(of, lambda spec: spec.size)
    return _named(of.__code__.co_varnames[0], lambda spec: spec.size * 2)


def _size_or_0(name):
    return _named(name, lambda spec: 0 if spec is None else spec.size)
