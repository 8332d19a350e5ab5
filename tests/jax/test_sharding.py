"""Plain jit over sharded arrays, and shard_map, on four CPU devices: nothing is gathered."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("sharding_program.py")
# Scenarios in which something has to be gathered first (_partition.py says why), and what.
GATHERED = {
    "rows/not_causal_window": "f32[32,16,32]",  # query
    "pages": "f32[24,8,8,32]",  # kv_cache
    "split_indices": "s32[",
    "v3/odd/bf16": "f32[32,16,64]",  # queries: one kv head fills no whole 32 bits of a cache
}
# A kernel may sum in another order where a device has part of a sequence's rows (f32, values ~ 1).
ROUNDING = 5e-6
ATTENTION = [
    "heads/interleaved",
    "heads/pair",
    "heads/stacked",
    "heads/scales_of_tokens",
    "heads/gqa_over_both",
    "heads/mqa",
    *(f"rows/{seed}" for seed in range(12)),
    "rows_and_heads",
    "shard_map/sequences",
]
UPDATES = [
    f"update/{how}/{layout}"
    for how in ("heads", "pages", "pages_and_heads")
    for layout in ("interleaved", "pair", "stacked")
]


RAGGED_V3 = [
    *(f"v3/{name}" for name in ("f32", "bf16", "fp8", "mha", "hd64/f32", "hd64/bf16")),
    *(f"v3/shard_map/{name}" for name in ("v3", "hd64")),
]


OTHERS = ["simple_add", "grouped_matmul", "quantize_rows", "rotary_embedding"]
OTHERS += ["kernel/whole", "kernel/optional"]


@pytest.fixture(scope="module")
def scenarios():
    env = dict(os.environ, JAX_PLATFORMS="cpu")
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.xdist_group("sharding")
@pytest.mark.parametrize("name", [*ATTENTION, *UPDATES, *RAGGED_V3, *OTHERS])
def test_splits_without_communication(scenarios, name):
    scenario = scenarios[name]
    assert scenario["custom_calls"] == 1
    assert scenario["collectives"] == []
    assert scenario["difference"] <= (0.0 if name in UPDATES else ROUNDING)


@pytest.mark.xdist_group("sharding")
@pytest.mark.parametrize("name", GATHERED)
def test_gathers_what_it_must_and_is_right(scenarios, name):
    scenario = scenarios[name]
    assert scenario["collectives"]
    for collective in scenario["collectives"]:
        assert collective.startswith(GATHERED[name])
    assert scenario["difference"] <= ROUNDING


@pytest.mark.xdist_group("sharding")
@pytest.mark.parametrize("seed", range(8))
def test_parts_over_devices_are_joined_by_reductions_alone(scenarios, seed):
    scenario = scenarios[f"merged/{seed}"]
    assert set(scenario["collectives"]) == {"all-reduce"}
    assert (len(scenario["collectives"]) == 1) == (seed % 2 == 1)  # one, where numbers are few
    assert scenario["difference"] <= ROUNDING


@pytest.mark.xdist_group("sharding")
def test_results_vary_over_the_axes_of_their_operands(scenarios):
    scenario = scenarios["manual_axes"]
    assert scenario["difference"] == 0.0
    assert "out_specs" in scenario["varying"]
    if scenario["unreduced"] is not None:
        assert "simple_add: a is unreduced over ['x', 'y']; its parts" in scenario["unreduced"]


@pytest.mark.xdist_group("sharding")
def test_a_kernels_rule_that_does_not_fit_its_call_is_refused(scenarios):
    said = "size: sharding is 'i j, i -> i j', which says 'i' of row, but its shape is [4], where i"
    assert scenarios["kernel/size"] == f"{said} is 8, j is 4"
    assert "which says 'i' of out, but its shape is [8, 4]" in scenarios["kernel/rank"]


@pytest.mark.xdist_group("sharding")
def test_all_reduce_is_for_shard_map_over_all_that_sum(scenarios):
    if "all_reduce" not in scenarios:
        pytest.skip("this library was built without the CUDA kernels, or jax.export is not here")
    scenario = scenarios["all_reduce"]
    assert scenario["four"] is True
    assert "but the program runs on 4 devices; it must run on all" in scenario["five"]
    assert "x is one array of 4 devices" in scenario["plain"]


@pytest.mark.xdist_group("sharding")
@pytest.mark.parametrize("name", ["simple_add", "attention", "update"])
def test_an_op_without_a_rule_gets_whole_operands(scenarios, name):
    scenario = scenarios[f"no_rule/{name}"]
    assert scenario["custom_calls"] == 1
    assert any(" all-gather" in collective for collective in scenario["collectives"])
    assert scenario["difference"] == 0.0


@pytest.mark.xdist_group("sharding")
def test_each_device_computes_its_own_heads(scenarios):
    hlo = scenarios["heads/interleaved"]["hlo"]
    assert "f32[32,4,32]" in hlo  # 16 query heads over 4 devices
    assert "f32[24,8,2,32]" in hlo  # 4 kv heads, K and V, over 4 devices
    assert "'x', 'y'" in scenarios["heads/interleaved"]["result_specs"][0]


@pytest.mark.xdist_group("sharding")
@pytest.mark.parametrize("name", ["v3", "hd64"])
def test_ragged_v3_writes_in_place_on_every_device(scenarios, name):
    assert scenarios[f"v3/shard_map/{name}"]["in_place"]


@pytest.mark.xdist_group("sharding")
def test_ragged_v3_splits_its_heads(scenarios):
    assert "bf16[24,8,1,2,128]" in scenarios["v3/bf16"]["hlo"]  # 4 kv heads over 4 devices
    assert "f8e4m3fn[24,8,1,4,128]" in scenarios["v3/fp8"]["hlo"]  # 4 kv heads over 2
