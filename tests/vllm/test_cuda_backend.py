"""The attention backend for vLLM on CUDA, by vLLM's own classes; on CPU tensors, without an engine.

The contract is that of the vLLM that is installed; of another release where its Python files are
first in PYTHONPATH, and VLLM_PLUGINS is empty.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import subprocess
import sys
import types

import pytest
import torch
import vllm
import xla_gpu.vllm_cuda
import xla_gpu.vllm_xla
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends import registry
from vllm.v1.attention.selector import AttentionSelectorConfig
from xla_gpu.vllm_cuda.backend import XlaGpuBackend, XlaGpuImpl, XlaGpuMetadataBuilder

CUSTOM = registry.AttentionBackendEnum.CUSTOM
FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and a batch: (new tokens, all tokens) of each sequence."""

    batch: tuple[tuple[int, int], ...] = ((1, 37), (5, 5), (1, 1), (3, 50))
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    cache: str = "auto"
    k_scale: tuple[float, ...] = (1.0,)
    v_scale: tuple[float, ...] = (1.0,)
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    causal: bool = True
    padding: tuple[int, int] = (0, 0)  # tokens and sequences behind the batch's


CASES = {
    "mixed": Case(),
    "decode": Case(batch=((1, 1), (1, 17), (1, 100), (1, 16))),
    "prefill": Case(batch=((33, 33), (1, 1), (16, 16))),
    "chunked": Case(batch=((20, 90), (7, 8))),
    "speculation": Case(batch=((4, 44), (4, 4), (4, 70))),
    "one sequence": Case(batch=((1, 9),)),
    "bf16": Case(dtype=torch.bfloat16),
    "f16": Case(dtype=torch.float16),
    "f16 cache": Case(cache="float16"),
    "bf16 cache": Case(dtype=torch.float16, cache="bfloat16"),
    "fp8": Case(dtype=torch.bfloat16, cache="fp8", k_scale=(0.02,), v_scale=(0.03,)),
    "e4m3": Case(dtype=torch.float16, cache="fp8_e4m3", k_scale=(0.5,), v_scale=(2.0,)),
    "e5m2": Case(cache="fp8_e5m2", k_scale=(0.25,)),
    "scales of heads": Case(cache="fp8", k_scale=(0.02, 0.05), v_scale=(0.03, 0.01)),
    "window": Case(window=7),
    "window of one": Case(window=1),
    "soft cap": Case(soft_cap=3.0),
    "sinks": Case(sinks=True),
    "all": Case(window=20, soft_cap=5.0, sinks=True, dtype=torch.bfloat16, cache="fp8"),
    "no mask": Case(causal=False),
    "multi-query": Case(heads=8, kv_heads=1),
    "multi-head": Case(heads=3, kv_heads=3),
    "head_size 8": Case(head_size=8),
    "head_size 80": Case(head_size=80, dtype=torch.bfloat16),
    "head_size 128": Case(head_size=128, dtype=torch.bfloat16),
    "head_size 256": Case(head_size=256),
    "head_size 512": Case(head_size=512),
    "blocks of 48": Case(block_size=48),
    "blocks of 256": Case(block_size=256),
    "padded decode": Case(batch=((1, 30), (1, 5), (1, 64)), padding=(5, 5)),
    "padded tokens": Case(padding=(6, 0), dtype=torch.bfloat16),
    "padded prefill": Case(batch=((9, 20), (1, 3)), padding=(22, 2), sinks=True),
}


def cache_like_vllms(blocks, case):
    """A layer's cache in the order that the backend asks for, filled with ones."""
    dtype = torch.uint8 if case.cache in FP8 else case.dtype
    if case.cache in ("float16", "bfloat16"):
        dtype = getattr(torch, case.cache)
    shape = XlaGpuBackend.get_kv_cache_shape(blocks, case.block_size, case.kv_heads, case.head_size)
    order = XlaGpuBackend.get_kv_cache_stride_order()
    memory = torch.ones([shape[i] for i in order], dtype=dtype)
    return memory.permute([order.index(i) for i in range(len(order))])


class Batch:
    """Random tokens of a case, in random blocks, and what vLLM says of them."""

    def __init__(self, case, seed=0):
        self.case = case
        self.random = torch.Generator().manual_seed(seed)
        new, total = zip(*case.batch)
        pad_tokens, pad_seqs = case.padding
        per_seq = math.ceil(max(total) / case.block_size) + 1
        blocks = per_seq * len(total)
        used = torch.randperm(blocks, generator=self.random).int().view(len(total), per_seq)
        self.tables = torch.cat([used, torch.zeros(pad_seqs, per_seq, dtype=torch.int32)])
        self.cache = cache_like_vllms(blocks, case)
        self.keys = [self.some(n, case.kv_heads) for n in total]
        self.values = [self.some(n, case.kv_heads) for n in total]
        self.queries = [self.some(n, case.heads) for n in new]
        self.sinks = self.some(case.heads, 1)[:, 0, 0].float() if case.sinks else None
        starts = [0, *torch.tensor(new).cumsum(0).tolist()]
        starts += [starts[-1]] * pad_seqs
        self.tokens = sum(new)
        self.common = CommonAttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            query_start_loc_cpu=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor([*total, *[0] * pad_seqs], dtype=torch.int32),
            num_reqs=len(total) + pad_seqs,
            num_actual_tokens=self.tokens + pad_tokens,
            max_query_len=max(new),
            max_seq_len=max(total),
            block_table_tensor=self.tables,
            slot_mapping=self.slots(new, total, pad_tokens),
            causal=case.causal,
        )
        self.layer = types.SimpleNamespace(
            _k_scale=self.scale(case.k_scale), _v_scale=self.scale(case.v_scale)
        )

    @staticmethod
    def scale(values):
        """As vLLM has it: of rank 0, or one a head."""
        return torch.tensor(values[0] if len(values) == 1 else values)

    def some(self, rows, heads):
        numbers = torch.randn(rows, heads, self.case.head_size, generator=self.random)
        return numbers.to(self.case.dtype)

    def slots(self, new, total, padding=0):
        """Of the last `new` of each sequence's first `total` tokens."""
        size = self.case.block_size
        slots = [
            int(self.tables[s, at // size]) * size + at % size
            for s, (n, t) in enumerate(zip(new, total))
            for at in range(t - n, t)
        ]
        return torch.tensor(slots + [-1] * padding, dtype=torch.int64)

    def implementation(self, **more):
        case = self.case
        options = dict(
            num_heads=case.heads,
            head_size=case.head_size,
            scale=case.head_size**-0.5,
            num_kv_heads=case.kv_heads,
            sliding_window=case.window,
            kv_cache_dtype=case.cache,
            logits_soft_cap=case.soft_cap,
            sinks=self.sinks,
        )
        made = XlaGpuImpl(**{**options, **more})
        made.process_weights_after_loading(case.dtype)
        return made

    def fill(self, implementation):
        """The tokens of the steps before this one, into the cache."""
        old = [t - n for n, t in self.case.batch]
        keys, values = (
            torch.cat([tensor[:n] for tensor, n in zip(tensors, old)])
            for tensors in (self.keys, self.values)
        )
        slots = self.slots(old, old)
        implementation.do_kv_cache_update(self.layer, keys, values, self.cache, slots)

    def rows(self):
        """Query, key and value of the step with its padding, as views of what a layer computes."""
        last = [
            torch.cat([tensor[-n:] for tensor, (n, _) in zip(tensors, self.case.batch)])
            for tensors in (self.queries, self.keys, self.values)
        ]
        joint = torch.cat(last, 1)
        padding = torch.full((self.case.padding[0], *joint.shape[1:]), math.nan)
        joint = torch.cat([joint, padding.to(joint)])
        return joint.split([tensor.shape[1] for tensor in last], 1)

    def run(self, implementation):
        """A step as vLLM's layer does it."""
        query, key, value = self.rows()
        metadata = builder().build(0, self.common)
        slots = self.common.slot_mapping
        implementation.do_kv_cache_update(self.layer, key, value, self.cache, slots)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        arguments = (self.layer, query, key, value, self.cache, metadata)
        for _ in range(3):  # later calls of the same types are shorter
            output.fill_(math.nan)
            assert implementation.forward(*arguments, output=output) is output
        return output

    def stored(self, tensor, scale):
        """What the cache keeps of a key or value, in f64."""
        if self.case.cache in ("float16", "bfloat16"):
            tensor = tensor.to(getattr(torch, self.case.cache))
        if (dtype := FP8.get(self.case.cache)) is None:
            return tensor.double()
        scale = scale.view(-1, 1)
        most = torch.finfo(dtype).max
        return (tensor.float() / scale).clamp(-most, most).to(dtype).double() * scale

    def expected(self):
        """The attention of the batch in f64."""
        case, group = self.case, self.case.heads // self.case.kv_heads
        rows = []
        for query, key, value in zip(self.queries, self.keys, self.values):
            k = self.stored(key, self.layer._k_scale).repeat_interleave(group, 1)
            v = self.stored(value, self.layer._v_scale).repeat_interleave(group, 1)
            logits = torch.einsum("qhd,khd->hqk", query.double(), k) * case.head_size**-0.5
            if case.soft_cap:
                logits = case.soft_cap * torch.tanh(logits / case.soft_cap)
            at = torch.arange(len(key) - len(query), len(key))[:, None] - torch.arange(len(key))
            hidden = (at < 0) if case.causal else torch.zeros_like(at, dtype=torch.bool)
            if case.window:
                hidden |= at >= case.window
            logits = logits.masked_fill(hidden, -math.inf)
            if self.sinks is not None:
                sink = self.sinks.double()[:, None, None].expand(-1, len(query), 1)
                weights = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
            else:
                weights = logits.softmax(-1)
            rows.append(torch.einsum("hqk,khd->qhd", weights, v))
        return torch.cat(rows)


def builder():
    config = types.SimpleNamespace(speculative_config=None)
    return XlaGpuMetadataBuilder(None, ["layer"], config, torch.device("cpu"))


def check(batch, output):
    tolerance = TOLERANCE[batch.case.dtype]
    torch.testing.assert_close(
        output[: batch.tokens].double(), batch.expected(), atol=tolerance, rtol=tolerance
    )
    assert not output[batch.tokens :].any()


# ---- Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_step(case):
    batch = Batch(case)
    implementation = batch.implementation()
    batch.fill(implementation)
    check(batch, batch.run(implementation))


@pytest.mark.parametrize("seed", range(25))
def test_random_batches(seed):
    random = torch.Generator().manual_seed(seed)

    def some(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=random))

    def one_of(*choices):
        return choices[some(0, len(choices) - 1)]

    seqs = some(1, 6)
    new = [one_of(1, 1, some(1, 40)) for _ in range(seqs)]
    kv_heads = some(1, 3)
    case = Case(
        batch=tuple((n, n + one_of(0, some(0, 130))) for n in new),
        heads=kv_heads * some(1, 4),
        kv_heads=kv_heads,
        head_size=one_of(16, 40, 64, 128),
        block_size=one_of(16, 32, 64),
        dtype=one_of(*TOLERANCE),
        cache=one_of("auto", *FP8),
        k_scale=(0.04,),
        v_scale=(0.03,),
        window=one_of(None, some(1, 60)),
        soft_cap=one_of(None, 4.0),
        sinks=one_of(False, True),
        padding=(some(0, 5), some(0, 3)),
    )
    batch = Batch(case, seed)
    implementation = batch.implementation()
    batch.fill(implementation)
    check(batch, batch.run(implementation))


def test_a_captured_graph_reads_the_next_steps_numbers():
    """The batch refers to vLLM's buffers; only their content changes from step to step."""
    case = Case(batch=((1, 40), (1, 25)))
    batch = Batch(case)
    implementation = batch.implementation()
    batch.fill(implementation)
    query, key, value = batch.rows()
    slots = batch.common.slot_mapping
    implementation.do_kv_cache_update(batch.layer, key, value, batch.cache, slots)
    metadata = builder().build_for_cudagraph_capture(batch.common)
    for name in ("query_start_loc", "seq_lens"):
        assert getattr(metadata, name).data_ptr() == getattr(batch.common, name).data_ptr()
    assert metadata.block_table.data_ptr() == batch.tables.data_ptr()
    assert builder().build(0, batch.common).num_seqs is metadata.num_seqs

    batch.common.seq_lens.copy_(torch.tensor([31, 9]))
    batch.keys = [tensor[:n] for tensor, n in zip(batch.keys, (31, 9))]
    batch.values = [tensor[:n] for tensor, n in zip(batch.values, (31, 9))]
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    implementation.forward(batch.layer, query, key, value, batch.cache, metadata, output=output)
    check(batch, output)


def test_another_groups_table():
    batch = Batch(Case())
    made = builder()
    metadata = made.build(0, batch.common)
    other = made.update_block_table(metadata, batch.tables.flip(1), batch.common.slot_mapping)
    assert torch.equal(other.block_table, batch.tables.flip(1))
    assert metadata.block_table.data_ptr() == batch.tables.data_ptr()


def test_memory_is_measured_without_a_batch():
    batch = Batch(Case())
    output = torch.full((3, 4, 64), math.nan)
    arguments = (batch.layer, output, None, None, torch.tensor([]), None)
    assert not batch.implementation().forward(*arguments, output=output).any()


def test_sinks_are_read_anew_where_they_are():
    sinks = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    implementation = XlaGpuImpl(4, 64, 0.125, 2, sinks=sinks)
    implementation.process_weights_after_loading(torch.bfloat16)
    before = implementation.sinks
    sinks.data.fill_(3)
    implementation.process_weights_after_loading(torch.bfloat16)
    assert implementation.sinks is before and before.dtype == torch.float32
    assert before.tolist() == [3] * 4


def test_vllms_layer(monkeypatch):
    """Attention itself, on CPU tensors: how it calls the backend, not how a test does."""
    # The platform here is that of the JAX backend, which wants a model.
    monkeypatch.setattr(type(current_platform), "check_and_update_config", lambda *_: None)
    batch = Batch(Case(batch=((1, 20), (6, 6))))
    batch.fill(batch.implementation())
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    with set_current_vllm_config(config):
        layer = Attention(4, 64, 0.125, 2, prefix="layer", attn_backend=XlaGpuBackend)
    layer.process_weights_after_loading(torch.float32)
    layer.kv_cache = batch.cache
    metadata, slots = builder().build(0, batch.common), batch.common.slot_mapping
    with set_forward_context({"layer": metadata}, config, slot_mapping={"layer": slots}):
        output = layer(*[rows.flatten(1).contiguous() for rows in batch.rows()])
    check(batch, output.view(-1, 4, 64))


# ---- The contract --------------------------------------------------------------------------------


def test_graphs_of_every_batch():
    support = XlaGpuMetadataBuilder.get_cudagraph_support(None, None)
    assert support == AttentionCGSupport.ALWAYS


def test_signatures_are_vllms():
    for ours in (XlaGpuBackend, XlaGpuImpl, XlaGpuMetadataBuilder):
        base = ours.__mro__[1]
        for name in vars(ours):
            theirs = getattr(base, name, None)
            if name.startswith("_") or not callable(theirs):
                continue
            wanted = inspect.signature(theirs).parameters
            has = inspect.signature(getattr(ours, name)).parameters
            assert list(has)[: len(wanted)] == list(wanted) or "args" in has, name


def test_the_order_in_memory_is_the_same_in_both_contracts():
    if hasattr(XlaGpuBackend.__mro__[1], "get_kv_cache_shape"):
        pytest.skip("this vLLM has the earlier contract alone")
    (layout,) = XlaGpuBackend.supported_kv_cache_layouts()
    assert layout.is_layer_compact
    assert layout.layer_view_order == XlaGpuBackend.get_kv_cache_stride_order()
    with pytest.raises(NotImplementedError):
        XlaGpuBackend.get_kv_cache_stride_order(include_num_layers_dimension=True)


def selected(**changes):
    """vLLM's reasons against a configuration."""
    config = AttentionSelectorConfig(128, torch.bfloat16, "auto", None)
    given = config._replace(**changes)._asdict()
    capability = given.pop("device_capability", types.SimpleNamespace(major=9, minor=0))
    return XlaGpuBackend.validate_configuration(device_capability=capability, **given)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(dtype=torch.float32, head_size=512),
        dict(dtype=torch.float16, head_size=1),
        *(dict(kv_cache_dtype=cache) for cache in ("bfloat16", *FP8)),
        dict(block_size=48),
        dict(has_sink=True, has_sliding_window=True, use_per_head_quant_scales=True),
        dict(use_batch_invariant=True, use_non_causal=True),
    ],
    ids=str,
)
def test_what_is_taken(changes):
    assert selected(**changes) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(head_size=513), "head_size"),
        (dict(dtype=torch.float64), "dtype"),
        (dict(kv_cache_dtype="nvfp4"), "kv_cache_dtype"),
        (dict(block_size=8), "block_size"),
        (dict(use_mla=True), "MLA"),
        (dict(use_sparse=True), "sparse"),
        (dict(use_mm_prefix=True), "multimodal"),
        (dict(use_pcp=True), "PCP"),
        (dict(attn_type="encoder_only"), "encoder_only"),
        (dict(attn_type="encoder_decoder"), "encoder_decoder"),
    ],
    ids=str,
)
def test_what_is_refused_when_it_is_selected(changes, reason):
    reasons = selected(**changes)
    assert reason in reasons[0]
    assert "head_size 1 to 512" in reasons[-1] and str(next(iter(changes.values()))) in reasons[-1]


def test_an_old_gpu_is_refused():
    old = types.SimpleNamespace(major=7, minor=5)
    config = AttentionSelectorConfig(128, torch.float16, "auto", None)._asdict()
    reasons = XlaGpuBackend.validate_configuration(device_capability=old, **config)
    assert "compute capability" in reasons[0]


def test_another_release_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.34.1")
    (reason,) = selected()
    assert "knows vLLM 0.26 to 0.33, not 0.34.1" in reason


# ---- Refusals in use -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(alibi_slopes=[0.5] * 4), "alibi_slopes came; allowed is none"),
        (dict(attn_type="encoder"), "attn_type is 'encoder'; allowed is 'decoder'"),
        (dict(kv_cache_dtype="nvfp4"), "kv_cache_dtype is 'nvfp4'; allowed is auto, .*fp8_e5m2"),
    ],
    ids=str,
)
def test_layers_that_are_refused(options, words):
    with pytest.raises(NotImplementedError, match=words):
        Batch(Case()).implementation(**options)


@pytest.mark.parametrize("kind", ["dcp", "pcp"])
def test_a_context_over_several_gpus_is_refused(monkeypatch, kind):
    monkeypatch.setattr(XlaGpuImpl, "__new__", lambda cls, *args, **options: object.__new__(cls))
    monkeypatch.setattr(XlaGpuImpl, f"{kind}_world_size", 2, raising=False)
    with pytest.raises(NotImplementedError, match=f"{kind}_world_size is 2; allowed is 1"):
        XlaGpuImpl(4, 64, 0.125, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(mm_req_doc_ranges={0: [(0, 3)]}), "the batch has mm_req_doc_ranges"),
        (dict(rswa_prefix_lens=torch.ones(4)), "the batch has rswa_prefix_lens"),
        (dict(dcp_local_seq_lens=torch.ones(4)), "the batch has dcp_local_seq_lens"),
        (dict(causal=torch.ones(4, dtype=torch.bool)), "causal is one value a sequence"),
    ],
)
def test_batches_that_are_refused(changes, words):
    common = dataclasses.replace(Batch(Case()).common, **changes)
    with pytest.raises(NotImplementedError, match=words):
        builder().build(0, common)


def gaps(cache):
    """The same cache in blocks that have room behind them."""
    wide = torch.ones(len(cache), 16, 3, 128).transpose(1, 2)
    return wide[:, :2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(output_scale=torch.ones(1)), "output_scale came"),
        (dict(output_block_scale=torch.ones(1)), "output_scale came"),
        (dict(kv_cache=lambda cache: cache.contiguous()), "block_size before kv_heads in memory"),
        (dict(kv_cache=gaps), r"strides \(6144, 128, 384, 1\)"),
        (dict(kv_cache=lambda cache: cache[..., :64]), "is .*, 2, 16, 64. with strides"),
        (dict(kv_cache=lambda cache: cache[:, :1]), "is .*, 1, 16, 128. with strides"),
        (dict(query=lambda query: query.double()), "output is f32.10,4,64. .* as query, f64"),
        (dict(query=lambda q: q.double(), output=lambda out: out.double()), "query is f64"),
        (dict(output=lambda output: output[1:]), "output is f32.9,4,64. with strides"),
        (dict(output=lambda output: output.transpose(0, 1).contiguous().transpose(0, 1)), "conti"),
    ],
)
def test_calls_that_are_refused(changes, words):
    batch = Batch(Case())
    query, key, value = batch.rows()
    given = dict(
        layer=batch.layer,
        query=query,
        key=key,
        value=value,
        kv_cache=batch.cache,
        attn_metadata=builder().build(0, batch.common),
        output=torch.empty_like(query, memory_format=torch.contiguous_format),
    )
    given |= {n: c(given[n]) if callable(c) and n in given else c for n, c in changes.items()}
    with pytest.raises((ValueError, NotImplementedError), match=words):
        batch.implementation().forward(**given)


def test_a_window_without_a_mask_is_refused():
    batch = Batch(Case(window=4, causal=False))
    with pytest.raises(NotImplementedError, match="causal is False with sliding_window 4"):
        batch.run(batch.implementation())


def test_values_of_another_size_are_refused():
    batch = Batch(Case())
    _, key, value = batch.rows()
    with pytest.raises(ValueError, match="value"):
        batch.implementation().do_kv_cache_update(
            batch.layer, key, value[..., :32], batch.cache, batch.common.slot_mapping
        )


# ---- The plugin ----------------------------------------------------------------------------------


@pytest.fixture
def overrides(monkeypatch):
    """vLLM's table of backends without entries; its own comes back."""
    monkeypatch.setattr(registry, "_ATTN_OVERRIDES", {})
    return registry._ATTN_OVERRIDES


def test_the_name_is_ours(overrides):
    for _ in range(2):
        xla_gpu.vllm_cuda.register()
    assert overrides == {CUSTOM: xla_gpu.vllm_cuda.BACKEND}
    assert CUSTOM.get_class() is XlaGpuBackend
    assert registry.AttentionBackendEnum[XlaGpuBackend.get_name()] is CUSTOM


def test_another_packages_backend_stays(overrides, caplog):
    registry.register_backend(CUSTOM, "other.Backend")
    xla_gpu.vllm_cuda.register()
    assert overrides == {CUSTOM: "other.Backend"}
    assert "CUSTOM is other.Backend already" in caplog.text


@pytest.mark.parametrize("module", [None, types.ModuleType("registry")])
def test_a_vllm_without_the_name_is_left_alone(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.registry", module)
    xla_gpu.vllm_cuda.register()


def test_registering_imports_nothing_of_ours():
    program = (
        "import sys\n"
        "from vllm.v1.attention.backends import registry\n"
        "before = set(sys.modules)\n"
        "import xla_gpu.vllm_cuda\n"
        "xla_gpu.vllm_cuda.register()\n"
        "print(*sorted(set(sys.modules) - before))\n"
        "assert 'libxla_gpu.so' not in open('/proc/self/maps').read()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "xla_gpu.vllm_cuda" in (imported := done.stdout.splitlines()[-1].split())
    heavy = ("torch", "jax", "vllm", "xla_gpu.torch", "xla_gpu.vllm_cuda.backend")
    assert not [name for name in imported if name.startswith(heavy)], imported


def test_the_jax_platform_stands_aside_beside_vllm_for_cuda(monkeypatch):
    monkeypatch.setattr(xla_gpu.vllm_xla._names, "installed", lambda name: None)
    assert xla_gpu.vllm_xla.platform_plugin() is None
