"""merge_attention_states on one device; over devices it is in test_sharding.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_gpu.jax import merge_attention_states

T, H, D, KEYS = 5, 4, 8, 96


def attention(logits, values):
    """f64: the softmax of logits [T, H, keys] over values [keys, H, D], and its lse."""
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(logits).sum(-1))
    weights = np.exp(logits - np.where(np.isneginf(lse), 0, lse)[..., None])
    return np.einsum("thk,khd->thd", weights, values), lse


@pytest.fixture
def parts():
    """Three parts of the keys, the first row unseen by two of them, the second by all."""
    rng = np.random.default_rng(0)
    logits = 5 * rng.normal(size=(T, H, KEYS))
    logits[0, :, :64] = -np.inf
    logits[1] = -np.inf
    values = rng.normal(size=(KEYS, H, D))
    split = [slice(0, 32), slice(32, 64), slice(64, KEYS)]
    return attention(logits, values), [attention(logits[..., s], values[s]) for s in split]


@pytest.mark.parametrize("dtype, error", [("float32", 2e-6), ("bfloat16", 2e-2), ("float16", 2e-3)])
@pytest.mark.parametrize("stacked", [False, True])
def test_parts_become_the_whole(parts, dtype, error, stacked):
    (want, want_lse), each = parts
    outs = [jnp.asarray(out, dtype) for out, _ in each]
    lses = [jnp.asarray(lse, jnp.float32) for _, lse in each]
    if stacked:
        outs, lses = jnp.stack(outs), jnp.stack(lses)
    out, lse = jax.jit(merge_attention_states)(outs, lses)
    assert out.dtype == dtype and lse.dtype == jnp.float32
    np.testing.assert_allclose(out.astype(jnp.float32), want, atol=error)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-6)
    assert not out[1].any() and jnp.isneginf(lse[1]).all()


def test_an_invalid_sequence_of_one_part_is_nan(parts):
    outs = jnp.stack([jnp.asarray(out, jnp.float32) for out, _ in parts[1]])
    lses = jnp.stack([jnp.asarray(lse, jnp.float32) for _, lse in parts[1]])
    out, lse = merge_attention_states(outs.at[2, 3].set(jnp.nan), lses.at[2, 3].set(jnp.nan))
    assert jnp.isnan(out[3]).all() and jnp.isnan(lse[3]).all()
    assert jnp.isfinite(out.at[3].set(0)).all()


def test_logits_beyond_the_range_of_exp_are_right():
    outs = jnp.array([1.0, 3.0])[:, None, None, None]
    for shift in (-3e38, -1e4, 1e4, 3e38):
        out, lse = merge_attention_states(outs, jnp.full((2, 1, 1), shift))
        assert out.item() == 2 and lse.item() == pytest.approx(shift, rel=1e-4)


def test_parts_near_the_end_of_f32_have_a_finite_mean():
    outs = jnp.array([3e38, 3e38, 3e38])[:, None, None, None]
    out, lse = merge_attention_states(outs, jnp.zeros((3, 1, 1)))
    assert out.item() == pytest.approx(3e38, rel=1e-6)
    assert lse.item() == pytest.approx(np.log(3), rel=1e-6)


def test_a_part_beyond_f32_outweighs_the_others():
    outs = jnp.array([1.0, 3.0, 5.0])[:, None, None, None]
    for others in ([3.0, -jnp.inf], [3e38, 3e38]):
        out, lse = merge_attention_states(outs, jnp.array([jnp.inf, *others])[:, None, None])
        assert out.item() == 1 and jnp.isposinf(lse.item())
    # Of two of them nothing tells the weights.
    out, lse = merge_attention_states(outs, jnp.array([jnp.inf, 3, jnp.inf])[:, None, None])
    assert jnp.isnan(out.item()) and jnp.isposinf(lse.item())


OUT, LSE = jnp.zeros((T, H, D)), jnp.zeros((T, H))
WRONG = {
    "no parts": (([], []), "outs is empty; allowed is 1 or more"),
    "a part less": (
        ([OUT, OUT], [LSE]),
        r"lses is float32\[1, 5, 4\].* must be float32\[2, 5, 4\]",
    ),
    "unequal parts": (([OUT, OUT[1:]], [LSE, LSE]), r"outs have the shapes .*; they must be equal"),
    "one out": ((OUT, LSE), r"outs is float32\[5, 4, 8\]; allowed are f32, bf16"),
    "integers": (([OUT.astype(int)], [LSE]), r"outs is int32\[1, 5, 4, 8\]"),
    "lse of bf16": (([OUT], [LSE.astype("bfloat16")]), r"lses is bfloat16\[1, 5, 4\]"),
    "lse of heads first": (([OUT], [LSE.T]), r"lses is float32\[1, 4, 5\]"),
    "None": ((None, [LSE]), "outs is NoneType None; it must be an array"),
    "words": ((["out"], [LSE]), r"outs\[0\] is str 'out'; it must be an array"),
}


@pytest.mark.parametrize("args, message", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(args, message):
    with pytest.raises(ValueError, match=message):
        merge_attention_states(*args)
