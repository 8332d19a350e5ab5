"""What test_sharding.py runs in a process of its own, with four CPU devices.

Prints one JSON line: per scenario the largest difference from the unsharded call, the collectives
in the optimised HLO, and the custom calls' operand shapes.
"""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

import dataclasses
import functools
import inspect
from unittest import mock

import jax
import jax.numpy as jnp
import jax_calls
import numpy as np
import ragged_v3
import xla_gpu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import OF_TOKENS, Static, paged_attention_case, update_case
from xla_gpu._schema import schema
from xla_gpu.jax import (
    _merge,
    _rules,
    all_reduce,
    export_checks,
    grouped_matmul,
    merge_attention_states,
    quantize_rows,
    rotary_embedding,
    simple_add,
)

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map
try:
    from jax import export  # needs absl-py or flatbuffers in some releases
except ImportError:
    export = None

HAS_UNREDUCED = hasattr(jax.sharding, "ManualAxisType")  # jax 0.10
COLLECTIVE = re.compile(r"= (\S+) (all-gather|all-reduce|all-to-all|collective-permute)\(")

BASE = Static(
    dtype="float32",
    cache_dtype="float32",
    tokens=32,
    q_heads=16,
    kv_heads=4,
    head_dim=32,
    pages=24,
    page_size=8,
    max_seqs=4,
    max_pages=6,
    scale=0.2,
    sinks=True,
    k_scale=4,
    v_scale=1,
    return_lse=True,
)


def attention_call(static):
    return functools.partial(jax_calls.attention, static)


def cache_spec(static, pages=None, heads=None):
    lead = (None,) if static.layout == "stacked" else ()
    return P(*lead, pages, None, heads, None)


def largest_difference(got, want):
    """Of two trees of arrays, which must be NaN and -inf in the same places."""
    difference = 0.0
    for a, b in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_array_equal(np.isneginf(a), np.isneginf(b))
        both = np.isfinite(a)
        difference = max(difference, np.abs(a - b)[both].max(initial=0.0))
    return float(difference)


def run(call, args, mesh, specs):
    """The sharded program's (difference from one device, collectives, shapes of the call)."""
    want = jax.jit(call)(args)
    placed = {
        name: jax.device_put(array, NamedSharding(mesh, specs.get(name, P())))
        for name, array in args.items()
    }
    compiled = jax.jit(call).lower(placed).compile()
    got = compiled(placed)
    text = compiled.as_text()
    calls = [line for line in text.splitlines() if 'custom_call_target="xla_gpu_' in line]
    calls += [line for line in text.splitlines() if 'custom_call_target="XlaGpu' in line]
    result_specs = [str(leaf.sharding.spec) for leaf in jax.tree_util.tree_leaves(got)]
    return {
        "difference": largest_difference(got, want),
        "collectives": [" ".join(found) for found in COLLECTIVE.findall(text)],
        "custom_calls": len(calls),
        "hlo": calls[0].strip() if calls else "",
        "result_specs": result_specs,
    }


def attention_scenarios(mesh):
    scenarios = {}

    def add(name, static, specs, seed=0):
        case = paged_attention_case(static, np.random.default_rng(seed))
        scenarios[name] = run(attention_call(static), case.args, mesh, specs)

    for layout in ("interleaved", "pair", "stacked"):
        static = dataclasses.replace(BASE, layout=layout)
        cache = cache_spec(static, heads=("x", "y"))
        heads = P(None, ("x", "y"), None)
        specs = {"query": heads, "kv_cache": cache, "v_cache": cache}
        specs |= {"sinks": P(("x", "y")), "k_scale": P(("x", "y"))}
        add(f"heads/{layout}", static, specs)
    of_tokens = dataclasses.replace(BASE, k_scale=OF_TOKENS)
    specs["k_scale"] = P(None, None, ("x", "y"))
    specs["kv_cache"] = cache_spec(of_tokens, heads=("x", "y"))
    add("heads/scales_of_tokens", of_tokens, specs)
    # More devices than kv heads: the cache is split over x, whole over y.
    few = dataclasses.replace(BASE, kv_heads=2, k_scale=2)
    heads = {"query": P(None, ("x", "y"), None), "kv_cache": cache_spec(few, heads="x")}
    add("heads/gqa_over_both", few, heads | {"sinks": P(("x", "y")), "k_scale": P("x")})
    mqa = dataclasses.replace(BASE, kv_heads=1, k_scale=1)
    add("heads/mqa", mqa, {"query": P(None, ("x", "y"), None), "sinks": P(("x", "y"))})
    # Query rows of all sequences over the devices: twelve ragged batches, bad indices included.
    for seed in range(12):
        static = dataclasses.replace(
            BASE, sliding_window=(0, 5)[seed % 2], causal=seed % 4 != 2, k_scale=0
        )
        add(f"rows/{seed}", static, {"query": P(("x", "y"), None, None)}, seed)
    both = {"query": P("x", "y", None), "kv_cache": cache_spec(BASE, heads="y")}
    add("rows_and_heads", BASE, both | {"sinks": P("y"), "k_scale": P("y")})
    # Index arguments split over sequences: needed whole, so these (and nothing else) are gathered.
    split = {"query": P("x", None, None), "context_lens": P("x"), "block_tables": P("x", None)}
    add("split_indices", BASE, split)
    # A window without a causal mask needs whole sequences: right, though gathered.
    wide = dataclasses.replace(BASE, causal=False, sliding_window=5)
    add("rows/not_causal_window", wide, {"query": P("x", None, None)})
    # A cache split over pages has to be gathered: right all the same.
    add("pages", BASE, {"kv_cache": cache_spec(BASE, pages="x")})
    return scenarios


def update_scenarios(mesh):
    scenarios = {}
    for layout in ("interleaved", "pair", "stacked"):
        static = dataclasses.replace(
            BASE, layout=layout, cache_dtype="float8_e4m3fn", v_scale=OF_TOKENS
        )
        case = update_case(static, np.random.default_rng(3))
        for name, pages, heads in (
            ("heads", None, ("x", "y")),
            ("pages", ("x", "y"), None),
            ("pages_and_heads", "x", "y"),
        ):
            cache = cache_spec(static, pages, heads)
            token = P(None, heads, None)
            specs = {"key": token, "value": token, "kv_cache": cache, "v_cache": cache}
            specs |= {"k_scale": P(heads), "v_scale": P(pages, None, heads)}
            scenarios[f"update/{name}/{layout}"] = run(jax_calls.update, case.args, mesh, specs)
    return scenarios


def shard_map_scenarios(mesh):
    """Sequences over devices, each with its own rows, pages and local block tables."""
    devices = mesh.size
    axes = ("x", "y")
    static = dataclasses.replace(BASE, k_scale=0, v_scale=0)
    cases = [
        paged_attention_case(static, np.random.default_rng([9, i])).args for i in range(devices)
    ]
    whole = {n: np.concatenate([c[n] for c in cases]) for n in cases[0] if n != "sinks"}
    whole["sinks"] = cases[0]["sinks"]
    for case in cases:
        case["sinks"] = whole["sinks"]
    call = attention_call(static)
    specs = {name: P(axes) for name in whole}
    specs["sinks"] = P()
    mapped = shard_map(call, mesh=mesh, in_specs=(specs,), out_specs=(P(axes), P(axes)))
    placed = {n: jax.device_put(a, NamedSharding(mesh, specs[n])) for n, a in whole.items()}
    compiled = jax.jit(mapped).lower(placed).compile()
    got = compiled(placed)
    want = [jnp.concatenate(parts) for parts in zip(*map(call, cases), strict=True)]
    difference = max(
        float(np.abs(np.nan_to_num(np.asarray(a) - np.asarray(b))).max())
        for a, b in zip(got, want, strict=True)
    )
    text = compiled.as_text()
    found = [" ".join(match) for match in COLLECTIVE.findall(text)]
    count = text.count('custom_call_target="xla_gpu_paged_attention"')
    result = {"difference": difference, "collectives": found, "custom_calls": count}
    return {"shard_map/sequences": result | {"hlo": "", "result_specs": []}}


def manual_axes_scenario(mesh):
    """JAX knows over which axes a result varies: a loop carries it, no spec takes it for whole."""
    a, b = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones((2, 2), np.float32)
    split, whole = P(("x", "y")), P()

    def loop(a, b):
        return jax.lax.fori_loop(0, 3, lambda _, sum: simple_add(sum, b), a)

    def of_parts(a):
        parts = jax.lax.pcast(a, ("x", "y"), to="varying")
        return simple_add(jax.lax.pcast(parts, ("x", "y"), to="unreduced"), a)

    def refusal(f, specs, args):
        try:
            jax.jit(shard_map(f, mesh=mesh, in_specs=specs, out_specs=whole))(*args)
        except ValueError as error:
            return str(error)
        return ""

    mapped = shard_map(loop, mesh=mesh, in_specs=(split, whole), out_specs=split)
    got = jax.jit(mapped)(a, b[:1])
    return {
        "difference": largest_difference(got, a + 3),
        "varying": refusal(simple_add, (split, split), (a, a)),
        "unreduced": refusal(of_parts, (whole,), (a,)) if HAS_UNREDUCED else None,
    }


def all_reduce_scenario(mesh):
    """Lowered for CUDA, without a GPU: in shard_map, and where each device would add the whole."""
    split = P(("x", "y"))
    x = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, split))

    def lower(devices, how):
        call = how(functools.partial(all_reduce, devices=devices))
        try:
            exported = export.export(
                jax.jit(call), platforms=["cuda"], disabled_checks=export_checks()
            )(x)
            return "xla_gpu_all_reduce" in exported.mlir_module()
        except ValueError as error:
            return str(error)

    mapped = functools.partial(shard_map, mesh=mesh, in_specs=split, out_specs=split)
    return {
        "four": lower("0,1,2,3", mapped),
        "five": lower("0,1,2,3,4", mapped),
        "plain": lower("0,1", lambda call: call),
    }


def merged_scenario(mesh, seed):
    """A batch whose pages are dealt to the devices in turn; each attends to its own."""
    static = dataclasses.replace(BASE, causal=False, max_pages=8, out_dtype="float32")
    args = paged_attention_case(static, np.random.default_rng(seed)).args
    want = jax.jit(attention_call(static))(args)
    devices, axes, size = mesh.size, ("x", "y"), static.page_size
    lens, tables, sinks = args["context_lens"], args["block_tables"], args["sinks"]
    full, rest = lens // size, lens % size
    wrong = (lens < 0) | (lens > static.max_pages * size)
    own = {
        "context_lens": [
            np.where(wrong, -1, (full + devices - 1 - d) // devices * size)
            + np.where(~wrong & (full % devices == d), rest, 0)
            for d in range(devices)
        ],
        "block_tables": [tables[:, d::devices] for d in range(devices)],
        "sinks": [sinks if d == 0 else np.full_like(sinks, -np.inf) for d in range(devices)],
    }
    args |= {name: np.concatenate(parts) for name, parts in own.items()}
    specs = {name: P(axes) if name in own else P() for name in args}
    local = dataclasses.replace(static, max_pages=static.max_pages // devices)

    def attend(args):
        out, lse = attention_call(local)(args)
        return merge_attention_states([out], [lse], axes)

    mapped = shard_map(attend, mesh=mesh, in_specs=(specs,), out_specs=(P(), P()))
    placed = {n: jax.device_put(a, NamedSharding(mesh, specs[n])) for n, a in args.items()}
    small = mock.patch.object(_merge, "_SMALL", _merge._SMALL if seed % 2 else 0)
    with small:  # of few numbers, or joined as many are
        compiled = jax.jit(mapped).lower(placed).compile()
    text = compiled.as_text()
    return {
        "difference": largest_difference(compiled(placed), want),
        "collectives": re.findall(r" (all-\w+|collective-permute)\(", text),
    }


V3 = ragged_v3.V3Static(dataclasses.replace(BASE, sinks=False, k_scale=0, v_scale=0), v_scale=1.5)
V3_HD64 = dataclasses.replace(
    V3, base=dataclasses.replace(V3.base, head_dim=64, sinks=True), hd64=True
)


def v3_static(static, cache_dtype="float32", kv_heads=4):
    base = dataclasses.replace(static.base, cache_dtype=cache_dtype, kv_heads=kv_heads)
    return dataclasses.replace(static, base=base)


def v3_specs(tokens, heads):
    """Where tpu-inference puts the arguments: tokens, pages and metadata over one axis."""
    token, data = P(tokens, heads, None), P(tokens)
    specs = dict.fromkeys(("queries", "keys", "values"), token)
    specs |= dict.fromkeys(("kv_lens", "page_indices", "cu_q_lens", "distribution"), data)
    return specs | {"kv_cache": P(tokens, None, heads, None, None), "attention_sink": P(heads)}


def finite_v3_case(static, seed):
    args = ragged_v3.v3_case(static, np.random.default_rng(seed)).args
    cache = np.nan_to_num(args["kv_cache"].astype(np.float32))
    return args | {"kv_cache": cache.astype(args["kv_cache"].dtype)}


def v3_scenarios(mesh):
    """Plain jit: over heads where whole 32 bits of the cache fall to a device, else gathered."""
    scenarios = {}
    for name, static, heads in (
        ("f32", V3, ("x", "y")),
        ("bf16", v3_static(V3, "bfloat16"), ("x", "y")),
        ("fp8", v3_static(V3, "float8_e4m3fn"), "x"),
        ("mha", v3_static(V3, "bfloat16", 16), ("x", "y")),
        ("hd64/f32", V3_HD64, ("x", "y")),
        ("hd64/bf16", v3_static(V3_HD64, "bfloat16"), "y"),
        ("odd/bf16", v3_static(V3_HD64, "bfloat16", 1), "x"),
    ):
        specs = v3_specs(None, heads)
        if name.startswith("odd"):
            specs |= {n: P() for n in ("keys", "values", "kv_cache", "attention_sink")}
        call = functools.partial(jax_calls.ragged_v3, static)
        scenarios[f"v3/{name}"] = run(call, finite_v3_case(static, 5), mesh, specs)
    return scenarios


def v3_shard_map_scenarios(mesh):
    """As tpu-inference calls it: data parallel over x, heads over y, checks off."""
    scenarios = {}
    check = "check_vma" if "check_vma" in inspect.signature(shard_map).parameters else "check_rep"
    for name, static in (("v3", v3_static(V3, "bfloat16")), ("hd64", V3_HD64)):
        cases = [finite_v3_case(static, [6, i]) for i in range(2)]
        whole = {n: np.concatenate([c[n] for c in cases]) for n in cases[0]}
        if static.hd64:
            whole["attention_sink"] = cases[1]["attention_sink"] = cases[0]["attention_sink"]
        call = functools.partial(jax_calls.ragged_v3, static)
        specs = {n: spec for n, spec in v3_specs("x", "y").items() if n in whole}
        out_specs = (specs["queries"], specs["kv_cache"])
        mapped = shard_map(
            call, mesh=mesh, in_specs=(specs,), out_specs=out_specs, **{check: False}
        )
        placed = {n: jax.device_put(a, NamedSharding(mesh, specs[n])) for n, a in whole.items()}
        cache = placed.pop("kv_cache")
        step = jax.jit(
            lambda cache, args, mapped=mapped: mapped({**args, "kv_cache": cache}), donate_argnums=0
        )
        compiled = step.lower(cache, placed).compile()
        pointers = [shard.data.unsafe_buffer_pointer() for shard in cache.addressable_shards]
        got = compiled(cache, placed)
        after = [shard.data.unsafe_buffer_pointer() for shard in got[1].addressable_shards]
        want = [jnp.concatenate(parts) for parts in zip(*map(call, cases), strict=True)]
        text = compiled.as_text()
        scenarios[f"v3/shard_map/{name}"] = {
            "difference": largest_difference(got, want),
            "collectives": [" ".join(match) for match in COLLECTIVE.findall(text)],
            "custom_calls": text.count('custom_call_target="xla_gpu_ragged_paged_attention_v3"'),
            "in_place": pointers == after,
        }
    return scenarios


def elementwise_scenario(mesh):
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    spec = P("x", "y")
    call = lambda args: simple_add(args["a"], args["b"])  # noqa: E731
    return {"simple_add": run(call, {"a": a, "b": a}, mesh, {"a": spec, "b": spec})}


def grouped_matmul_scenario(mesh):
    """Over columns; K and the groups are whole."""
    rng = np.random.default_rng(0)
    args = {
        "lhs": rng.normal(size=(10, 16)).astype(np.float32),
        "rhs": rng.integers(-99, 99, (3, 16, 24)).astype(np.int8),
        "group_sizes": np.array([3, 0, 5], np.int32),
        "rhs_scale": rng.uniform(1, 2, (3, 2, 24)).astype(np.float32),
    }
    columns = P(None, None, ("x", "y"))
    specs = {"rhs": columns, "rhs_scale": columns}
    return {"grouped_matmul": run(lambda args: grouped_matmul(**args), args, mesh, specs)}


def quantize_rows_scenario(mesh):
    """Over rows; a row is whole on its device."""
    rng = np.random.default_rng(0)
    args = {
        "x": rng.normal(size=(8, 32)).astype(np.float32),
        "norm_weight": rng.normal(size=16).astype(np.float32),
        "row_factor": rng.normal(size=8).astype(np.float32),
        "column_factor": rng.normal(size=32).astype(np.float32),
    }

    def call(args):
        rows, scale = quantize_rows(**args, activation="silu_mul")
        return rows.astype(np.float32), scale

    return {"quantize_rows": run(call, args, mesh, {"x": P(("x", "y"))})}


def rotary_embedding_scenario(mesh):
    """Over tokens; the table is whole."""
    rng = np.random.default_rng(0)
    args = {
        "qkv": rng.normal(size=(8, 64)).astype(np.float32),
        "positions": rng.integers(0, 32, 8).astype(np.int32),
        "cos_sin": rng.normal(size=(32, 12)).astype(np.float32),
        "q_norm": rng.normal(size=16).astype(np.float32),
        "k_norm": rng.normal(size=16).astype(np.float32),
    }
    call = functools.partial(rotary_embedding, q_heads=2, kv_heads=1)
    specs = {"qkv": P(("x", "y")), "positions": P(("x", "y"))}
    return {"rotary_embedding": run(lambda args: call(**args), args, mesh, specs)}


ADD_ROW = """
void add_row(const float* x, const float* row, float* out, long rows, long n) {
  for (long i = 0; i < rows * n; ++i) out[i] = x[i] + (row == nullptr ? 0 : row[i % n]);
}
"""


def add_row(name, sharding):
    sizes = {"rows": ("i64", lambda x: x.shape[0]), "n": ("i64", lambda x: x.shape[1])}
    return xla_gpu.host_kernel(
        ADD_ROW,
        "add_row",
        name=name,
        arguments=["x", {"name": "row", "optional": True}],
        parameters=["x", "row", "out", "rows", "n"],
        outputs={"out": "x"},
        scalars=sizes,
        sharding=sharding,
    )


def kernel_scenarios(mesh):
    """Of a kernel of the user's with an optional argument; and rules that do not fit its calls."""
    args = {"x": np.arange(32, dtype=np.float32).reshape(8, 4), "row": np.arange(4.0, dtype="f4")}
    specs = {"x": P("x", "y"), "row": P("y")}
    kernel = add_row("xla_gpu_add_row", "i j, j -> i j")
    scenarios = {
        "kernel/whole": run(lambda args: kernel(**args), args, mesh, specs),
        "kernel/optional": run(lambda args: kernel(args["x"]), args, mesh, specs),
    }
    for name, rule in (("size", "i j, i -> i j"), ("rank", "i j, j -> i")):
        wrong = add_row(name, rule)
        try:
            run(lambda args, wrong=wrong: wrong(**args), args, mesh, specs)
        except ValueError as error:
            scenarios[f"kernel/{name}"] = str(error)
    return scenarios


def unruled_scenarios(mesh):
    """Ops without a rule of their own."""
    with mock.patch.dict(_rules.RULES, clear=True):
        scenarios = elementwise_scenario(mesh)
        static = dataclasses.replace(BASE, layout="pair")
        cache = cache_spec(static, heads="x")
        specs = {"query": P("y"), "kv_cache": cache, "v_cache": cache, "sinks": P("x")}
        case = paged_attention_case(static, np.random.default_rng(0))
        scenarios["attention"] = run(attention_call(static), case.args, mesh, specs)
        update = update_case(static, np.random.default_rng(0))
        specs = {"key": P(None, "x"), "kv_cache": cache, "v_cache": cache}
        scenarios["update"] = run(jax_calls.update, update.args, mesh, specs)
    return {f"no_rule/{name}": scenario for name, scenario in scenarios.items()}


def main():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("x", "y"))
    scenarios = attention_scenarios(mesh) | update_scenarios(mesh)
    if export is not None and "CUDA" in schema("all_reduce").platforms:
        scenarios["all_reduce"] = all_reduce_scenario(mesh)
    scenarios["manual_axes"] = manual_axes_scenario(mesh)
    scenarios |= shard_map_scenarios(mesh) | elementwise_scenario(mesh)
    scenarios |= grouped_matmul_scenario(mesh) | quantize_rows_scenario(mesh)
    scenarios |= rotary_embedding_scenario(mesh)
    scenarios |= {f"merged/{seed}": merged_scenario(mesh, seed) for seed in range(8)}
    scenarios |= kernel_scenarios(mesh)
    scenarios |= unruled_scenarios(mesh) | v3_scenarios(mesh) | v3_shard_map_scenarios(mesh)
    print(json.dumps(scenarios))


if __name__ == "__main__":
    main()
