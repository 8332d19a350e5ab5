"""What is replaced of vLLM's scheduler, held against vLLM's own; without an engine."""

from __future__ import annotations

import importlib
import types

import numpy as np
import pytest
import torch
from xla_gpu.vllm_xla import _scheduler


@pytest.fixture(scope="module")
def vllm_core():
    _scheduler.requests_with_room_take_no_time()
    names = {"manager": "core.kv_cache_manager", "utils": "core.kv_cache_utils"}
    names |= {"interface": "kv_cache_interface", "request": "request"}
    modules = {name: importlib.import_module(f"vllm.v1.{at}") for name, at in names.items()}
    modules["utils"].init_none_hash(lambda x: str(x).encode())
    return types.SimpleNamespace(**modules)


def manager(core, window=None, **options):
    """Of a cache of 40 blocks of 4 tokens; with a window another group of layers has it."""
    interface = core.interface
    shape = dict(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32)
    specs = [interface.FullAttentionSpec(**shape)]
    if window:
        specs.append(interface.SlidingWindowSpec(**shape, sliding_window=window))
    groups = [interface.KVCacheGroupSpec([f"{i}"], spec) for i, spec in enumerate(specs)]
    config = interface.KVCacheConfig(40, [], groups)
    return core.manager.KVCacheManager(config, 32, 4, 4, **options)


def asked(core, cache, rng):
    """What a few requests are given in 60 steps, and what is left; also how often ours answered."""
    from vllm import SamplingParams

    hasher = core.utils.get_request_block_hasher(4, lambda x: str(x).encode())
    given, running = [], []
    for step in range(60):
        if len(running) < 4:
            tokens = rng.integers(0, 3, rng.integers(5, 12)).tolist()
            request = core.request.Request(
                f"{step}", tokens, SamplingParams(max_tokens=20), None, block_hasher=hasher
            )
            found, count, *_ = cache.get_computed_blocks(request)
            new = request.num_tokens - count
            blocks = cache.allocate_slots(
                request, new, num_new_computed_tokens=count, new_computed_blocks=found
            )
            if blocks is not None:
                request.status = core.request.RequestStatus.RUNNING
                request.num_computed_tokens = request.num_tokens
                running.append(request)
                given.append((step, blocks.get_block_ids(allow_none=True)))
        for request in list(running):
            request.append_output_token_ids(int(rng.integers(0, 3)))
            lookahead = int(rng.integers(0, 3))
            blocks = cache.allocate_slots(request, 1, num_lookahead_tokens=lookahead)
            if blocks is not None:
                request.num_computed_tokens += 1
                given.append((request.request_id, blocks.get_block_ids(allow_none=True)))
            if blocks is None or request.num_tokens > 28:
                cache.free(request)
                running.remove(request)
        given.append(cache.block_pool.get_num_free_blocks())
    return given


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("window", [None, 6])
def test_requests_with_room_are_given_what_vllm_gives(monkeypatch, vllm_core, caching, window):
    asked_vllm = []
    ours = vllm_core.manager.KVCacheManager.allocate_slots
    original = ours.__wrapped__

    def counted(*args, **kwargs):
        asked_vllm.append(kwargs)
        return original(*args, **kwargs)

    kept = []
    for function in (_scheduler._none_for_those_with_room(counted), original):
        monkeypatch.setattr(vllm_core.manager.KVCacheManager, "allocate_slots", function)
        cache = manager(vllm_core, window, enable_caching=caching)
        kept.append(asked(vllm_core, cache, np.random.default_rng(0)))
    assert kept[0] == kept[1]
    decoded = sum(isinstance(one, tuple) and isinstance(one[0], str) for one in kept[0])
    rest = [kwargs for kwargs in asked_vllm if kwargs.keys() == {"num_lookahead_tokens"}]
    assert decoded > 150
    assert (len(rest) < decoded / 2) == (window is None)
    assert rest


def test_ids_of_no_blocks(vllm_core):
    blocks = vllm_core.manager.KVCacheBlocks
    one = types.SimpleNamespace(block_id=7)
    assert blocks(((), ())).get_block_ids(allow_none=True) is None
    assert blocks(((), ())).get_block_ids() == ([], [])
    assert blocks(((), (one,))).get_block_ids(allow_none=True) == ([], [7])
    assert blocks(((), (one,))).get_block_ids(allow_none=True, group_ids=[0]) is None
