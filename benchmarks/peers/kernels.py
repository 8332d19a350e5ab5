"""Who is timed: ours and every peer that can be imported, each called on the same numbers.

A peer is prepared for a case outside the timed part: its layout of the cache, its plan or metadata
of the batch. It raises UnsupportedError for what it does not take.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from peers import reads
from peers.cases import Case
from peers.inputs import Inputs


class UnsupportedError(Exception):
    """The peer takes no such case; its words say which part."""


@dataclasses.dataclass
class Call:
    """`run` calls on one copy of the inputs; `result` is what the last call on copy 0 made.

    A call without `result` was compared when it was prepared.
    """

    run: Callable[[int], Any]
    result: Callable[[], torch.Tensor] | None
    group: str = "paged"  # of cases.AGAINST; "ours", "read"


@dataclasses.dataclass(frozen=True)
class Peer:
    """`find` gives the version, or raises ImportError with what is missing."""

    name: str
    find: Callable[[], str]
    prepare: Callable[[Inputs], Call]
    own: bool = False  # ours, or what any call of ours is beside


def need(condition: bool, words: str) -> None:
    if not condition:
        raise UnsupportedError(words)


def _import(*names: str) -> Any:
    """The first module of these that can be imported."""
    words = []
    for name in names:
        try:
            return importlib.import_module(name)
        except Exception as e:  # a package that is there may still fail in many ways
            words.append(f"{name}: {type(e).__name__}: {e}")
    raise ImportError("; ".join(words))


def _version(module: Any) -> str:
    return str(getattr(module, "__version__", "version unknown"))


def _workspace(megabytes: int, inputs: Inputs) -> torch.Tensor:
    return torch.zeros(megabytes << 20, dtype=torch.uint8, device=inputs.device)


def _blank(like: torch.Tensor) -> torch.Tensor:
    """Where a result goes: no stale numbers can pass for one."""
    return torch.full_like(like, float("nan"))


def _kept(call: Callable[[int], torch.Tensor], group: str = "paged") -> Call:
    """A call that returns a new tensor."""
    last: list[Any] = [None]

    def run(copy: int) -> None:
        last[0] = call(copy)

    return Call(run, lambda: last[0], group)


# ---- Ours ----------------------------------------------------------------------------------------


def _find_ours() -> str:
    import xla_gpu
    import xla_gpu.torch

    return _version(xla_gpu)


def _attend(inputs: Inputs, caches: list[Any], case: Case, group: str = "ours") -> Call:
    """Our call as `case` has it: its window, soft cap and batch_invariant."""
    from xla_gpu.torch import paged_attention

    count = torch.full((1,), len(case.contexts), dtype=torch.int32, device=inputs.device)
    rest = (inputs.lens, inputs.tables, inputs.starts, count, case.scale, case.window)
    more = {"soft_cap": case.soft_cap, "max_query_len": inputs.max_query}
    if case.invariant:
        more["batch_invariant"] = True
    return _kept(lambda copy: paged_attention(inputs.q, caches[copy], *rest, **more), group)


def _interleaved(inputs: Inputs) -> list[torch.Tensor]:
    """[pages, page, 2 * kv_heads, head_dim], a tensor a copy, K on even heads."""
    both = inputs.both
    raw = both.view(torch.uint8) if both.dtype.itemsize == 1 else both
    caches = zip(raw[0], raw[1], strict=True)
    return [torch.stack(pair, dim=3).flatten(2, 3).view(both.dtype) for pair in caches]


def _unaligned(cache: torch.Tensor) -> torch.Tensor:
    """The same, in memory that begins an element past a multiple of 16 bytes."""
    moved = cache.new_empty(cache.numel() + 1)[1:].view(cache.shape)
    return moved.copy_(cache)


def _ours(inputs: Inputs) -> Call:
    if inputs.case.update:
        return _update(inputs)
    caches = _interleaved(inputs)
    if inputs.case.unaligned:
        caches = [_unaligned(cache) for cache in caches]
    return _attend(inputs, caches, inputs.case)


def _ours_plain(inputs: Inputs) -> Call:
    """Our call without what the case has besides, over a cache of the query's dtype."""
    need("own" in inputs.case.asked, "what has something besides only")
    caches = [cache.to(inputs.dtype) for cache in _interleaved(inputs)]
    plain = dataclasses.replace(inputs.case, soft_cap=None, invariant=False)
    return _attend(inputs, caches, plain, "own")


def _ours_apart(inputs: Inputs) -> Call:
    need(not inputs.case.update, "attention only")
    pairs = list(zip(inputs.keys, inputs.values, strict=True))
    return _attend(inputs, pairs, inputs.case)


def _read(blocks: str) -> Callable[[Inputs], Call]:
    def prepare(inputs: Inputs) -> Call:
        need(inputs.case.reads, "what memory bounds only")
        numbers = inputs.both.view(-1).view(torch.int32)
        size = inputs.case.bytes() // 16 * 4
        parts = [numbers[copy * size : (copy + 1) * size] for copy in range(inputs.copies)]
        return Call(reads.reader(parts, blocks), None, "read")

    return prepare


def _empty_cache(inputs: Inputs, heads: int) -> torch.Tensor:
    case = inputs.case
    pages = -(-inputs.slots.numel() // case.page)
    shape = (pages, case.page, heads, case.head_dim)
    return torch.zeros(shape, dtype=inputs.cache_dtype, device=inputs.device)


def _update(inputs: Inputs) -> Call:
    from xla_gpu.torch import update_kv_cache_

    cache = _empty_cache(inputs, 2 * inputs.case.kv_heads)

    def run(copy: int) -> None:
        update_kv_cache_(inputs.keys[copy], inputs.values[copy], cache, inputs.slots[copy])

    def result() -> torch.Tensor:
        tokens = cache.flatten(0, 1)[inputs.slots[0]]
        return torch.stack([tokens[:, 0::2], tokens[:, 1::2]])

    return Call(run, result, "ours")


def _copy(inputs: Inputs) -> Call:
    need(inputs.case.update, "update_kv_cache only")
    sources = [inputs.both[:, i].contiguous() for i in range(inputs.copies)]
    targets = [_blank(source) for source in sources]
    return Call(lambda i: targets[i].copy_(sources[i]), lambda: targets[0], "copy")


# ---- FlashAttention-3 ----------------------------------------------------------------------------


def _fa3() -> Any:
    """The operators of FlashAttention-3, in its own package, in vLLM, or in a library loaded."""
    tried = []
    for modules, name in (
        (("flash_attn_interface", "flash_attn_3._C"), "flash_attn_3"),
        (("vllm.vllm_flash_attn", "vllm._vllm_fa3_C"), "_vllm_fa3_C"),
    ):
        operators = getattr(torch.ops, name)
        try:
            if not hasattr(operators, "fwd"):
                _import(*modules)
        except ImportError as e:
            tried.append(str(e))
        if hasattr(operators, "fwd"):
            return operators
    raise ImportError("; ".join(tried) or "no operator fwd")


def _by_name(operator: Any, given: dict[str, Any]) -> Callable[..., Any]:
    """The operator with those of the arguments that its release has; its others are None."""
    fixed = {}
    for argument in operator.default._schema.arguments:
        if argument.name in given:
            fixed[argument.name] = given[argument.name]
        elif not argument.has_default_value():
            fixed[argument.name] = None
    return lambda **more: operator(**{**fixed, **more})


_FA3_USUAL = {
    "softcap": 0.0,
    "is_rotary_interleaved": True,
    "attention_chunk": 0,
    "num_splits": 0,
    "sm_margin": 0,
    "cp_world_size": 1,
    "cp_rank": 0,
    "has_softcap": False,
    "max_seqlen_k_new": 0,
}


def _fa3_part(inputs: Inputs, first: int, last: int) -> tuple[Callable[[int], Any], torch.Tensor]:
    """The call for the sequences from `first` up to `last`, and where its result lies."""
    case, operators, start, stop = inputs.case, _fa3(), *inputs.host_starts[[first, last]].tolist()
    need(case.dtype != "float32", "no f32")
    queries, contexts = case.queries[first:last], case.contexts[first:last]
    q, scales = inputs.q[start:stop], None
    if inputs.cache_dtype.itemsize == 1:  # it takes a query of the cache's dtype alone
        q = q.to(inputs.cache_dtype)
        scales = torch.ones(len(queries), case.kv_heads, device=inputs.device)
    out = _blank(inputs.q[start:stop])
    usual = {
        **_FA3_USUAL,
        "is_causal": max(queries) > 1,
        "softcap": case.soft_cap or 0.0,
        "has_softcap": case.soft_cap is not None,
        "window_size_left": case.window - 1 if case.window else -1,
        "window_size_right": 0 if case.window else -1,
        "cu_seqlens_q": (inputs.starts[first : last + 1] - start).contiguous(),
        "seqused_k": inputs.lens[first:last].contiguous(),
        "max_seqlen_q": max(queries),
        "max_seqlen_k": max(contexts),
    }
    planned = {
        "batch_size": len(queries),
        "num_heads": case.q_heads,
        "num_heads_k": case.kv_heads,
        "headdim": case.head_dim,
        "headdim_v": case.head_dim,
        "qkv_dtype": q.dtype,
        "page_size": case.page,
    }
    call = _by_name(
        operators.fwd,
        {
            **usual,
            "q": q,
            "out": out,
            "page_table": inputs.tables[first:last],
            "q_descale": scales,
            "k_descale": scales,
            "v_descale": scales,
            "softmax_scale": case.scale,
            "scheduler_metadata": _by_name(
                operators.get_scheduler_metadata, {**usual, **planned}
            )(),
        },
    )
    return lambda copy: call(k=inputs.keys[copy], v=inputs.values[copy]), out


def _fa3_pages(inputs: Inputs) -> Call:
    need(not inputs.case.update, "attention only")
    run, out = _fa3_part(inputs, 0, len(inputs.case.queries))
    return Call(run, lambda: out, "rounded" if inputs.cache_dtype.itemsize == 1 else "paged")


def _fa3_two_calls(inputs: Inputs) -> Call:
    """A prompt, which comes first, by one call and the decodes by another."""
    queries = inputs.case.queries
    prompts = sum(1 for n in queries if n > 1)
    mixed = 0 < prompts < len(queries) and max(queries[prompts:]) == 1
    need(mixed and not inputs.case.update, "batches of prompts, then decodes, only")
    one, out = _fa3_part(inputs, 0, prompts)
    two, more = _fa3_part(inputs, prompts, len(queries))
    return Call(lambda copy: (one(copy), two(copy)), lambda: torch.cat([out, more]))


def _fa3_contiguous(inputs: Inputs) -> Call:
    case = inputs.case
    need(not case.update and not case.decode, "prompts only")
    need(case.cache == case.dtype and case.dtype != "float32", "bf16 and f16 only")
    need(case.window is None and case.soft_cap is None, "windows and soft caps from pages only")
    dense = [inputs.contiguous(copy) for copy in range(inputs.copies)]
    lens = torch.nn.functional.pad(inputs.lens.cumsum(0), (1, 0)).int()
    out = _blank(inputs.q)
    given = {
        **_FA3_USUAL,
        "q": inputs.q,
        "out": out,
        "cu_seqlens_q": inputs.starts,
        "cu_seqlens_k": lens,
        "max_seqlen_q": inputs.max_query,
        "max_seqlen_k": inputs.max_context,
        "softmax_scale": case.scale,
        "is_causal": True,
        "window_size_left": -1,
        "window_size_right": -1,
    }
    call = _by_name(_fa3().fwd, given)
    run = lambda copy: call(k=dense[copy][0], v=dense[copy][1])  # noqa: E731
    return Call(run, lambda: out, "contiguous")


# ---- FlashInfer ----------------------------------------------------------------------------------


def _find_flashinfer() -> str:
    _import("flashinfer.decode")
    return _version(_import("flashinfer"))


def _planned(inputs: Inputs, wrapper: Any, *indices: Any, **more: Any) -> Call:
    case = inputs.case
    out = _blank(inputs.q)
    wrapper.plan(
        *indices,
        inputs.host_page_starts,
        inputs.page_order,
        inputs.host_last,
        case.q_heads,
        case.kv_heads,
        case.head_dim,
        case.page,
        window_left=case.window - 1 if case.window else -1,
        logits_soft_cap=case.soft_cap,
        sm_scale=case.scale,
        q_data_type=inputs.dtype,
        kv_data_type=inputs.cache_dtype,
        **more,
    )

    def run(copy: int) -> None:
        wrapper.run(inputs.q, (inputs.keys[copy], inputs.values[copy]), out=out)

    return Call(run, lambda: out)


def _flashinfer_decode(inputs: Inputs) -> Call:
    need(inputs.case.decode, "decode only")
    need(inputs.case.dtype != "float32", "no f32")
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper as Wrapper

    workspace = _workspace(512, inputs)
    return _planned(inputs, Wrapper(workspace, "NHD", use_tensor_cores=True, backend="fa2"))


def _flashinfer_prefill(backend: str) -> Callable[[Inputs], Call]:
    def prepare(inputs: Inputs) -> Call:
        need(not inputs.case.update and not inputs.case.decode, "more than one query only")
        need(inputs.case.dtype != "float32", "no f32")
        from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper as Wrapper

        wrapper = Wrapper(_workspace(512, inputs), "NHD", backend=backend)
        return _planned(inputs, wrapper, inputs.host_starts, causal=True)

    return prepare


def _xqa(inputs: Inputs) -> Call:
    """On pages [kv_heads, page, head_dim], where it is at its fastest."""
    case = inputs.case
    need(case.decode, "decode only")
    need(case.soft_cap is None, "no soft cap")
    need(case.page in (16, 32, 64, 128), "pages of 16, 32, 64 or 128 only")
    need(case.dtype != "float32", "no f32")
    from flashinfer.decode import xqa_batch_decode_with_kv_cache as decode

    def heads_first(cache: torch.Tensor) -> torch.Tensor:
        raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
        return raw.transpose(1, 2).contiguous().view(cache.dtype)

    caches = [
        (heads_first(k), heads_first(v)) for k, v in zip(inputs.keys, inputs.values, strict=True)
    ]
    workspace, out = _workspace(512, inputs), _blank(inputs.q)
    lens = inputs.lens.to(torch.uint32)

    def run(copy: int) -> None:
        decode(
            inputs.q,
            caches[copy],
            workspace,
            inputs.tables,
            lens,
            inputs.max_context,
            bmm1_scale=case.scale,
            bmm2_scale=1.0,
            window_left=case.window - 1 if case.window else -1,
            out=out,
            kv_layout="HND",
        )

    return Call(run, lambda: out, "rounded" if inputs.cache_dtype.itemsize == 1 else "paged")


# ---- cuDNN, torch, vLLM --------------------------------------------------------------------------


def _find_cudnn() -> str:
    _import("flashinfer.cudnn")
    return _version(_import("cudnn"))


def _cudnn_pages(inputs: Inputs) -> Call:
    """cuDNN's attention from pages as cudnn-frontend gives it, through FlashInfer."""
    case = inputs.case
    need(not case.update, "attention only")
    need(case.cache == case.dtype and case.dtype != "float32", "bf16 and f16 only")
    need(case.window is None and case.soft_cap is None, "no window and no soft cap")
    from flashinfer import cudnn

    workspace, out = _workspace(256, inputs), _blank(inputs.q)
    k, v = ([x.transpose(1, 2) for x in caches] for caches in (inputs.keys, inputs.values))
    usual = {
        "max_sequence_kv": inputs.max_context,
        "actual_seq_lens_kv": inputs.lens.view(-1, 1, 1, 1),
        "block_tables": inputs.tables,
        "is_cuda_graph_compatible": True,
        "out": out,
    }
    if case.decode:
        attend = cudnn.cudnn_batch_decode_with_kv_cache
    else:
        offsets = inputs.starts * (case.q_heads * case.head_dim)
        attend = cudnn.cudnn_batch_prefill_with_kv_cache
        usual |= {
            "max_token_per_sequence": inputs.max_query,
            "actual_seq_lens_q": inputs.starts.diff().view(-1, 1, 1, 1),
            "causal": True,
            "return_lse": False,
            "batch_offsets_q": offsets,
            "batch_offsets_o": offsets,
        }
    run = lambda i: attend(inputs.q, k[i], v[i], case.scale, workspace, **usual)  # noqa: E731
    return Call(run, lambda: out)


def _sdpa(inputs: Inputs) -> Call:
    case = inputs.case
    need(not case.update, "attention only")
    need(case.cache == case.dtype, "no fp8 cache")
    need(case.window is None and case.soft_cap is None, "no window and no soft cap")
    need(case.uniform, "sequences of one length only")
    need(case.decode or case.queries == case.contexts, "decode and whole prompts only")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch = len(case.queries)

    def heads_first(x: torch.Tensor) -> torch.Tensor:
        return x.view(batch, -1, *x.shape[1:]).transpose(1, 2)

    dense = [[heads_first(x) for x in inputs.contiguous(i)] for i in range(inputs.copies)]
    q = heads_first(inputs.q)
    on_cudnn = inputs.device != "cpu" and case.dtype != "float32"
    backends = [SDPBackend.CUDNN_ATTENTION] if on_cudnn else list(SDPBackend.__members__.values())

    def attend(copy: int) -> torch.Tensor:
        with sdpa_kernel(backends):
            return torch.nn.functional.scaled_dot_product_attention(
                q, *dense[copy], is_causal=not case.decode, scale=case.scale, enable_gqa=True
            )

    call = _kept(attend, "contiguous")
    return Call(call.run, lambda: call.result().transpose(1, 2), "contiguous")


_TRITON = (
    "vllm.v1.attention.ops.triton_unified_attention",
    "vllm.attention.ops.triton_unified_attention",
)


def _triton(inputs: Inputs) -> Call:
    case = inputs.case
    need(not case.update, "attention only")
    need(case.cache == case.dtype, "no fp8 cache")
    attend = _import(*_TRITON).unified_attention
    out = _blank(inputs.q)
    few, segments = 128 // case.kv_heads, 16  # as vLLM's backend chooses them
    size = (few * min(inputs.max_query, 8), case.q_heads, segments)
    padded = 1 << (case.head_dim - 1).bit_length()
    ones = torch.ones(1, device=inputs.device).expand(len(case.queries), case.kv_heads)
    given = {
        "q": inputs.q,
        "out": out,
        "cu_seqlens_q": inputs.starts,
        "max_seqlen_q": inputs.max_query,
        "seqused_k": inputs.lens,
        "max_seqlen_k": inputs.max_context,
        "softmax_scale": case.scale,
        "causal": True,
        "window_size": (case.window - 1, 0) if case.window else (-1, -1),
        "block_table": inputs.tables,
        "softcap": case.soft_cap or 0.0,
        "q_descale": None,
        "k_descale": ones,
        "v_descale": ones,
        "seq_threshold_3D": few,
        "num_par_softmax_segments": segments,
        "softmax_segm_output": torch.empty(*size, padded, device=inputs.device),
        "softmax_segm_max": torch.empty(size, device=inputs.device),
        "softmax_segm_expsum": torch.empty(size, device=inputs.device),
    }
    taken = inspect.signature(attend).parameters
    given = {name: value for name, value in given.items() if name in taken}
    run = lambda i: attend(k=inputs.keys[i], v=inputs.values[i], **given)  # noqa: E731
    return Call(run, lambda: out)


def _find_vllm_cache() -> str:
    _import("vllm._custom_ops")
    return _version(_import("vllm"))


def _vllm_cache(inputs: Inputs) -> Call:
    need(inputs.case.update, "update_kv_cache only")
    caches = [_empty_cache(inputs, inputs.case.kv_heads) for _ in range(2)]
    one = torch.ones(1, device=inputs.device)
    write = torch.ops._C_cache_ops.reshape_and_cache_flash

    def run(i: int) -> None:
        write(inputs.keys[i], inputs.values[i], *caches, inputs.slots[i], "auto", one, one)

    return Call(run, lambda: torch.stack([c.flatten(0, 1)[inputs.slots[0]] for c in caches]))


PEERS = [
    Peer("ours", _find_ours, _ours, own=True),
    Peer("ours, K and V apart", _find_ours, _ours_apart),
    Peer("ours, plain", _find_ours, _ours_plain, own=True),
    Peer("read, one wave", _find_ours, _read("wave"), own=True),
    Peer("read, a block a part", _find_ours, _read("part"), own=True),
    Peer("FA3", lambda: str(_fa3().fwd), _fa3_pages),
    Peer("FA3, two calls", lambda: str(_fa3().fwd), _fa3_two_calls),
    Peer("FA3, contiguous", lambda: str(_fa3().fwd), _fa3_contiguous),
    Peer("FlashInfer decode", _find_flashinfer, _flashinfer_decode),
    Peer("FlashInfer XQA", _find_flashinfer, _xqa),
    Peer("FlashInfer fa2", _find_flashinfer, _flashinfer_prefill("fa2")),
    Peer("FlashInfer fa3", _find_flashinfer, _flashinfer_prefill("fa3")),
    Peer("cuDNN", _find_cudnn, _cudnn_pages),
    Peer("SDPA, contiguous", lambda: torch.__version__, _sdpa),
    Peer("vLLM Triton", lambda: _import(*_TRITON).__name__, _triton),
    Peer("vLLM cache", _find_vllm_cache, _vllm_cache),
    Peer("copy", lambda: torch.__version__, _copy),
]
