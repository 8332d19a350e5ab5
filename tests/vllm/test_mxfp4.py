"""mxfp4 weights as 8-bit floats: every value exact, with as few scales as that needs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import other_models
import pytest
import torch
from xla_gpu.vllm_xla import _mxfp4
from xla_gpu.vllm_xla._names import UnsupportedError

INNER = 384  # 12 blocks


def weights(powers):
    """Every nibble, two experts of eight columns: the bytes, and the powers with their bias."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (2, 8, INNER // 2), np.uint8)
    packed[..., 0::16], packed[..., 1::16] = 0x17, 0x9F  # 6 and 0.5, -6 and -0.5 in each block
    powers = np.broadcast_to(np.asarray(powers) + 127, (2, 8, INNER // 32)).astype(np.uint8)
    return packed, powers


def converted(packed, powers, shards=1):
    """The number of scales, and the values."""
    floats, scales = _mxfp4.float8(jnp.asarray(packed), jnp.asarray(powers), shards)
    assert (floats.dtype, scales.dtype) == (jnp.float8_e4m3fn, jnp.float32)
    floats = np.asarray(floats.astype(jnp.float32), np.float64)
    scales = np.asarray(scales, np.float64)
    count = scales.shape[-1]
    values = floats.reshape(2, 8, count, -1) * scales[..., None]
    return count, values.reshape(2, 8, INNER)


def expected(packed, powers):
    """In float64, whatever the powers."""
    unscaled = np.full_like(powers, 127)
    values = other_models.mxfp4_floats(torch.from_numpy(packed), torch.from_numpy(unscaled))
    return values.numpy() * 2.0 ** (np.repeat(powers, 32, axis=-1).astype(float) - 127)


@pytest.mark.parametrize(
    ("powers", "shards", "count"),
    [
        ([0] * 12, 1, 1),
        ([-14, *[0] * 11], 1, 1),  # what a scale can hold
        ([-15, *[0] * 11], 1, 12),  # one more, within 64 values
        ([-15, -15, *[0] * 10], 1, 6),
        ([-30, -30, -30, -30, *[0] * 8], 1, 3),
        ([-30] * 6 + [0] * 6, 1, 2),
        ([-30] * 6 + [0] * 6, 4, 12),  # 6 blocks of 64 cannot be shared by four devices
        ([-30] * 6 + [0] * 6, 3, 3 * 2),
        ([0] * 12, 5, 1),  # as shared as can be
        ([-127, 127] * 6, 1, 12),
        ([-127] * 12, 1, 1),
    ],
)
def test_every_value_with_few_scales(powers, shards, count):
    packed, powers = weights(powers)
    got, values = converted(packed, powers, shards)
    assert got == count
    np.testing.assert_array_equal(values, expected(packed, powers))


def test_blocks_of_zeros_need_no_scale():
    packed, powers = weights([-100, *[0] * 11])
    packed[..., :16] = 0x80  # 0 and -0
    count, values = converted(packed, powers)
    assert count == 1
    np.testing.assert_array_equal(values, expected(packed, powers))
    assert np.signbit(values[..., 1:32:2]).all()
    assert converted(0 * packed, powers)[0] == 1


def test_all_16_values():
    packed = np.zeros((2, 8, INNER // 2), np.uint8)
    packed[..., :8] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    _, values = converted(packed, weights([0] * 12)[1])
    some = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    np.testing.assert_array_equal(values[0, 0, :16], some + [-value for value in some])


def test_shards_that_end_within_a_block_of_their_own_are_refused():
    with pytest.raises(UnsupportedError, match="12 blocks of 32 for 5 devices"):
        converted(*weights([-30] * 6 + [0] * 6), shards=5)
