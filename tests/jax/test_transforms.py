"""The ops under JAX's transforms: what works gives the same numbers, what cannot says so."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import check_attention
from jax_calls import INDICES
from problems import SMALL, paged_attention_case
from xla_gpu.jax import (
    export_checks,
    paged_attention,
    ragged_paged_attention,
    register_all,
    simple_add,
    update_kv_cache,
)


@pytest.fixture
def case():
    return paged_attention_case(SMALL, np.random.default_rng(1))


@pytest.fixture
def args(case):
    return [jnp.asarray(case.args[name]) for name in ("query", "kv_cache", *INDICES)]


def attend(*args):
    return paged_attention(*args, 0.25)


def test_eager_and_jit(case, args):
    check_attention(case, attend(*args), None)
    check_attention(case, jax.jit(attend)(*args), None)


def test_hlo_has_one_typed_custom_call(args):
    text = jax.jit(attend).lower(*args).compile().as_text()
    calls = [line for line in text.splitlines() if "custom-call(" in line]
    assert len(calls) == 1
    assert 'custom_call_target="xla_gpu_paged_attention"' in calls[0]
    assert "API_VERSION_TYPED_FFI" in calls[0]
    assert "scale = 2.500000e-01" in calls[0] or "scale = 0.25" in calls[0]


def test_hlo_names_the_users_line(args):
    text = jax.jit(attend).lower(*args).compile().as_text()
    assert "xla_gpu/jax/_primitive.py" not in text


def test_scan_with_an_updated_cache(case, args):
    """A decode loop: each step writes a token into the cache and attends."""
    query, cache, _, tables, _, num_seqs = args
    steps = 5
    keys = jax.random.normal(jax.random.PRNGKey(0), (steps, 3, 2, 16))
    tables = jnp.arange(9, dtype=jnp.int32).reshape(3, 3)
    starts = jnp.array([0, 1, 2, 3], jnp.int32)
    queries = query[:3]

    def step(carry, key):
        cache, length = carry
        slots = tables[:, length // 4] * 4 + length % 4
        cache = update_kv_cache(key, -key, cache, slots)
        lengths = jnp.full((3,), length + 1, jnp.int32)
        return (cache, length + 1), attend(queries, cache, lengths, tables, starts, num_seqs)

    start = (cache, jnp.int32(0))
    (_, length), outs = jax.jit(lambda c: jax.lax.scan(step, c, keys))(start)
    with jax.disable_jit():
        (_, length), want = jax.lax.scan(step, start, keys)
    assert int(length) == steps and outs.shape == (steps, 3, 4, 16)
    np.testing.assert_array_equal(outs, want)


def test_remat_beside_a_gradient(args):
    """A checkpointed block differentiates around the op where its inputs are stopped."""
    query, *rest = args

    @jax.checkpoint
    def block(weight):
        return (attend(jax.lax.stop_gradient(query * weight), *rest) * weight).sum()

    gradient = jax.jit(jax.grad(block))(jnp.float32(1.5))
    np.testing.assert_allclose(gradient, attend(query * 1.5, *rest).sum(), rtol=1e-4)
    plain = jax.jit(jax.checkpoint(attend))(query, *rest)
    np.testing.assert_array_equal(plain, attend(query, *rest))


def test_cond_and_while(args):
    query, *rest = args
    picked = jax.jit(lambda p: jax.lax.cond(p, lambda: attend(query, *rest), lambda: query))(True)
    np.testing.assert_array_equal(picked, attend(query, *rest))
    looped = jax.jit(
        lambda q: jax.lax.fori_loop(0, 3, lambda _, q: attend(q, *rest).astype(q.dtype), q)
    )(query)
    want = functools.reduce(lambda q, _: attend(q, *rest), range(3), query)
    np.testing.assert_array_equal(looped, want)


def test_eval_shape_and_out_dtype(args):
    shapes = jax.eval_shape(
        lambda *a: paged_attention(*a, 0.25, return_lse=True, out_dtype=jnp.bfloat16), *args
    )
    assert shapes[0].shape == (12, 4, 16) and shapes[0].dtype == jnp.bfloat16
    assert shapes[1].shape == (12, 4) and shapes[1].dtype == jnp.float32


def test_map_is_the_remedy_for_vmap(args):
    query, *rest = args
    queries = jnp.stack([query, query + 1])
    outs = jax.jit(lambda q: jax.lax.map(lambda one: attend(one, *rest), q))(queries)
    np.testing.assert_array_equal(outs[1], attend(query + 1, *rest))


def test_constants_may_be_numbers(case, args):
    scaled = paged_attention(*args, 0.25, k_scale=2.0, v_scale=0.5, sinks=-1e30)
    arrays = paged_attention(
        *args,
        0.25,
        k_scale=jnp.array([2.0]),
        v_scale=jnp.array(0.5),
        sinks=jnp.full((4,), -1e30),
    )
    np.testing.assert_array_equal(scaled, arrays)
    number = int(case.args["num_seqs"][0])
    np.testing.assert_array_equal(attend(*args[:-1], number), attend(*args))


def test_ragged_paged_attention_is_the_tpu_signature(args):
    query, cache, lens, tables, starts, num_seqs = args
    out = jax.jit(
        lambda *a: ragged_paged_attention(
            *a,
            sm_scale=0.25,
            sliding_window=3,
            soft_cap=10.0,
            mask_value=-1e30,
            k_scale=2.0,
            v_scale=0.5,
            num_kv_pages_per_block=8,
            num_queries_per_block=32,
            vmem_limit_bytes=1 << 20,
        )
    )(query, cache, lens, tables, starts, num_seqs)
    want = paged_attention(*args, 0.25, 3, 10.0, k_scale=2.0, v_scale=0.5)
    np.testing.assert_array_equal(out, want)


def test_ragged_paged_attention_has_each_tpu_argument():
    import inspect

    tpu = pytest.importorskip("jax.experimental.pallas.ops.tpu.ragged_paged_attention")
    ours = inspect.signature(ragged_paged_attention).parameters
    theirs = inspect.signature(tpu.ragged_paged_attention).parameters
    if "kv_pages" not in theirs:
        pytest.skip("this jax has version 1 of the TPU kernel, with another cache")
    assert set(theirs) <= set(ours)
    assert list(theirs)[:6] == list(ours)[:6]


def test_donated_cache_is_updated_in_place(args):
    key = jnp.ones((2, 2, 16))
    slots = jnp.array([5, 7], jnp.int32)
    write = jax.jit(lambda c, k, v, s: update_kv_cache(k, v, c, s), donate_argnums=0)
    cache = args[1] + 0
    write(cache + 0, key, key, slots)  # compiled before pointers are compared
    pointer = cache.unsafe_buffer_pointer()
    updated = write(cache, key, key, slots)
    assert updated.unsafe_buffer_pointer() == pointer
    assert cache.is_deleted()
    np.testing.assert_array_equal(updated[1, 1, 0], np.ones(16))


def test_donated_pair_is_updated_in_place():
    pair = tuple(jnp.zeros((4, 4, 2, 16)) + i for i in range(2))
    key = jnp.ones((1, 2, 16))
    write = jax.jit(lambda c, k, s: update_kv_cache(k, k, c, s), donate_argnums=0)
    pointers = [one.unsafe_buffer_pointer() for one in pair]
    updated = write(pair, key, jnp.array([3], jnp.int32))
    assert [one.unsafe_buffer_pointer() for one in updated] == pointers


def test_undonated_cache_is_untouched(args):
    cache = args[1]
    before = np.asarray(cache).copy()
    key = jnp.ones((1, 2, 16))
    updated = jax.jit(update_kv_cache)(key, key, cache, jnp.array([0], jnp.int32))
    np.testing.assert_array_equal(cache, before)
    np.testing.assert_array_equal(updated[0, 0, 0], np.ones(16))


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda")])
def test_export_round_trip(args, platforms):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    pytest.importorskip("flatbuffers")

    def step(query, cache, lens, tables, starts, num_seqs, key, slots):
        cache = update_kv_cache(key, key, cache, slots)
        return attend(query, cache, lens, tables, starts, num_seqs), simple_add(query, query)

    args = [*args, jnp.ones((1, 2, 16)), jnp.array([1], jnp.int32)]
    if len(platforms) > 1:
        _skip_without_cuda_types(args)
    exported = export.export(jax.jit(step), platforms=platforms, disabled_checks=export_checks())(
        *args
    )
    register_all()
    revived = export.deserialize(bytearray(exported.serialize()))
    assert revived.platforms == platforms
    for got, want in zip(revived.call(*args), step(*args), strict=True):
        np.testing.assert_array_equal(got, want)


def _skip_without_cuda_types(args):
    from xla_gpu import ops

    if not all("CUDA" in op["platforms"] for op in ops() if op["name"] != "user_kernel"):
        pytest.skip("this library was built without the CUDA kernels")


def test_cuda_lowering_has_a_workspace(args):
    """Lowered for CUDA without a GPU: the same call with one more result, which JAX drops."""
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    _skip_without_cuda_types(args)
    exported = export.export(jax.jit(attend), platforms=["cuda"], disabled_checks=export_checks())(
        *args
    )
    assert [aval.shape for aval in exported.out_avals] == [(12, 4, 16)]
    lines = exported.mlir_module().splitlines()
    (call,) = [line for line in lines if "custom_call @xla_gpu_paged_attention" in line]
    assert re.search(r"-> \(tensor<12x4x16xf32>, tensor<\d+xui8>\)", call)


TRANSFORM_ERRORS = {
    "vmap attention": (
        lambda a: jax.vmap(lambda q: attend(q, *a[1:]))(a[0][None]),
        "paged_attention: vmap is not supported; .*jax.lax.map",
    ),
    "vmap update": (
        lambda a: jax.vmap(lambda k: update_kv_cache(k, k, a[1], jnp.zeros(1, jnp.int32)))(
            jnp.ones((2, 1, 2, 16))
        ),
        "update_kv_cache: vmap is not supported; .*jax.lax.map",
    ),
    "vmap add": (
        lambda a: jax.vmap(simple_add)(a[0], a[0]),
        "simple_add: vmap is not supported; .*whole batch",
    ),
    "grad attention": (
        lambda a: jax.grad(lambda q: attend(q, *a[1:]).sum())(a[0]),
        "paged_attention: differentiation is not supported; .*stop_gradient",
    ),
    "jvp update": (
        lambda a: jax.jvp(
            lambda k: update_kv_cache(k, k, a[1], jnp.zeros(1, jnp.int32)),
            (jnp.ones((1, 2, 16)),),
            (jnp.ones((1, 2, 16)),),
        ),
        "update_kv_cache: differentiation is not supported; .*stop_gradient",
    ),
}


@pytest.mark.parametrize("name", TRANSFORM_ERRORS)
def test_transform_errors(args, name):
    call, message = TRANSFORM_ERRORS[name]
    with pytest.raises(NotImplementedError, match=message):
        call(args)


@pytest.mark.parametrize("platform", ["tpu", "rocm"])
def test_unknown_platforms(args, platform):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    with pytest.raises(
        NotImplementedError, match=f"platform {platform} is not supported.*cpu, cud"
    ):
        export.export(jax.jit(attend), platforms=[platform], disabled_checks=export_checks())(*args)


def test_symbolic_shapes_are_refused(args):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    query = jax.ShapeDtypeStruct(export.symbolic_shape("t, 4, 16"), jnp.float32)
    with pytest.raises(ValueError, match=re.escape("export with concrete shapes")):
        export.export(jax.jit(attend))(query, *args[1:])
