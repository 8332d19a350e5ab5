"""torch.ops.xla_gpu on CUDA tensors: against float64, in graphs, on streams, compiled."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import xla_gpu.torch
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import paged_attention_case, random_static, update_case
from torch.library import opcheck
from torch_calls import (
    attention_function,
    attention_op,
    shifted,
    small_batch,
    to_numpy,
    torch_args,
    update_op,
)

GROUPS = 36
CASES_A_GROUP = 16
UPDATE_GROUPS = 12

ops = torch.ops.xla_gpu
QUIET = pytest.mark.filterwarnings("ignore")  # Inductor's and Dynamo's own


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram):
    rng = np.random.default_rng([270, group])
    static = random_static(rng)
    failures = []
    for number in range(CASES_A_GROUP):
        case = paged_attention_case(static, rng)
        door = attention_op if number % 2 else attention_function
        out, lse = door(static, torch_args(case, "cuda"))
        try:
            check_attention(case, to_numpy(out), None if lse is None else to_numpy(lse), histogram)
        except AssertionError as e:
            failures.append(f"case {number} ({case.bad or 'good'}): {str(e)[:300]}")
    assert not failures, f"{static}\n" + "\n".join(failures)


@pytest.mark.parametrize("group", range(UPDATE_GROUPS))
def test_update_kv_cache(group):
    rng = np.random.default_rng([280, group])
    static = random_static(rng)
    for number in range(CASES_A_GROUP):
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        want = want if isinstance(want, tuple) else (want,)
        args = torch_args(case, "cuda")
        caches = [args[name] for name in ("kv_cache", "v_cache") if name in args]
        in_place = number % 2 == 1
        for one, cache, expected in zip(update_op(args, in_place), caches, want, strict=True):
            assert (one.data_ptr() == cache.data_ptr()) == in_place
            check_cache(to_numpy(one), expected)


@pytest.mark.parametrize("group", range(8))
def test_views_that_start_anywhere(group, histogram):
    rng = np.random.default_rng([290, group])
    static = random_static(rng)
    for number in range(4):
        case = paged_attention_case(static, rng)
        args = torch_args(case, "cuda")
        args = {n: shifted(t, int(rng.integers(0, 20))) for n, t in args.items()}
        out, lse = attention_op(static, args)
        check_attention(case, to_numpy(out), None if lse is None else to_numpy(lse), histogram)
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        args = torch_args(case, "cuda")
        args = {n: shifted(t, int(rng.integers(0, 20))) for n, t in args.items()}
        got = update_op(args, number % 2 == 1)
        for one, expected in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            check_cache(to_numpy(one), expected)


def test_a_view_is_captured_after_its_first_call():
    query, cache, *rest = small_batch("cuda", torch.bfloat16)
    query = shifted(query)
    ops.paged_attention(query.clone(), cache, *rest, 0.3)
    message = "query lies at address .*, no multiple of 16, .* call it once before the capture"
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        query + 1
        with pytest.raises(xla_gpu.XlaGpuError, match=message):
            ops.paged_attention(query, cache, *rest, 0.3)
    graph, out = capture(lambda: ops.paged_attention(query, cache, *rest, 0.3))
    query.normal_()
    graph.replay()
    want = ops.paged_attention(query.clone(), cache, *rest, 0.3)
    torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


def test_simple_add():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        a = torch.arange(1000, device="cuda").to(dtype)
        assert torch.equal(ops.simple_add(a, a), a + a)


# ---- As a citizen of torch ------------------------------------------------------------------


def step(query, key, value, cache, slots, *rest):
    xla_gpu.torch.update_kv_cache_(key, value, cache, slots)
    out = xla_gpu.torch.paged_attention(query * 1.5, cache, *rest, 0.125)
    capped, lse = ops.paged_attention_with_lse(query, cache, *rest, 0.125, 7, 20.0)
    return out + 1, capped, lse, ops.update_kv_cache(key, value, cache, slots + 8).sum()


def step_args(tokens=8, dtype=torch.bfloat16):
    query, cache, *rest = small_batch("cuda", dtype, tokens)
    key, value = query[:, :2].contiguous(), query[:, 2:4].contiguous()
    slots = torch.arange(tokens, device="cuda") * 3 - 1
    return [query, key, value, cache, slots, *rest]


def test_opcheck():
    query, key, value, cache, slots, *rest = step_args(dtype=torch.float32)
    sinks = torch.randn(8, device="cuda")
    opcheck(ops.simple_add.default, (query, query))
    opcheck(ops.paged_attention.default, (query, cache, *rest, 0.125))
    opcheck(ops.paged_attention_with_lse.default, (query, cache, *rest, 0.125), {"sinks": sinks})
    opcheck(ops.update_kv_cache.default, (key, value, cache, slots))
    opcheck(ops.update_kv_cache_.default, (key, value, cache.clone(), slots))


@QUIET
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(mode, dynamic):
    if mode == "reduce-overhead" and dynamic:
        pytest.skip("CUDA graph trees are for static shapes")
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, mode=mode)
    for tokens in (8, 9, 8, 8):
        args = step_args(tokens)
        theirs = [*args[:3], args[3].clone(), *args[4:]]
        want = step(*args)
        got = [t.clone() for t in compiled(*theirs)]
        torch.testing.assert_close(got, list(want), rtol=2e-2, atol=2e-2)
        assert torch.equal(args[3], theirs[3])


def capture(function):
    """A graph of function(), captured as torch's manual says; and what it returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def test_graph_with_changing_lengths():
    """One captured decode step serves every later step: lengths and tables stay on the device."""
    torch.manual_seed(0)
    seqs, pages, page_size = 6, 64, 16
    i32 = dict(dtype=torch.int32, device="cuda")
    bf16 = dict(dtype=torch.bfloat16, device="cuda")
    query, key, value = (torch.zeros(seqs, heads, 128, **bf16) for heads in (8, 2, 2))
    cache = torch.randn(pages, page_size, 4, 128, **bf16)
    lens, starts = torch.ones(seqs, **i32), torch.arange(seqs + 1, **i32)
    tables, count = torch.zeros(seqs, 8, **i32), torch.zeros(1, **i32)
    slots = torch.zeros(seqs, dtype=torch.int64, device="cuda")

    def run(cache):
        ops.update_kv_cache_(key, value, cache, slots)
        return ops.paged_attention(query, cache, lens, tables, starts, count, 0.1, 50, 30.0)

    graph, out = capture(lambda: run(cache))
    for number in range(20):
        for tensor in (query, key, value):
            tensor.normal_()
        count.fill_(number % seqs + 1)
        lens.random_(1, 8 * page_size)
        tables.copy_(torch.randperm(pages, device="cuda")[: seqs * 8].view(seqs, 8))
        slots.copy_(tables.long().gather(1, ((lens.long() - 1) // page_size)[:, None])[:, 0])
        slots.mul_(page_size).add_((lens - 1) % page_size)
        expected_cache = cache.clone()
        want = run(expected_cache)
        graph.replay()
        assert torch.equal(out, want), f"replay {number}"
        assert torch.equal(cache, expected_cache)


def test_side_stream_without_synchronisation():
    query, cache, *rest = small_batch("cuda", torch.bfloat16)
    want = ops.paged_attention(query, cache, *rest, 0.125)
    source = query.clone()
    query.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        query.copy_(source)
        got = ops.paged_attention(query, cache, *rest, 0.125)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(got, want)


def test_a_new_thread_has_a_context():
    args = small_batch("cuda")
    want = ops.paged_attention(*args, 0.125)
    torch.cuda.synchronize()
    got = []
    thread = threading.Thread(target=lambda: got.append(ops.paged_attention(*args, 0.125)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert got and torch.equal(got[0], want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one():
    want = ops.paged_attention(*small_batch("cuda:0"), 0.125)
    for _ in range(2):
        got = ops.paged_attention(*small_batch("cuda:1"), 0.125)
        assert got.device.index == 1 and torch.cuda.current_device() == 0
        torch.testing.assert_close(got.cpu(), want.cpu())
    with pytest.raises(ValueError, match="must be on one device"):
        ops.simple_add(torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1"))


def test_same_inputs_same_bits_and_no_memory_kept():
    args = small_batch("cuda", torch.bfloat16)
    want = ops.paged_attention(*args, 0.125)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        assert torch.equal(ops.paged_attention(*args, 0.125), want)
    assert torch.cuda.memory_allocated() == before


def test_inference_mode_and_views():
    query, cache, *rest = small_batch("cuda", torch.bfloat16)
    want = ops.paged_attention(query, cache, *rest, 0.125)
    with torch.inference_mode():
        assert torch.equal(ops.paged_attention(query, cache, *rest, 0.125), want)
    view = query.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(ops.paged_attention(view, cache, *rest, 0.125), want)


BAD_DEVICES = [
    ("query", "kv_cache .* is on cuda:0 but query is on cpu"),
    ("kv_cache", "kv_cache .* is on cpu but query is on cuda:0"),
    ("num_seqs", "num_seqs .* is on cpu but query is on cuda:0"),
    ("block_tables", "block_tables .* is on cpu but query is on cuda:0"),
]


@pytest.mark.parametrize(("name", "message"), BAD_DEVICES)
def test_mixed_devices(name, message):
    names = ("query", "kv_cache", "context_lens", "block_tables", "query_start_loc", "num_seqs")
    args = dict(zip(names, small_batch("cuda")))
    args[name] = args[name].cpu()
    for function in (ops.paged_attention, xla_gpu.torch.paged_attention):
        with pytest.raises(ValueError, match=message):
            function(**args, scale=0.125)
    torch.cuda.synchronize()


def test_no_gradient():
    query, *rest = small_batch("cuda")
    out = ops.paged_attention(query.requires_grad_(), *rest, 0.125)
    with pytest.raises(NotImplementedError, match="xla_gpu::paged_attention has no gradient"):
        out.sum().backward()


BATCH_INVARIANT = """
import torch, xla_gpu.torch
torch.manual_seed(0)
i32 = dict(dtype=torch.int32, device="cuda")
lens = [3000, 17, 900, 2049, 1]
query = torch.randn(5, 32, 128, dtype=torch.bfloat16, device="cuda")
cache = torch.randn(1024, 16, 16, 128, dtype=torch.bfloat16, device="cuda")
tables = torch.randperm(1024, device="cuda")[:960].view(5, 192).int()
def run(rows):  # the shapes stay, as they choose the kernel; the rest of the batch is padding
    n = len(rows)
    rows = torch.tensor(rows + [0] * (5 - n), device="cuda")
    starts = torch.arange(6, **i32).clamp(max=n)
    out = xla_gpu.torch.paged_attention(
        query[rows], cache, torch.tensor(lens, **i32)[rows], tables[rows], starts, n, 0.1)
    return out[:n]
whole = run([0, 1, 2, 3, 4])
for row in range(5):
    assert torch.equal(run([row])[0], whole[row]), row
assert torch.equal(run([3, 0]), whole[[3, 0]])
"""


def test_batch_invariant():
    path = os.pathsep.join(sys.path)
    env = dict(os.environ, XLA_GPU_BATCH_INVARIANT="1", PYTHONPATH=path)
    subprocess.run([sys.executable, "-c", BATCH_INVARIANT], check=True, env=env)
