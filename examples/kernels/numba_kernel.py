"""A numba cfunc as a custom call on the CPU: sums along the paths of a tree, from leaf to root."""

from _require import require

require("numba")

import jax
import jax.numpy as jnp
import numba
import numpy as np
import xla_gpu
from numba import types

FLOATS = types.CPointer(types.float32)


@numba.cfunc(types.void(types.CPointer(types.int32), FLOATS, FLOATS, types.int64))
def path_sums(parents, values, sums, n):
    for i in range(n):  # a parent comes before its children; the root is its own
        sums[i] = values[i]
        if parents[i] != i:
            sums[i] += sums[parents[i]]


kernel = xla_gpu.host_kernel(
    path_sums,
    name="path_sums",
    arguments=[{"name": "parents", "dtypes": ["i32"]}, {"name": "values", "dtypes": ["f32"]}],
    outputs={"sums": "values"},
    scalars={"n": ("i64", lambda values: values.size)},
    vmap="sequential",
)

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    n = 1000
    parents = np.array([0, *(rng.integers(0, i) for i in range(1, n))], np.int32)
    values = rng.integers(0, 10, n).astype(np.float32)
    want = values.copy()
    for i in range(1, n):
        want[i] += want[parents[i]]
    with jax.default_device(jax.devices("cpu")[0]):
        call = jax.jit(lambda values: kernel(parents, values))
        assert (call(values) == want).all()
        assert (jax.vmap(call)(jnp.stack([values, 2 * values]))[1] == 2 * want).all()
    print("ok on cpu")
