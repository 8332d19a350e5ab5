"""The torch ops as the library's schemas give them: names, signatures, functions, fake kernels."""

import dataclasses
import inspect

import numpy as np
import pytest
import ragged_v3
import torch
import xla_gpu.torch
from problems import SMALL
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.library import opcheck
from torch_calls import small_batch, to_torch, v3_arrays, v3_op
from xla_gpu import _schema
from xla_gpu.torch import _kernels, _registration

ops = torch.ops.xla_gpu
ATTENTION = (
    "(Tensor query, Tensor kv_cache, Tensor context_lens, Tensor block_tables, "
    "Tensor query_start_loc, Tensor num_seqs, float? scale=None, int? sliding_window=None, "
    "float? soft_cap=None, *, Tensor? v_cache=None, Tensor? sinks=None, Tensor? k_scale=None, "
    "Tensor? v_scale=None, bool causal=True, int max_query_len=0, ScalarType? out_dtype=None, "
    "bool? batch_invariant=None)"
)
V3 = (
    "(Tensor queries, Tensor keys, Tensor values, {cache} kv_cache, Tensor kv_lens, "
    "Tensor page_indices, Tensor cu_q_lens, Tensor distribution, float? sm_scale=None, "
    "int? sliding_window=None, float? soft_cap=None, *, Tensor? attention_sink=None, "
    "Tensor? k_scale=None, Tensor? v_scale=None, bool use_causal_mask=True, "
    'bool update_kv_cache=True, str cache_layout="interleaved", int max_query_len=0, '
    "ScalarType? out_dtype=None, bool? batch_invariant=None)"
)
SIGNATURES = {
    "simple_add": "(Tensor a, Tensor b) -> Tensor",
    "paged_attention": f"{ATTENTION} -> Tensor",
    "paged_attention_with_lse": f"{ATTENTION} -> (Tensor, Tensor)",
    "update_kv_cache": "(Tensor key, Tensor value, Tensor kv_cache, Tensor slot_mapping, *, "
    "Tensor? k_scale=None, Tensor? v_scale=None) -> Tensor",
    "update_kv_cache_pair": "(Tensor key, Tensor value, Tensor kv_cache, Tensor v_cache, "
    "Tensor slot_mapping, *, Tensor? k_scale=None, Tensor? v_scale=None) -> (Tensor, Tensor)",
    "update_kv_cache_": "(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping, *, "
    "Tensor(b!)? v_cache=None, Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
    "ragged_paged_attention_v3": V3.format(cache="Tensor") + " -> (Tensor, Tensor)",
    "ragged_paged_attention_v3_": V3.format(cache="Tensor(a!)") + " -> Tensor",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_that_programs_are_written_against(name):
    assert str(getattr(ops, name).default._schema) == f"xla_gpu::{name}{SIGNATURES[name]}"


@pytest.mark.parametrize("name", ["paged_attention", "update_kv_cache", "update_kv_cache_"])
def test_a_function_takes_what_its_op_takes(name):
    """Every argument and attribute with its default; a cache's V comes as half of a pair."""
    op = _schema.schema(name.removesuffix("_"))
    none, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    want = {a.name: (None if a.optional else none, a.optional) for a in op.args}
    del want["v_cache"]
    if "num_seqs" in want:  # None for all
        want["num_seqs"] = (None, False)
    for attr in op.attrs:
        default = none if attr.default is None else attr.default
        want[attr.name] = (None if attr.none_is_default else default, attr.keyword_only)
    parameters = inspect.signature(getattr(xla_gpu.torch, name)).parameters.values()
    assert {p.name: (p.default, p.kind is keyword) for p in parameters} == want
    positional = [p.name for p in parameters if p.kind is not keyword]
    assert positional == [name for name, (_, by_name) in want.items() if not by_name]


def test_none_is_the_default():
    """num_seqs: all, scale: head_dim ** -0.5; window and cap: none."""
    *arrays, _ = small_batch()
    max_seqs, scale = len(arrays[2]), arrays[0].shape[-1] ** -0.5
    want = ops.paged_attention(*arrays, torch.tensor([max_seqs], dtype=torch.int32), scale)
    none = {"num_seqs": None, "scale": None, "sliding_window": None, "soft_cap": None}
    array = torch.tensor(max_seqs, dtype=torch.int32)
    for given in ({}, none, {"num_seqs": max_seqs}, {"num_seqs": array, "scale": scale}):
        assert torch.equal(xla_gpu.torch.paged_attention(*arrays, **given), want)
        out, _ = xla_gpu.torch.paged_attention(*arrays, **given, return_lse=True)
        assert torch.equal(out, want)
    assert torch.equal(ops.paged_attention(*arrays, array.reshape(1)), want)
    one = xla_gpu.torch.paged_attention(*arrays, 1)
    rows = int(arrays[4][1])
    assert torch.equal(one[:rows], want[:rows]) and not one[rows:].any()
    for dynamic in (None, True):
        step = torch.compile(
            xla_gpu.torch.paged_attention, backend="aot_eager", fullgraph=True, dynamic=dynamic
        )
        assert torch.equal(step(*arrays), want) and torch.equal(step(*arrays, max_seqs), want)
        torch._dynamo.reset()


def test_an_op_without_a_function_gets_one():
    for name, op in xla_gpu.torch._functions.GENERATED.items():
        assert getattr(xla_gpu.torch, name) is op and name in xla_gpu.torch.__all__
        assert "Returns:" in op.__doc__
    v3 = inspect.signature(xla_gpu.torch.ragged_paged_attention_v3)
    assert str(v3).startswith("(queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens,")
    assert "cache_layout='interleaved'" in str(v3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        xla_gpu.torch.simple_add(torch.ones(1))


def test_batch_invariant_is_what_the_environment_says_unless_it_is_given(monkeypatch):
    def attribute(**given):
        run, tensors, options = _kernels.INPUTS["paged_attention"](*small_batch(), 0.1, **given)
        return run.call(tensors, options).attrs["batch_invariant"]

    for value, want in (("1", True), ("0", False)):
        monkeypatch.setenv("XLA_GPU_BATCH_INVARIANT", value)
        assert attribute() is want
        assert attribute(batch_invariant=True) and not attribute(batch_invariant=False)
    args = small_batch()
    want = ops.paged_attention(*args, 0.1)
    for function in (ops.paged_attention, xla_gpu.torch.paged_attention):
        assert torch.equal(function(*args, 0.1, batch_invariant=True), want)


# ---- Fake tensors --------------------------------------------------------------------------------


def test_results_of_unknown_sizes_keep_them():
    """As after query[mask]: no example tells how many tokens there are."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        tokens = mode.shape_env.create_unbacked_symint()
        query = torch.empty(tokens, 8, 64)
        _, *rest = (mode.from_tensor(t) for t in small_batch())
        out, lse = ops.paged_attention_with_lse(query, *rest, 0.1, out_dtype=torch.bfloat16)
        assert out.shape == (tokens, 8, 64) and out.dtype == torch.bfloat16
        assert lse.shape == (tokens, 8) and lse.dtype == torch.float32
        assert ops.simple_add(query, query).shape == query.shape


def test_a_result_whose_sizes_the_schema_does_not_tell():
    """They are the library's, for the sizes of this trace."""
    form = _kernels._schema.FORMS["simple_add"]
    (result,) = form.results
    untold = dataclasses.replace(form, results=(dataclasses.replace(result, like=""),))
    fake = _registration._fake_kernel(_kernels._inputs(untold))
    a = torch.ones(7, 3, dtype=torch.bfloat16)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        a = mode.from_tensor(a)
        assert not isinstance(a.shape[0], int)
        result = fake(a, a)
    assert result.shape == (7, 3) and result.dtype == torch.bfloat16


# ---- ragged_paged_attention_v3 -------------------------------------------------------------------


def v3_case():
    static = ragged_v3.V3Static(dataclasses.replace(SMALL, max_pages=3))
    case = ragged_v3.v3_case(static, np.random.default_rng(3))
    return static, {name: to_torch(array).nan_to_num() for name, array in v3_arrays(case).items()}


@pytest.mark.parametrize("name", ["ragged_paged_attention_v3", "ragged_paged_attention_v3_"])
def test_opcheck_v3(name):
    _, args = v3_case()
    opcheck(getattr(ops, name).default, (), {**args, "sm_scale": 0.1})


@pytest.mark.filterwarnings("ignore")
def test_compiled_v3_in_place():
    torch._dynamo.reset()
    static, args = v3_case()

    def step(args):
        return v3_op(static, args, in_place=True)[0] + 1

    theirs = {**args, "kv_cache": args["kv_cache"].clone()}
    want = step(args)
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(theirs), want)
    assert torch.equal(theirs["kv_cache"], args["kv_cache"])


def test_v3_has_no_gradient():
    static, args = v3_case()
    for name in ("queries", "keys"):
        needs = {**args, name: args[name].float().requires_grad_()}
        with pytest.raises(NotImplementedError, match="attention_v3_ has no gradient"):
            v3_op(static, needs, in_place=True)
