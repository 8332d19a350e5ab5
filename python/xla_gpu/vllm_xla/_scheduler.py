"""vLLM's scheduler: what a request that decodes costs in each step.

Most steps give it a token for which its last block of the cache has room.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xla_gpu.vllm_xla._names import FullAttentionManager, replace


def _has_room(cache: Any, request: Any, tokens: int, num_lookahead_tokens: int) -> bool:
    """Whether a running request's blocks have room, and none of them is to be hashed or freed."""
    name, total = request.request_id, request.num_computed_tokens + tokens
    slots = min(total + num_lookahead_tokens, cache.max_model_len)
    for manager in cache.coordinator.single_type_managers:
        size = manager.block_size
        if (
            type(manager) is not FullAttentionManager  # others free blocks that fall behind
            or slots > len(manager.req_to_blocks.get(name, ())) * size
        ):
            return False
        if manager.enable_caching and (
            size != manager.block_pool.hash_block_size
            or min(total, request.num_tokens) // size > manager.num_cached_block.get(name, 0)
        ):
            return False
    return True


def _none_for_those_with_room(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def allocate_slots(
        self: Any, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        # What the scheduler says of a running request; of others it says more.
        running = not args and kwargs.keys() == {"num_lookahead_tokens"}
        if running and _has_room(self, request, num_new_tokens, **kwargs):
            return self.empty_kv_cache_blocks
        return original(self, request, num_new_tokens, *args, **kwargs)

    return allocate_slots


def _none_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_block_ids(self: Any, allow_none: bool = False, *, group_ids: Any = None) -> Any:
        if allow_none and not any(self.blocks):
            return None
        return original(self, allow_none, group_ids=group_ids)

    return get_block_ids


def requests_with_room_take_no_time() -> None:
    """For each request vLLM asks in a dozen calls for the blocks that it needs, mostly none."""
    replace("KVCacheManager.allocate_slots", _none_for_those_with_room)
    replace("KVCacheBlocks.get_block_ids", _none_at_once)
