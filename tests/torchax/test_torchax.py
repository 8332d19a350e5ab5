"""torch.ops.xla_gpu on torchax tensors: what torch and torchax promise about them holds."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torchax = pytest.importorskip("torchax", exc_type=ImportError)

import torch
import xla_gpu.torch
from compare import check_attention
from problems import SMALL, paged_attention_case
from torchax import interop
from torchax_calls import i32, ones, ops, tensors, zeros
from xla_gpu.jax import export_checks


@pytest.fixture
def case():
    return paged_attention_case(SMALL, np.random.default_rng(1))


@pytest.fixture
def args(case):
    named = tensors(case.args)
    indices = ("context_lens", "block_tables", "query_start_loc", "num_seqs")
    return [named[name] for name in ("query", "kv_cache", *indices)]


def attend(*args, **kwargs):
    return ops.paged_attention(*args, 0.25, **kwargs)


def hlo(function, *args):
    """The optimised HLO of a function of tensors."""
    arrays = interop.jax_view(args)
    return jax.jit(interop.jax_view(function)).lower(*arrays).compile().as_text()


# ---- Eager, jit, modules -------------------------------------------------------------------------


def test_outside_of_the_environment_too(case, args):
    check_attention(case, attend(*args).jax(), None)
    check_attention(case, interop.jax_jit(attend)(*args).jax(), None)


@pytest.mark.parametrize("overload", [ops.simple_add, ops.simple_add.default])
def test_packet_and_overload(overload, env):
    a = ones(3)
    np.testing.assert_array_equal(overload(a, a).jax(), [2, 2, 2])
    np.testing.assert_array_equal(overload(b=a, a=a + a).jax(), [3, 3, 3])


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "env"])
def test_the_functions_of_xla_gpu_torch(args, inside):
    with torchax.default_env() if inside else contextlib.nullcontext():
        out = xla_gpu.torch.paged_attention(*args, 0.25)
        key = ones(1, 2, 16)
        updated = xla_gpu.torch.update_kv_cache(key, key, args[1], i32(0))
    np.testing.assert_array_equal(out.jax(), attend(*args).jax())
    np.testing.assert_array_equal(updated.jax()[0, 0], np.ones((4, 16)))


def test_a_pair_and_numbers_for_tensors(case, args, env):
    query, cache, *indices, _ = args
    pair = cache[:, :, 0::2], cache[:, :, 1::2]
    number = int(case.args["num_seqs"][0])
    out = xla_gpu.torch.paged_attention(query, pair, *indices, number, 0.25, k_scale=1, v_scale=1.0)
    check_attention(case, out.jax(), None)


def test_ordinary_tensors_keep_their_way(env):
    a = torch.arange(3.0, device="cpu")
    result = ops.simple_add(a, a)
    assert type(result) is torch.Tensor and result.tolist() == [0, 2, 4]


def test_results_are_torchax_tensors_with_torchs_types(args):
    out, lse = ops.paged_attention_with_lse(*args, 0.25, out_dtype=torch.bfloat16)
    for tensor, shape, dtype in (
        (out, (12, 4, 16), torch.bfloat16),
        (lse, (12, 4), torch.float32),
    ):
        assert isinstance(tensor, torchax.tensor.Tensor)
        assert tuple(tensor.shape) == shape and tensor.dtype == dtype


def test_a_view_is_an_argument_like_any_other(case, args, env):
    query, cache, *rest = args
    both = torch.stack([query, query])
    check_attention(case, attend(both[1], cache, *rest).jax(), None)


def test_num_seqs_and_scales_without_a_dimension(case, args, env):
    *rest, num_seqs = args
    one = ones()
    check_attention(case, attend(*rest, num_seqs[0], k_scale=one, v_scale=one).jax(), None)


def test_one_typed_custom_call_a_call(args):
    text = hlo(attend, *args)
    (call,) = [line for line in text.splitlines() if "custom-call(" in line]
    assert 'custom_call_target="xla_gpu_paged_attention"' in call
    assert "API_VERSION_TYPED_FFI" in call
    assert "scale = 2.500000e-01" in call or "scale = 0.25" in call


def test_exported_as_the_jax_function_that_it_is(args):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    function = jax.jit(interop.jax_view(attend))
    arrays = interop.jax_view(args)
    exported = export.export(function, disabled_checks=export_checks())(*arrays)
    assert "custom_call @xla_gpu_paged_attention" in str(exported.mlir_module())
    np.testing.assert_array_equal(exported.call(*arrays), attend(*args).jax())


def test_two_calls_that_differ_in_attributes_only(args, env):
    both = interop.jax_jit(lambda *a: (attend(*a), ops.paged_attention(*a, 0.5)))
    one, other = both(*args)
    np.testing.assert_array_equal(one.jax(), attend(*args).jax())
    np.testing.assert_array_equal(other.jax(), ops.paged_attention(*args, 0.5).jax())
    assert not np.array_equal(one.jax(), other.jax())


class Block(torch.nn.Module):
    """The attention half of a decoder layer: projections, cache update, attention, residual."""

    def __init__(self, heads=4, kv_heads=2, dim=16, width=32):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * dim)
        self.out = torch.nn.Linear(heads * dim, width)

    def forward(self, hidden, cache, slot_mapping, *indices):
        shape = self.heads, self.kv_heads, self.kv_heads
        query, key, value = (
            self.qkv(self.norm(hidden)).reshape(-1, sum(shape), self.dim).split(shape, dim=1)
        )
        cache = ops.update_kv_cache(key, value, cache, slot_mapping)
        attended = ops.paged_attention(query, cache, *indices, self.dim**-0.5)
        return hidden + self.out(attended.flatten(1)), cache


@pytest.mark.parametrize("how", ["eager", "compile", "jit"])
def test_a_block_equals_torch_on_the_cpu(how, env):
    with torchax.disable_temporarily():
        torch.manual_seed(0)
        block = Block().requires_grad_(False)
        inputs = (
            torch.randn(5, 32),
            torch.randn(8, 4, 4, 16),
            torch.tensor([12, 13, 14, 20, 3], dtype=torch.int32),
            torch.tensor([7, 1, 4], dtype=torch.int32),
            torch.tensor([[5, 3], [5, 0], [0, 0]], dtype=torch.int32),
            torch.tensor([0, 3, 4, 5], dtype=torch.int32),
            torch.tensor([3], dtype=torch.int32),
        )
        want = block(*inputs)
        weights = block.state_dict()
    moved = [tensor.to("jax") for tensor in inputs]
    block = Block().requires_grad_(False).to("jax")
    block.load_state_dict(env.to_xla(weights))
    call = block
    if how == "compile":
        call = torchax.compile(block)
    elif how == "jit":
        jitted = interop.jax_jit(lambda w, *a: torch.func.functional_call(block, w, a))
        call = lambda *a: jitted(block.state_dict(), *a)  # noqa: E731
    with jax.default_matmul_precision("highest"):  # no TF32 on GPUs
        got = call(*moved)
    for one, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(one.jax(), expected.numpy(), rtol=2e-5, atol=2e-5)


# ---- In place ------------------------------------------------------------------------------------


def test_an_update_in_place_is_seen_by_the_tensor_only(args, env):
    cache = args[1]
    array = cache.jax()
    before = np.asarray(array).copy()
    key = ones(2, 2, 16)
    assert ops.update_kv_cache_(key, key, cache, i32(5, -1)) is None
    np.testing.assert_array_equal(array, before)  # JAX's arrays do not change
    want = before.copy()
    want[1, 1] = 1
    np.testing.assert_array_equal(cache.jax(), want)


def test_an_update_in_place_of_a_pair(env):
    keys, values = ones(4, 4, 2, 16), ones(4, 4, 2, 16)
    key = ones(1, 2, 16)
    ops.update_kv_cache_(key * 2, key * 3, keys, i32(6), v_cache=values)
    assert float(keys[1, 2, 0, 0].jax()) == 2 and float(values[1, 2, 0, 0].jax()) == 3
    assert float(keys.sum().jax()) == 4 * 4 * 2 * 16 + 32


def test_one_tensor_as_both_caches(env):
    key, cache = ones(1, 2, 8), zeros(6, 4, 2, 8)
    with pytest.raises(ValueError, match="kv_cache and v_cache are one tensor; each is written"):
        ops.update_kv_cache_(key, key, cache, zeros(1, dtype=jnp.int32), v_cache=cache)


def test_an_update_in_place_through_a_view(env):
    """One layer's cache within the array of all."""
    layers = zeros(3, 4, 4, 4, 16)
    key = ones(2, 2, 16)
    ops.update_kv_cache_(key, key, layers[1], i32(0, 15))
    np.testing.assert_array_equal(layers.jax().sum((1, 2, 3, 4)), [0, 128, 0])


def test_an_update_in_place_through_two_views_of_one_tensor(env):
    cache = zeros(4, 4, 4, 16)
    key = ones(1, 2, 16)
    even, odd = cache[:, :, 0::2], cache[:, :, 1::2]
    ops.update_kv_cache_(key, key + 1, even, i32(6), v_cache=odd)
    want = ops.update_kv_cache(key, key + 1, zeros(4, 4, 4, 16), i32(6))
    np.testing.assert_array_equal(cache.jax(), want.jax())


def test_slots_of_64_bits(env):
    """They are i64 where JAX has 64-bit types (torchax.enable_accuracy_mode)."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        slots = torch.tensor([6, -(1 << 40)], device="jax")
        assert slots.jax().dtype == jnp.int64
        key = ones(2, 2, 16)
        updated = ops.update_kv_cache(key, key, zeros(4, 4, 4, 16), slots)
    finally:
        jax.config.update("jax_enable_x64", before)
    np.testing.assert_array_equal(updated.jax().sum((2, 3)).nonzero(), [[1], [2]])


def test_a_functional_update_leaves_its_argument(args, env):
    cache = args[1]
    before = np.asarray(cache.jax()).copy()
    key = ones(1, 2, 16)
    updated = ops.update_kv_cache(key, key, cache, i32(0))
    np.testing.assert_array_equal(cache.jax(), before)
    np.testing.assert_array_equal(updated.jax()[0, 0], np.ones((4, 16)))


def write_in_place(cache, key, where):
    ops.update_kv_cache_(key, key, cache, where)
    return cache


def write(cache, key, where):
    return ops.update_kv_cache(key, key, cache, where)


@pytest.mark.parametrize("step", [write_in_place, write])
def test_a_donated_cache_is_updated_where_it_lies(step):
    jitted = interop.jax_jit(step, kwargs_for_jax_jit={"donate_argnums": 0})
    key, where = ones(2, 2, 16), i32(5, 7)
    jitted(ones(10, 4, 4, 16), key, where)  # compiled before pointers are compared
    cache = zeros(10, 4, 4, 16)
    pointer = cache.jax().unsafe_buffer_pointer()
    updated = jitted(cache, ones(2, 2, 16), where)
    assert updated.jax().unsafe_buffer_pointer() == pointer
    np.testing.assert_array_equal(updated.jax()[1, 1], np.ones((4, 16)))


def test_a_decode_loop_under_jit(args, env):
    """Each step writes a token in place and attends over the cache; lengths grow."""
    query = args[0][:3].jax()
    tables = interop.torch_view(jnp.arange(9, dtype=jnp.int32).reshape(3, 3))
    starts, num_seqs = i32(0, 1, 2, 3), i32(3)

    def step(cache, key, lengths):
        where = tables[:, 0] * 4 + lengths
        ops.update_kv_cache_(key, -key, cache, where)
        return attend(
            interop.torch_view(query), cache, lengths + 1, tables, starts, num_seqs
        ), cache

    jitted = interop.jax_jit(step, kwargs_for_jax_jit={"donate_argnums": 0})
    eager_cache, cache = ones(10, 4, 4, 16), ones(10, 4, 4, 16)
    for i in range(4):
        key, lengths = ones(3, 2, 16) * i, i32(i, i, i)
        want, _ = step(eager_cache, key, lengths)
        got, cache = jitted(cache, key, lengths)
        np.testing.assert_allclose(got.jax(), want.jax(), rtol=1e-6)
    np.testing.assert_array_equal(cache.jax(), eager_cache.jax())


# ---- What says no --------------------------------------------------------------------------------


def test_torchs_autograd_says_no(args, env):
    query, *rest = args
    weight = torch.nn.Parameter(ones(16))
    loss = attend(query * weight, *rest).sum()  # models run forward with gradients on
    with pytest.raises(NotImplementedError, match="xla_gpu::paged_attention has no gradient"):
        loss.backward()
    with pytest.raises(NotImplementedError, match="update_kv_cache_ has no gradient"):
        ops.update_kv_cache_(ones(1, 2, 16) * weight, ones(1, 2, 16), rest[0], i32(0))
    (attend((query * weight).detach(), *rest) * weight).sum().backward()
    want = attend(query, *rest).jax().sum((0, 1))
    np.testing.assert_allclose(weight.grad.jax(), want, rtol=1e-5, atol=1e-5)


def test_jaxs_gradient_says_no(args):
    query, *rest = args
    loss = interop.jax_value_and_grad(lambda q: attend(q, *rest).sum())
    with pytest.raises(NotImplementedError, match="paged_attention: differentiation is not"):
        loss(query)
    _, gradient = interop.jax_value_and_grad(lambda q: (attend(q.detach(), *rest) * q).sum())(query)
    np.testing.assert_allclose(gradient.jax(), attend(query, *rest).jax())
