"""Steps that XLA replays as CUDA graphs: lengths live on the device and change between replays.

A program of many small calls becomes a command buffer: its first run executes, its second captures,
later ones replay without a host call. Each run here is checked.
"""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jax_calls
import numpy as np
import pytest
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention
from problems import Case, Static, paged_attention_case
from xla_gpu.jax import paged_attention, update_kv_cache

CALLS = 20
RUNS = 7
BASE = Static(
    dtype="bfloat16",
    cache_dtype="bfloat16",
    tokens=16,
    q_heads=8,
    kv_heads=2,
    head_dim=128,
    pages=64,
    page_size=16,
    max_seqs=4,
    max_pages=40,
    scale=0.09,
    return_lse=True,
)
STATICS = {
    "mixed": BASE,
    "decode": dataclasses.replace(BASE, tokens=4),
    "prefill": dataclasses.replace(BASE, tokens=600, max_seqs=2),
    "f32": dataclasses.replace(BASE, dtype="float32", cache_dtype="float32"),
    "fp8": dataclasses.replace(BASE, cache_dtype="float8_e4m3fn", k_scale=2, v_scale=2),
    "window": dataclasses.replace(BASE, sliding_window=33, soft_cap=20.0, sinks=True),
}


@pytest.mark.parametrize("smallest_graph", [None, 1])
@pytest.mark.parametrize("name", STATICS)
def test_lengths_change_between_replays(name, smallest_graph):
    """With XLA's own threshold (five commands), and with every call in a graph."""
    static = STATICS[name]
    options = {"xla_gpu_graph_min_graph_size": smallest_graph} if smallest_graph else None

    def step(cases):
        return [jax_calls.attention(static, args) for args in cases]

    step = jax.jit(step, compiler_options=options)
    rng = np.random.default_rng(11)
    first = [paged_attention_case(static, rng) for _ in range(CALLS)]
    for _ in range(RUNS):
        # The same types each time; only what lies in the buffers differs.
        cases = [
            first[i] if i % 5 == 0 else paged_attention_case(static, rng) for i in range(CALLS)
        ]
        for case, (out, lse) in zip(cases, step([case.args for case in cases]), strict=True):
            check_attention(case, out, lse)


COUNTING_PROGRAM = """
import ctypes
import jax, jax.numpy as jnp
from xla_gpu import _lib
from xla_gpu.jax import paged_attention

Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
real_address, kept, calls = _lib.handler_address, [], 0

def counting_address(op, platform, api_version):
    handler = Handler(real_address(op, platform, api_version))

    def count(frame):
        global calls
        calls += 1
        return handler(frame)

    kept.append(Handler(count))
    return ctypes.cast(kept[-1], ctypes.c_void_p).value

_lib.handler_address = counting_address
args = (jnp.ones((4, 8, 64)), jnp.ones((32, 16, 4, 64)), jnp.full((4,), 20, jnp.int32),
        jnp.zeros((4, 4), jnp.int32), jnp.arange(5, dtype=jnp.int32), jnp.full((1,), 4, jnp.int32))

@jax.jit
def step(query, *rest):
    for _ in range(20):
        query = paged_attention(query, *rest, 0.125)
    return query

for i in range(8):
    before = calls
    jax.block_until_ready(step(*args))  # not kept, so that the next run may have its memory
    print(calls - before)
"""


def host_calls_of_each_run(flag):
    """How often XLA called the handler of paged_attention in each of eight runs of a step."""
    env = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    env["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flag
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", COUNTING_PROGRAM], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [int(line) for line in done.stdout.split()]


def test_replays_make_no_host_call():
    """Proof that XLA takes the calls into a command buffer: replays never reach the handler."""
    assert host_calls_of_each_run(" --xla_gpu_enable_command_buffer=")[1:] == [20] * 7
    with_graphs = host_calls_of_each_run("")
    print(f"host calls of each run of 20 calls: {with_graphs}")
    assert with_graphs[-3:] == [0, 0, 0]


def test_a_serving_loop_writes_and_reads_its_cache():
    """Each step writes its tokens in place and attends over them; lengths grow on the device."""
    layers, seqs, page_size, kv_heads, dim = 12, 3, 16, 2, 64
    rng = np.random.default_rng(5)
    tables = rng.permutation(30).astype(np.int32).reshape(seqs, 10)
    starts = np.arange(seqs + 1, dtype=np.int32)
    keys = rng.standard_normal((RUNS, layers, seqs, kv_heads, dim), np.float32)
    queries = rng.standard_normal((RUNS, layers, seqs, 8, dim), np.float32)

    def step(caches, lengths, key, query):
        slots = jnp.take_along_axis(tables, (lengths // page_size)[:, None], 1)[:, 0] * page_size
        slots = slots + lengths % page_size
        written, outs = [], []
        for layer, cache in enumerate(caches):
            cache = update_kv_cache(key[layer], -key[layer], cache, slots)
            outs.append(
                paged_attention(
                    query[layer],
                    cache,
                    lengths + 1,
                    jnp.asarray(tables),
                    jnp.asarray(starts),
                    jnp.array([seqs], jnp.int32),
                    0.125,
                )
            )
            written.append(cache)
        return written, lengths + 1, outs

    step = jax.jit(step, donate_argnums=0)
    caches = [jnp.zeros((30, page_size, 2 * kv_heads, dim)) for _ in range(layers)]
    truth = [np.zeros((30, page_size, 2 * kv_heads, dim), np.float32) for _ in range(layers)]
    lengths = jnp.array([0, 15, 31], jnp.int32)
    pointers = [cache.unsafe_buffer_pointer() for cache in caches]
    static = dataclasses.replace(
        BASE,
        dtype="float32",
        cache_dtype="float32",
        tokens=seqs,
        max_seqs=seqs,
        head_dim=dim,
        pages=30,
        max_pages=10,
        scale=0.125,
        return_lse=False,
    )
    for run in range(RUNS):
        before = np.asarray(lengths)
        caches, lengths, outs = step(caches, lengths, keys[run], queries[run])
        slots = tables[np.arange(seqs), before // page_size] * page_size + before % page_size
        for layer in range(layers):
            truth[layer] = update_oracle(keys[run, layer], -keys[run, layer], truth[layer], slots)
            args = {
                "query": queries[run, layer],
                "kv_cache": truth[layer],
                "context_lens": before + 1,
                "block_tables": tables,
                "query_start_loc": starts,
                "num_seqs": np.array([seqs], np.int32),
            }
            check_attention(Case(static, args, ""), outs[layer], None)
            np.testing.assert_array_equal(caches[layer], truth[layer])
    assert [cache.unsafe_buffer_pointer() for cache in caches] == pointers
