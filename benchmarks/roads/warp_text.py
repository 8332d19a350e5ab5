"""SAXPY in Warp."""

import warp as wp


@wp.kernel
def saxpy(
    x: wp.array(dtype=float),
    y: wp.array(dtype=float),
    alpha: float,
    out: wp.array(dtype=float),
):
    i = wp.tid()
    out[i] = alpha * x[i] + y[i]
