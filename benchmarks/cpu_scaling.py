"""What more cores give on the CPU: cpu.py's problems, each number of cores in a process of its own.

python benchmarks/cpu.py --cores 1,2,4,8
python benchmarks/cpu_scaling.py 4 REGEX  # one of them, those problems: prints its row as JSON
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

CPUS = pathlib.Path("/sys/devices/system/cpu")


def one_thread_a_core() -> list[int]:
    """The processors that this process may use: one of each core, then the others."""
    allowed = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    first, others = [], []
    for cpu in allowed:
        path = CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        core = path.read_text() if path.exists() else str(cpu)
        (others if core in seen else first).append(cpu)
        seen.add(core)
    return first + others


def measure(cores: int, pattern: str) -> dict[str, float]:
    """Rates of this process, pinned to so many cores, of the problems that `pattern` is found in:
    GFLOP/s of prefill, GB/s of decode.
    """
    os.sched_setaffinity(0, one_thread_a_core()[:cores])  # before JAX counts them
    import cpu
    import jax
    from workloads import Problem

    prefill = [Problem(1, n, d, True) for n, d in ((2048, "bfloat16"), (8192, "bfloat16"))]
    decode = [
        Problem(8, 4096, "bfloat16"),
        Problem(1, 32768, "bfloat16"),
        Problem(8, 4096, "float32"),
        Problem(8, 4096, "float8_e4m3fn"),
    ]
    row = {"cores": cores}
    with jax.default_device(jax.devices("cpu")[0]):
        for p in (p for p in prefill + decode if re.search(pattern, str(p))):
            args = p.make()
            amount = p.flops() if p.prefill else p.kv_bytes()
            row[str(p)] = amount / cpu.time_ours(p, args, 0.5).seconds / 1e9
            if p.prefill:
                for name, timed in cpu.time_torch(p, args, 0.5, flex=False).items():
                    row[f"{p}: {name}"] = amount / timed.seconds / 1e9
    row["memory, read"] = cpu.read_bandwidth()
    return row


def in_children(counts: list[int], pattern: str) -> list[dict[str, float]]:
    """A row of `measure` for each number of cores that this process may use."""
    rows = []
    for cores in (n for n in counts if n <= len(os.sched_getaffinity(0))):
        out = subprocess.run(
            [sys.executable, __file__, str(cores), pattern],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        rows.append(json.loads(out.splitlines()[-1]))
        print(f"{cores} cores: {rows[-1]}", flush=True)
    return rows


def table(rows: list[dict[str, float]]) -> list[str]:
    """A line a measurement, a column a number of cores: the rate, and times that of the fewest."""
    if not rows:
        return []
    header = [
        "GFLOP/s (prefill), GB/s (decode)",
        *(f"{r['cores']} core{'s'[: r['cores'] > 1]}" for r in rows),
    ]
    lines = ["", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name in list(rows[0])[1:]:
        cells = [f"{r[name]:.3g} ({r[name] / rows[0][name]:.1f}x)" for r in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
