"""Paged attention over the machine's devices, beside one of them: heads split, pages dealt out.

    python benchmarks/devices.py [heads] [pages] [sums] [--tiny]

heads  decode and prefill of whole batches, kv heads split over the devices by plain jit over
       sharded arrays and by shard_map
pages  one decoding sequence, its pages dealt over the devices, the parts joined by lse
       (examples/jax/long_context.py)
sums   all_reduce beside XLA's, by the size of what each device has; GPUs alone

us a call, of a jitted chain of calls each of which attends with what the last one found, over
caches that together are larger than the L2: what a chain three times as long takes more, so that
its start and its end do not count. Medians of awaited chains.

  one     a device does all of it
  part    a device does its own part alone, without the others and without joining
  call    one call by itself, awaited, dispatch included: on one device / over all

Beside them: whether the results are equal to the last bit, and the collectives in the HLO.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from xla_gpu.jax import all_reduce, merge_attention_states, paged_attention

# sequences, tokens, new tokens
BATCHES = [(64, 4096, 1), (8, 32768, 1), (16, 4096, 1), (256, 1024, 1), (4, 4096, 4096)]
Q_HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
COLLECTIVE = re.compile(r" (all-[a-z-]+|collective-[a-z]+|reduce-scatter)(?:-start)?\(")


def seconds(least: float, run: Callable[..., jax.Array], *arrays) -> float:
    """The median of awaited runs, repeated for `least` seconds and at least five times."""
    for _ in range(2):
        jax.block_until_ready(run(*arrays))
    times: list[float] = []
    end = time.perf_counter() + least
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(run(*arrays))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def us_a_call(
    least: float, chain_of: Callable[[int], Callable[..., jax.Array]], length: int, *arrays
) -> float:
    """`chain_of(n)`: n calls in a row."""
    short, long = (seconds(least, chain_of(n), *arrays) for n in (length, 3 * length))
    return 1e6 * (long - short) / (2 * length)


def collectives(compiled: jax.stages.Compiled) -> str:
    found = COLLECTIVE.findall(compiled.as_text())
    return ", ".join(f"{found.count(name)} {name}" for name in sorted(set(found))) or "none"


def chain(attend: Callable, length: int) -> Callable:
    """attend(query, cache, *rest), `length` times in a row, over the caches in turn."""

    def run(query, caches, *rest):
        for i in range(length):
            query = attend(query, caches[i % len(caches)], *rest)
        return query

    return run


def compare(got: jax.Array, want: jax.Array) -> str:
    a, b = (np.asarray(jax.device_get(x), np.float32) for x in (got, want))
    return "yes" if np.array_equal(a, b) else f"within {np.abs(a - b).max():.1e}"


class Caches:
    """Random caches, enough of them that none stays in the L2."""

    def __init__(self, pages: int, args: argparse.Namespace):
        self.shape = (pages, PAGE, 2 * KV_HEADS, HEAD_DIM)
        size = 2 * np.prod(self.shape)
        self.count = 2 if args.tiny else int(np.clip((1 << 29) // size, 2, 16))
        self.length = args.chain * (1 if size > 1 << 28 else 2)

    def on(self, sharding) -> list[jax.Array]:
        make = jax.jit(
            lambda key: jax.random.normal(key, self.shape, jnp.bfloat16), out_shardings=sharding
        )
        return [make(jax.random.key(i)) for i in range(self.count)]


def heads_row(sequences: int, tokens: int, new: int, mesh: Mesh, args) -> str:
    """`new` query tokens each of so many sequences of `tokens`."""
    n, one = mesh.size, jax.sharding.SingleDeviceSharding(jax.devices()[0])
    pages = -(-tokens // PAGE)
    caches = Caches(sequences * pages, args)
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.normal(size=(sequences * new, Q_HEADS, HEAD_DIM)), jnp.bfloat16)
    rest = (
        jnp.full((sequences,), tokens, jnp.int32),
        jnp.asarray(rng.permutation(sequences * pages).reshape(sequences, pages), jnp.int32),
        jnp.arange(sequences + 1, dtype=jnp.int32) * new,
    )
    by_head, by_kv_head = P(None, "heads", None), P(None, None, "heads", None)
    split = NamedSharding(mesh, by_kv_head)
    whole = caches.on(one)
    specs = {"in_specs": (by_head, by_kv_head, P(), P(), P()), "out_specs": by_head}

    def jitted(length: int) -> Callable:
        return jax.jit(chain(paged_attention, length))

    def mapped(length: int) -> Callable:
        return jax.jit(jax.shard_map(chain(paged_attention, length), mesh=mesh, **specs))

    us = functools.partial(us_a_call, args.seconds)
    arrays = jax.device_put((query, whole, *rest), one)
    times = {"one": us(jitted, caches.length, *arrays)}
    call = jax.jit(paged_attention)
    want = call(query, whole[0], *rest)
    call_one = seconds(args.seconds, call, query, whole[0], *rest)
    part = [jax.device_put(cache[:, :, : 2 * KV_HEADS // n], one) for cache in whole]
    times["part"] = us(jitted, caches.length, query[:, : Q_HEADS // n], part, *rest)
    del part
    over = [jax.device_put(cache, split) for cache in whole]
    del whole, arrays
    sharded_query = jax.device_put(query, NamedSharding(mesh, by_head))
    small = jax.device_put(rest, NamedSharding(mesh, P()))
    equal = {}
    for name, chain_of in (("jit", jitted), ("shard_map", mapped)):
        times[name] = us(chain_of, caches.length, sharded_query, over, *small)
        equal[name] = collectives(chain_of(1).lower(sharded_query, over, *small).compile())
    got = call(sharded_query, over[0], *small)
    call_all = seconds(args.seconds, call, sharded_query, over[0], *small)
    ratio = times["one"] / min(times["jit"], times["shard_map"])
    cells = [f"{sequences}x{tokens}" + (f", {new} new" if new > 1 else "")]
    cells += [f"{times[name]:.1f}" for name in ("one", "part", "jit", "shard_map")]
    cells += [f"{times['one'] / times['part']:.2f}", f"{ratio:.2f}"]
    cells += [f"{1e6 * call_one:.0f} / {1e6 * call_all:.0f}", compare(got, want)]
    cells += [" / ".join(dict.fromkeys(equal.values()))]
    return "| " + " | ".join(cells) + " |"


def pages_row(tokens: int, mesh: Mesh, args) -> str:
    """One query token over one sequence of so many tokens."""
    n, one = mesh.size, jax.sharding.SingleDeviceSharding(jax.devices()[0])
    pages = -(-tokens // (PAGE * n))  # on each device; page i of the sequence is on i % n
    caches = Caches(n * pages, args)
    query = jax.random.normal(jax.random.key(9), (1, Q_HEADS, HEAD_DIM), jnp.bfloat16)
    starts, lens = jnp.array([0, 1], jnp.int32), jnp.array([tokens], jnp.int32)
    order = jnp.arange(n * pages, dtype=jnp.int32)
    in_turn = (order % n * pages + order // n)[None]
    local = jnp.arange(pages, dtype=jnp.int32)[None]

    def attend(query, cache, lens, tables):
        return paged_attention(
            query, cache, lens, tables, starts, causal=False, return_lse=True, out_dtype=jnp.float32
        )

    def alone(query, cache, lens, tables):
        return attend(query, cache, lens, tables)[0].astype(query.dtype)

    def over_devices(query, cache, lens, tables):
        me, full, rest = lax.axis_index("pages"), lens // PAGE, lens % PAGE
        mine = (full + n - 1 - me) // n * PAGE + jnp.where(full % n == me, rest, 0)
        out, lse = attend(query, cache, mine.astype(jnp.int32), tables)
        return merge_attention_states([out], [lse], "pages")[0].astype(query.dtype)

    def jitted(length: int) -> Callable:
        return jax.jit(chain(alone, length))

    us = functools.partial(us_a_call, args.seconds)
    whole = caches.on(one)
    times = {"one": us(jitted, caches.length, query, whole, lens, in_turn)}
    want = jax.jit(alone)(query, whole[0], lens, in_turn)
    call = jax.jit(alone)
    call_one = seconds(args.seconds, call, query, whole[0], lens, in_turn)
    part = [cache[:pages] for cache in whole]
    times["part"] = us(jitted, caches.length, query, part, lens // n, local)
    del part
    over = [jax.device_put(cache, NamedSharding(mesh, P("pages"))) for cache in whole]
    del whole
    small = jax.device_put((query, lens, local), NamedSharding(mesh, P()))
    query, lens, local = small

    def mapped(length):
        run, specs = chain(over_devices, length), (P(), P("pages"), P(), P())
        return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P()))

    times["joined"] = us(mapped, caches.length, query, over, lens, local)
    single = mapped(1)
    got = single(query, over[:1], lens, local)
    call_all = seconds(args.seconds, single, query, over[:1], lens, local)
    cells = [f"1x{tokens}", *(f"{times[name]:.1f}" for name in ("one", "part", "joined"))]
    cells += [f"{times['one'] / times['part']:.2f}", f"{times['one'] / times['joined']:.2f}"]
    cells += [f"{1e6 * call_one:.0f} / {1e6 * call_all:.0f}", compare(got, want)]
    cells += [collectives(single.lower(query, over[:1], lens, local).compile())]
    return "| " + " | ".join(cells) + " |"


def psum_us(mesh: Mesh, length: int, least: float) -> float:
    """Of a chain of XLA's all-reduces of one step's output, us each."""
    total = functools.partial(lax.psum, axis_name="pages")
    chain_of = functools.partial(sums, mesh, total)
    return us_a_call(least, chain_of, length, jnp.ones((1, Q_HEADS, HEAD_DIM)))


def sums(mesh: Mesh, total: Callable, length: int) -> Callable:
    """A chain of sums over the devices."""

    def run(x):
        for _ in range(length):
            x = total(x) * jnp.asarray(1 / mesh.size, x.dtype)
        return x

    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))


def sums_row(elements: int, dtype: str, mesh: Mesh, args) -> str:
    """all_reduce beside XLA's; its results beside numpy's sum in float32, on each device."""
    ordinals = ",".join(str(device.local_hardware_id) for device in mesh.devices.flat)
    ours = functools.partial(all_reduce, devices=ordinals)
    parts = np.random.default_rng(elements).normal(size=(mesh.size, elements)).astype(dtype)
    parts[:, :: 1 + elements // 7] = [[float("nan")], [float("inf")], *[[0]] * 6][: mesh.size]
    split = P("devices")
    run = jax.jit(jax.shard_map(ours, mesh=mesh, in_specs=split, out_specs=split))
    x = jax.device_put(parts, NamedSharding(mesh, split))
    want = sum(part.astype(np.float32) for part in parts).astype(dtype)
    wrong = 0
    for _ in range(20):
        wrong += sum(not np.array_equal(got, want, equal_nan=True) for got in np.asarray(run(x)))
    times = [
        us_a_call(
            args.seconds, functools.partial(sums, mesh, total), args.chain, jnp.asarray(parts[0])
        )
        for total in (ours, functools.partial(lax.psum, axis_name="devices"))
    ]
    cells = [f"{dtype}[{elements}]", f"{parts[0].nbytes / 1024:.1f}", *map("{:.1f}".format, times)]
    return "| " + " | ".join([*cells, f"{wrong} of {20 * mesh.size} wrong"]) + " |"


def table(title: str, columns: str, rows: Iterable[Callable[[], str]]) -> None:
    print(f"\n{title}\n\n| {columns} |\n|{'---|' * (1 + columns.count('|'))}", flush=True)
    for row in rows:
        try:
            print(row(), flush=True)
        except Exception as e:  # the others may work
            print(f"| {type(e).__name__}: {e} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["heads", "pages"], help="heads, pages, sums")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--chain", type=int, default=16, help="calls in a chain, at least")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each measurement")
    args = parser.parse_args()
    devices = jax.devices()
    print(f"{len(devices)} of {devices[0].device_kind}, jax {jax.__version__}")
    print(f"bf16, {Q_HEADS}/{KV_HEADS} heads, head_dim {HEAD_DIM}, pages of {PAGE} tokens")
    if "heads" in args.parts:
        shapes = [(2, 64, 1), (2, 64, 64)] if args.tiny else BATCHES
        mesh = Mesh(np.array(devices), ("heads",))
        table(
            "Heads, us a call",
            "sequences x tokens | one | part | jit | shard_map | one/part | one/best | call "
            "| equal | collectives",
            [functools.partial(heads_row, *shape, mesh, args) for shape in shapes],
        )
    if "pages" in args.parts:
        mesh = Mesh(np.array(devices), ("pages",))
        lengths = [100] if args.tiny else [131072, 262144, 1048576]
        table(
            "One sequence's pages, us a call",
            "sequence | one | part | joined | one/part | one/joined | call | equal | collectives",
            [functools.partial(pages_row, tokens, mesh, args) for tokens in lengths],
        )
        alone = psum_us(mesh, 4 if args.tiny else 64, args.seconds)
        print(f"\nAn all-reduce of 16 KiB in a chain of them: {alone:.1f} us")
    if "sums" in args.parts:
        mesh = Mesh(np.array(devices), ("devices",))
        sizes = [1, 77, 4096, 65536, 65536 + 5, 262144, 1 << 20]
        table(
            "Sums over the devices, us a call",
            "of each device | KiB | all_reduce | psum | compared with numpy",
            [
                functools.partial(sums_row, elements, dtype, mesh, args)
                for elements in sizes
                for dtype in ("bfloat16", "float16", "float32")
                if elements * np.dtype(dtype).itemsize <= 2 << 20
            ],
        )


if __name__ == "__main__":
    main()
