"""What the compiled program of a model's step says, as optimized HLO."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

TARGET = 'custom_call_target="xla_gpu_ragged_paged_attention_v3"'
CALL = re.compile(rf" = \(\S+, \w+\[([\d,]+)\].* custom-call\(.*{TARGET}")
RESULT = re.compile(r" = \w+\[([\d,]+)\]\S* ([\w-]+)\(")
# What is called is looked at itself.
NO_WORK = {"parameter", "get-tuple-element", "bitcast", "call"}
MOVED = re.compile(
    r" = \(?\w+\[([\d,]*)\].* (?:all-(?:reduce|gather|to-all)(?:-start)?|reduce-scatter|"
    r"collective-permute(?:-start)?|copy(?:-start)?|transpose)\("
)


def elements(dims: str) -> int:
    return math.prod(map(int, dims.split(",")))


def moved(program: str) -> list[int]:
    """The elements of each array that is copied, turned or sent between devices."""
    return [elements(dims) for dims in MOVED.findall(program) if dims]


def faults_of_attention(program: str, layers: int) -> list[str]:
    """Calls of ours that are not one a layer; and what else makes an array of a cache's size."""
    lines = program.splitlines()
    caches = [elements(call[1]) for call in map(CALL.search, lines) if call]
    faults = []
    if not len(caches) == program.count(TARGET) == layers:
        faults.append(f"{program.count(TARGET)} calls of ours in {layers} layers")
    for line in lines:
        made = RESULT.search(line)
        if made and made[2] not in NO_WORK and elements(made[1]) in caches:
            faults.append(f"of a cache's size: {line.strip()[:200]}")
    if not {*caches}.isdisjoint(moved(program)):
        faults.append("a cache is copied, turned or sent to another device")
    return faults


def promises(programs: Iterable[str]) -> list[tuple[int, int]]:
    """Of each program the padded tokens, and what its calls of ours say of max_query_len."""
    found = []
    for program in programs:
        calls = "".join(line for line in program.splitlines() if TARGET in line)
        (tokens,) = set(re.findall(r" = \(\w+\[(\d+),", calls))
        (promise,) = set(re.findall(r"max_query_len = (\d+)", calls))
        found.append((int(tokens), int(promise)))
    return sorted(found)
