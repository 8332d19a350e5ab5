"""Each public function against the schema of its op, and the functions that the schema makes."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_gpu.jax
from problems import SMALL
from xla_gpu import _ops, _schema
from xla_gpu.jax import _functions, _primitive

# What the function of an op has its own name or way for: schema's name -> parameter.
RENAMED = {"v_cache": "kv_cache"}  # a pair (K, V)
ABSENT = object()
# Where the function has another default, or none to give.
SET_BY_THE_FUNCTION = {
    "paged_attention": {"num_seqs": None},
    # The TPU kernels' signatures: 1.0 as theirs; layout and sinks are what makes hd64 another one.
    "ragged_paged_attention_v3": {
        "sm_scale": 1.0,
        "cache_layout": ABSENT,
        "attention_sink": ABSENT,
        "batch_invariant": ABSENT,
    },
}


@pytest.mark.parametrize("op", _schema.schemas())
def test_every_argument_and_attribute_of_an_op_can_be_given(op):
    ours = inspect.signature(getattr(xla_gpu.jax, op)).parameters
    theirs = inspect.signature(_functions.function(op)).parameters
    own = SET_BY_THE_FUNCTION.get(op, {})
    for name, parameter in theirs.items():
        if own.get(name) is ABSENT:
            assert name not in ours
            continue
        found = ours[RENAMED.get(name, name) if name not in ours else name]
        if name in own:
            assert found.default == own[name]
        elif name not in RENAMED:
            assert found.default == parameter.default, name
    assert [n for n in theirs if n in ours] == sorted(
        (n for n in ours if n in theirs), key=list(theirs).index
    )


def test_a_function_of_the_schema():
    add = xla_gpu.jax.simple_add
    assert add is xla_gpu.jax.simple_add and add is _functions.function("simple_add")
    assert str(inspect.signature(add)) == "(a, b)"
    assert "a: f32, bf16, f16 or i32, any shape." in add.__doc__
    assert "simple_add" in dir(xla_gpu.jax)
    a = jnp.arange(3.0)
    assert (add(b=a, a=a + 1) == 2 * a + 1).all()
    for call in (lambda: add(a), lambda: add(a, a, a), lambda: add(a, a, b=a), lambda: add(a, c=a)):
        with pytest.raises(TypeError, match="argument"):
            call()
    with pytest.raises(AttributeError, match="no attribute 'simple_sub'"):
        _ = xla_gpu.jax.simple_sub


def attention_args():
    s = SMALL
    return {
        "query": jnp.ones((s.tokens, s.q_heads, s.head_dim)),
        "kv_cache": jnp.ones((s.pages, s.page_size, 2 * s.kv_heads, s.head_dim)),
        "context_lens": jnp.ones(s.max_seqs, jnp.int32),
        "block_tables": jnp.zeros((s.max_seqs, s.max_pages), jnp.int32),
        "query_start_loc": jnp.arange(s.max_seqs + 1, dtype=jnp.int32),
        "num_seqs": jnp.array([s.max_seqs], jnp.int32),
    }


def test_the_schemas_functions_are_the_hand_written_ones():
    """Each argument and attribute differs from the others and from its default."""
    args = attention_args()
    sinks = jnp.arange(SMALL.q_heads, dtype=jnp.bfloat16)
    rest = {"sinks": sinks, "k_scale": jnp.bfloat16(0.5), "v_scale": 2, "scale": 0.25}
    rest |= {"sliding_window": 3, "soft_cap": 2.0, "causal": False, "return_lse": True}
    rest |= {"max_query_len": 2, "out_dtype": jnp.float16, "batch_invariant": True}
    cache = args.pop("kv_cache")
    pair = {"kv_cache": cache[:, :, 0::2], "v_cache": cache[:, :, 1::2]}
    assert_same_program("paged_attention", args | rest, pair)

    key = jnp.ones((SMALL.tokens, SMALL.kv_heads, SMALL.head_dim))
    args = {"key": key, "value": key, "slot_mapping": jnp.zeros(SMALL.tokens, jnp.int32)}
    assert_same_program("update_kv_cache", args | {"k_scale": jnp.float32(2), "v_scale": 2}, pair)


def assert_same_program(op, args, pair):
    arrays = {name: value for name, value in args.items() if isinstance(value, jax.Array)}
    made, ours = _functions.function(op), getattr(xla_gpu.jax, op)

    def call_made(arrays, pair):
        return made(**args | arrays, **pair)

    def call_ours(arrays, pair):
        return ours(**args | arrays, kv_cache=(pair["kv_cache"], pair["v_cache"]))

    programs = [str(jax.make_jaxpr(f)(arrays, pair)) for f in (call_made, call_ours)]
    assert programs[0] == programs[1]


def test_call_takes_names():
    args = attention_args()
    out, lse = _primitive.call("paged_attention", args, {"scale": 0.5, "return_lse": True})
    assert out.shape == args["query"].shape and lse.shape == out.shape[:2]
    for wrong in ({"querry": args["query"]}, {"sink": args["query"]}):
        with pytest.raises(ValueError, match="paged_attention: no argument is named"):
            _primitive.call("paged_attention", args | wrong, {"scale": 0.5})
    with pytest.raises(ValueError, match="unknown attribute 'scales'"):
        _primitive.call("paged_attention", args, {"scale": 0.5, "scales": 1.0})
    with pytest.raises(ValueError, match="query is None; it must be an array"):
        _primitive.call("paged_attention", args | {"query": None}, {"scale": 0.5})
    with pytest.raises(LookupError, match="no op 'attention'"):
        _primitive.call("attention", args, {})


def test_none_is_the_default():
    """num_seqs: all, scale: head_dim ** -0.5; window and cap: none."""
    args = attention_args()
    count = {"num_seqs": args.pop("num_seqs")}
    scale = SMALL.head_dim**-0.5
    want = xla_gpu.jax.paged_attention(**args, **count, scale=scale)
    for given in (
        {},
        {"num_seqs": None, "scale": None, "sliding_window": None, "soft_cap": None},
        {"num_seqs": SMALL.max_seqs},
        {"num_seqs": jnp.int32(SMALL.max_seqs)},
        {"num_seqs": np.int64(SMALL.max_seqs), "scale": scale},
    ):
        assert (xla_gpu.jax.paged_attention(**args, **given) == want).all()
        jitted = jax.jit(lambda args, given=given: xla_gpu.jax.paged_attention(**args, **given))
        assert (jitted(args) == want).all()
    by_name = _primitive.call("paged_attention", args | count, {})
    assert (by_name[0] == want).all()
    two_names = [*args.values(), count["num_seqs"]]
    assert (xla_gpu.jax.ragged_paged_attention(*two_names, sm_scale=None) == want).all()
    one = xla_gpu.jax.paged_attention(**args, num_seqs=1)
    assert (one[:1] == want[:1]).all() and not one[1:].any()


def test_the_scale_of_v3_is_by_default_the_tpu_kernels():
    cache = jnp.ones(xla_gpu.jax.packed_kv_cache_shape(2, 4, 1, 16, jnp.float32))
    token, i32 = jnp.ones((1, 1, 16)), jnp.int32
    indices = (jnp.ones(1, i32), jnp.zeros(1, i32), jnp.arange(2, dtype=i32), jnp.ones(3, i32))

    def scale_of(**given):
        v3 = functools.partial(xla_gpu.jax.ragged_paged_attention_v3, **given)
        text = str(jax.make_jaxpr(v3)(token, token, token, cache, *indices))
        return float(re.search(r"'sm_scale', ([\d.]+)", text)[1])

    assert scale_of() == 1 and scale_of(sm_scale=None) == 0.25
    assert scale_of(sm_scale=None, q_scale=2.0) == 0.5


def test_a_workspace_may_be_larger_than_the_library_asks():
    """A saved program has the size of the library that it was made with."""
    specs = [_ops.spec_of(array) for array in attention_args().values()]
    if "CUDA" not in _schema.schema("paged_attention").platforms:
        pytest.skip("this library was built without the CUDA kernels")
    attrs = {"scale": 0.5}
    out, workspace = (r.spec for r in _ops.infer("paged_attention", "CUDA", specs, attrs))
    for change, fits in ((0, True), (4096, True), (-1, False)):
        results = [out, _ops.TensorSpec("u8", (workspace.shape[0] + change,))]
        if fits:
            _ops.opaque("paged_attention", "CUDA", specs, attrs, results)
        else:
            with pytest.raises(ValueError, match="or larger"):
                _ops.opaque("paged_attention", "CUDA", specs, attrs, results)


@pytest.mark.parametrize("variable", [None, "0", "1"])
@pytest.mark.parametrize("given", [None, False, True])
def test_batch_invariant_is_what_is_given_or_the_environments(monkeypatch, variable, given):
    if variable is None:
        monkeypatch.delenv("XLA_GPU_BATCH_INVARIANT", raising=False)
    else:
        monkeypatch.setenv("XLA_GPU_BATCH_INVARIANT", variable)
    want = (variable == "1") if given is None else given
    args = attention_args()
    attrs = f"('batch_invariant', {want})"

    def attend(args):
        return xla_gpu.jax.paged_attention(**args, scale=0.5, batch_invariant=given)

    assert attrs in str(jax.make_jaxpr(attend)(args))
    text = jax.jit(attend).lower(args).as_text()
    assert f"batch_invariant = {str(want).lower()}" in text
    if given is None:
        by_name = jax.make_jaxpr(lambda a: _primitive.call("paged_attention", a, {"scale": 0.5}))
        assert attrs in str(by_name(args))
        assert attrs in str(
            jax.make_jaxpr(lambda *a: xla_gpu.jax.ragged_paged_attention(*a))(*args.values())
        )
        cache = jnp.zeros(xla_gpu.jax.packed_kv_cache_shape(2, 4, 1, 8, jnp.float32))
        token, i32 = jnp.ones((1, 1, 8)), jnp.int32
        indices = (jnp.ones(1, i32), jnp.zeros(1, i32), jnp.arange(2, dtype=i32), jnp.ones(3, i32))
        v3 = jax.make_jaxpr(lambda *a: xla_gpu.jax.ragged_paged_attention_v3(*a))
        assert attrs in str(v3(token, token, token, cache, *indices))


def test_what_gives_an_array_by_dunder_jax_array_is_one():
    class Holder:
        def __init__(self, array):
            self.array = array

        def __jax_array__(self):
            return self.array

    args = attention_args()
    want = xla_gpu.jax.paged_attention(**args)
    held = {name: Holder(jnp.asarray(array)) for name, array in args.items()}
    assert (xla_gpu.jax.paged_attention(**held) == want).all()
    assert (jax.jit(lambda: xla_gpu.jax.paged_attention(**held))() == want).all()
