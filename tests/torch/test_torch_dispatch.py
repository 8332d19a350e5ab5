"""The ops as citizens of torch: opcheck, compile, modes, autograd, views, threads."""

import threading

import pytest
import torch
import xla_gpu.torch
from torch.library import opcheck
from torch_calls import small_batch

ops = torch.ops.xla_gpu
CPP = pytest.mark.filterwarnings("ignore")  # Inductor's and Dynamo's own


def update_args(dtype=torch.float32, pair=False):
    generator = torch.Generator().manual_seed(3)
    key, value = (torch.randn(8, 2, 64, generator=generator).to(dtype) for _ in range(2))
    heads = 2 if pair else 4
    caches = [torch.randn(16, 16, heads, 64, generator=generator) for _ in range(1 + pair)]
    slots = torch.tensor([3, 17, -1, 5, 255, 256, 40, 41])
    return key, value, caches, slots


# ---- torch.library.opcheck ------------------------------------------------------------------

ATTENTION_OPTIONS = [
    {},
    {"sliding_window": 3, "soft_cap": 5.0},
    {"causal": False, "out_dtype": torch.bfloat16},
    {"sinks": torch.randn(8), "k_scale": torch.tensor(0.5), "v_scale": torch.ones(2)},
]


@pytest.mark.parametrize("options", ATTENTION_OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("name", ["paged_attention", "paged_attention_with_lse"])
def test_opcheck_attention(name, options):
    opcheck(getattr(ops, name).default, (*small_batch(), 0.125), options)


def test_opcheck_attention_of_a_pair():
    query, cache, *rest = small_batch(dtype=torch.bfloat16)
    k, v = (cache[:, :, i::2].contiguous() for i in (0, 1))
    opcheck(ops.paged_attention.default, (query, k, *rest, 0.125), {"v_cache": v})


def test_opcheck_simple_add():
    a = torch.arange(6.0).reshape(2, 3)
    opcheck(ops.simple_add.default, (a, a + 1))


@pytest.mark.parametrize("scaled", [False, True])
def test_opcheck_update(scaled):
    options = {"k_scale": torch.tensor(2.0), "v_scale": torch.ones(2)} if scaled else {}
    key, value, (cache,), slots = update_args()
    opcheck(ops.update_kv_cache.default, (key, value, cache, slots), options)
    opcheck(ops.update_kv_cache_.default, (key, value, cache.clone(), slots), options)
    key, value, (k, v), slots = update_args(pair=True)
    opcheck(ops.update_kv_cache_pair.default, (key, value, k, v, slots), options)
    in_place = {**options, "v_cache": v.clone()}
    opcheck(ops.update_kv_cache_.default, (key, value, k.clone(), slots), in_place)


# ---- torch.compile --------------------------------------------------------------------------


def decode_step(query, key, value, cache, slots, *rest):
    """In place, functional, both outputs, and ordinary torch around them."""
    xla_gpu.torch.update_kv_cache_(key, value, cache, slots)
    out = xla_gpu.torch.paged_attention(query * 1.5, cache, *rest, 0.125)
    capped, lse = ops.paged_attention_with_lse(query, cache, *rest, 0.125, 7, 20.0)
    moved = ops.update_kv_cache(key, value, cache, slots + 8)
    return out + 1, capped, lse, moved.sum()


@CPP
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(backend, dynamic):
    torch._dynamo.reset()
    step = torch.compile(decode_step, backend=backend, fullgraph=True, dynamic=dynamic)
    for tokens in (8, 9, 12):
        query, cache, *rest = small_batch(tokens=tokens)
        key, value = query[:, :2].contiguous(), query[:, 2:4].contiguous()
        slots = torch.arange(tokens) * 3 - 1
        caches = cache.clone(), cache.clone()
        want = decode_step(query, key, value, caches[0], slots, *rest)
        got = step(query, key, value, caches[1], slots, *rest)
        torch.testing.assert_close(got, want)
        assert torch.equal(*caches)
        assert not torch.equal(caches[0], cache)


@CPP
def test_compile_updates_a_pair_in_place():
    torch._dynamo.reset()

    def step(key, value, k, v, slots):
        xla_gpu.torch.update_kv_cache_(key, value, (k, v), slots, k_scale=2.0)
        return k.sum() + v.sum()

    key, value, (k, v), slots = update_args(pair=True)
    k2, v2 = k.clone(), v.clone()
    want = step(key, value, k, v, slots)
    got = torch.compile(step, fullgraph=True)(key, value, k2, v2, slots)
    torch.testing.assert_close(got, want)
    assert torch.equal(k, k2) and torch.equal(v, v2)


@CPP
def test_export():
    class Step(torch.nn.Module):
        def forward(self, *args):
            return xla_gpu.torch.paged_attention(*args, 0.125)

    args = tuple(small_batch())
    exported = torch.export.export(Step(), args)
    assert "xla_gpu.paged_attention" in str(exported.graph)
    torch.testing.assert_close(exported.module()(*args), Step()(*args))


@CPP
def test_make_fx_sees_the_op():
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda *args: xla_gpu.torch.paged_attention(*args, 0.125))(*small_batch())
    assert "xla_gpu.paged_attention" in traced.code


def test_profiler_sees_the_op():
    args = small_batch()
    with torch.profiler.profile() as profile:
        xla_gpu.torch.paged_attention(*args, 0.125)
    assert any(event.name == "xla_gpu::paged_attention" for event in profile.events())


def test_modes_see_the_op():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    args = small_batch()
    want = xla_gpu.torch.paged_attention(*args, 0.125)
    with Watch():
        got = xla_gpu.torch.paged_attention(*args, 0.125)
    assert "xla_gpu.paged_attention.default" in seen
    assert torch.equal(got, want)


# ---- Autograd -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paged_attention", "paged_attention_with_lse"])
@pytest.mark.parametrize("door", ["op", "function"])
def test_backward_says_that_there_is_no_gradient(name, door):
    query, *rest = small_batch()
    query.requires_grad_()
    if door == "op":
        out = getattr(ops, name)(query, *rest, 0.125)
    else:
        lse = name.endswith("lse")
        out = xla_gpu.torch.paged_attention(query, *rest, 0.125, return_lse=lse)
    out = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(
        out.detach(), xla_gpu.torch.paged_attention(query.detach(), *rest, 0.125)
    )
    with pytest.raises(NotImplementedError, match=f"xla_gpu::{name} has no gradient"):
        out.sum().backward()


def test_simple_add_and_update_have_no_gradient():
    a = torch.ones(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"simple_add has no gradient \(use a \+ b\)"):
        ops.simple_add(a, a).sum().backward()
    key, value, (cache,), slots = update_args()
    out = ops.update_kv_cache(key.requires_grad_(), value, cache, slots)
    with pytest.raises(NotImplementedError, match="update_kv_cache has no gradient"):
        out.sum().backward()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_parameters_are_fine_without_gradients(context):
    query, *rest = small_batch()
    sinks = torch.nn.Parameter(torch.randn(8))
    with context():
        out = ops.paged_attention(query.clone().requires_grad_(), *rest, 0.125, sinks=sinks)
        same = xla_gpu.torch.paged_attention(query, *rest, 0.125, sinks=sinks)
    assert not out.requires_grad and torch.equal(out, same)


def test_in_place_counts_a_version():
    key, value, (cache,), slots = update_args()
    weight = torch.ones(1, requires_grad=True)
    for update in (ops.update_kv_cache_, xla_gpu.torch.update_kv_cache_):
        product = (cache * weight).sum()  # backward needs the cache as it is now
        update(key, value, cache, slots)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_inference_tensors():
    key, value, (cache,), slots = update_args()
    want = ops.update_kv_cache(key, value, cache, slots)
    with torch.inference_mode():
        copy = cache.clone()
        xla_gpu.torch.update_kv_cache_(key, value, copy, slots)
        xla_gpu.torch.update_kv_cache_(key, value, cache, slots)
    assert torch.equal(copy, want) and torch.equal(cache, want)


# ---- Memory ---------------------------------------------------------------------------------


def test_views_give_the_same_numbers():
    args = small_batch()
    want = ops.paged_attention(*args, 0.125)
    query = args[0].transpose(0, 1).contiguous().transpose(0, 1)
    tables = args[3].t().contiguous().t()
    lens = torch.stack([args[2], args[2]], 1)[:, 0]
    assert not (query.is_contiguous() or tables.is_contiguous() or lens.is_contiguous())
    for _ in range(2):
        got = ops.paged_attention(query, args[1], lens, tables, *args[4:], 0.125)
        assert torch.equal(got, want)
    for function in (ops.paged_attention, xla_gpu.torch.paged_attention):
        assert torch.equal(function(torch._neg_view(-args[0]), *args[1:], 0.125), want)


def test_scales_of_other_shapes_and_dtypes():
    args = small_batch()
    want = ops.paged_attention(*args, 0.125, k_scale=torch.tensor([0.5]))
    for scale in (torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), torch.full((2,), 0.5)):
        assert torch.equal(ops.paged_attention(*args, 0.125, k_scale=scale), want)
    assert torch.equal(xla_gpu.torch.paged_attention(*args, 0.125, k_scale=0.5), want)
    count = args.pop()
    assert torch.equal(
        xla_gpu.torch.paged_attention(*args, 4, 0.125, k_scale=0.5),
        ops.paged_attention(*args, count.reshape(()), 0.125, k_scale=torch.tensor(0.5)),
    )


def test_in_place_refuses_arguments_in_the_cache():
    key, value, (cache,), slots = update_args()
    inside = cache.view(-1)[: key.numel()].view(key.shape)
    for name, wrong in (("key", (inside, value)), ("value", (key, inside))):
        with pytest.raises(ValueError, match=f"result kv_cache .* overlaps argument {name}"):
            ops.update_kv_cache_(*wrong, cache, slots)
    k = torch.zeros(16, 16, 2, 64)
    with pytest.raises(ValueError, match="result kv_cache .* overlaps result v_cache"):
        ops.update_kv_cache_(key, value, k, slots, v_cache=k)
    both = torch.zeros(2, 16, 16, 2, 64)  # neighbours do not overlap
    ops.update_kv_cache_(key, value, both[0], slots, v_cache=both[1])
    assert torch.equal(both, ops.update_kv_cache(key, value, torch.zeros_like(both), slots))


def test_empty_tensors():
    query, cache, lens, tables, starts, count = small_batch()
    none = ops.paged_attention(query[:0], cache, lens * 0, tables, starts * 0, count * 0, 0.125)
    assert none.shape == (0, 8, 64)
    out = ops.paged_attention(query, cache, lens[:0], tables[:0], starts[:1], count * 0, 0.125)
    assert torch.equal(out, torch.zeros_like(query))
    assert ops.simple_add(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)
    assert ops.simple_add(torch.tensor(1.0), torch.tensor(2.0)) == 3


def test_results_are_fresh():
    args = small_batch()
    first = ops.paged_attention(*args, 0.125)
    kept = first.clone()
    ops.paged_attention(args[0] * 2, *args[1:], 0.125)
    assert torch.equal(first, kept)


def test_threads():
    wants = {}
    batches = {n: small_batch(tokens=8 + n % 2) for n in range(6)}
    for n, args in batches.items():
        args[0] *= n + 1
        wants[n] = ops.paged_attention(*args, 0.125)
    wrong = []

    def work(n):
        for _ in range(50):
            got = ops.paged_attention(*batches[n], 0.125)
            if not torch.equal(got, wants[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_prepared_calls_do_not_grow_without_end(monkeypatch):
    from xla_gpu.torch import _kernels, _prepared

    monkeypatch.setattr(_kernels, "MAX_PREPARED", 8)
    for n in range(30):
        assert ops.simple_add(torch.ones(n), torch.ones(n)).sum() == 2 * n
    assert len(_prepared.thread.prepared) <= 8


def test_vmap_loops():
    a = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(torch.vmap(ops.simple_add)(a, a), 2 * a)


def test_calls_that_differ_in_what_the_short_key_leaves_out():
    """Same query and table shapes, another cache, strides or scales: never another's numbers."""
    query, cache, lens, *rest = small_batch()
    strided = torch.stack([lens, lens * 0], 1)[:, 0]
    sinks = torch.randn(8)
    calls = [
        ((query, cache, lens, *rest), {}),
        ((query, cache.bfloat16(), lens, *rest), {}),
        ((query, cache[:15].clone(), lens, rest[0].clamp(max=14), *rest[1:]), {}),
        ((query, cache, strided, *rest), {}),
        ((query.transpose(0, 1).contiguous().transpose(0, 1), cache, lens, *rest), {}),
        ((query, cache, lens, *rest), {"k_scale": torch.tensor(0.5)}),
        ((query, cache, lens, *rest), {"k_scale": torch.full((2,), 0.25)}),
        ((query, cache, lens, *rest), {"k_scale": torch.tensor(0.5, dtype=torch.float64)}),
        ((query, cache, lens, *rest), {"sinks": sinks}),
        ((query, cache.view(16, 16, 2, 2, 64)[:, :, :, 0].contiguous(), lens, *rest), {
            "v_cache": cache.view(16, 16, 2, 2, 64)[:, :, :, 1].contiguous()
        }),
    ]  # fmt: skip
    wants = [ops.paged_attention(*args, 0.125, **more).clone() for args, more in calls]
    assert torch.equal(wants[0], wants[-1]) and torch.equal(wants[5], wants[7])
    assert len({tuple(want.flatten().tolist()) for want in wants}) >= 5
    for turn in range(4):
        order = 1 if turn % 2 else -1
        for (args, more), want in zip(calls[::order], wants[::order]):
            assert torch.equal(ops.paged_attention(*args, 0.125, **more), want)
    bad = torch.zeros(4, dtype=torch.int64)
    for _ in range(2):
        with pytest.raises(ValueError, match="context_lens is i64"):
            ops.paged_attention(query, cache, bad, *rest, 0.125)
        with pytest.raises((ValueError, RuntimeError)):
            ops.paged_attention(query, torch.zeros(4, 4).to_sparse(), lens, *rest, 0.125)
        with torch.inference_mode(), pytest.raises(ValueError, match="kv_cache is None"):
            ops.paged_attention(query, None, lens, *rest, 0.125)
