"""An engine's start: what is compiled, when, and by how many threads; without a server."""

from __future__ import annotations

import dataclasses
import functools
import os
import types

import jax
import numpy as np
import pytest
import torch
import xla_gpu.vllm_xla
from xla_gpu.vllm_xla import _inputs, _replace, _start, _step
from xla_gpu.vllm_xla._attention import max_query_len
from xla_gpu.vllm_xla._names import UnsupportedError

MESH = jax.make_mesh((1,), ("data",), devices=jax.devices("cpu")[:1])


def runner_of(**other):
    plain = dict(dp_size=1, speculative_config=None, pcp_preprocessor=None, lora_config=None)
    plain |= dict(is_multimodal_model=False, is_pooling_model=False, enable_continue_decode=False)
    plain |= dict(is_first_rank=True, is_last_rank=True, num_reqs_paddings=[2, 4])
    plain |= dict(num_tokens_paddings=[2, 4, 8], max_num_reqs=3, uses_mrope=False)
    plain |= dict(_select_from_array_fn=None)
    return types.SimpleNamespace(mesh=MESH, **plain | other)


DRAFTS = types.SimpleNamespace(num_speculative_tokens=1)
OTHERS = [
    {"speculative_config": DRAFTS},
    {"lora_config": "some"},
    {"is_multimodal_model": True},
    {"is_pooling_model": True},
    {"enable_continue_decode": True},
    {"is_last_rank": False},
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_step_finds_its_compiled_function_once(other):
    found = []

    def _resolve_step_fn(kv_caches, with_options):
        found.append(with_options)
        return jax.jit(lambda weights, caches, *inputs: weights + caches)

    def model_fn(*args, **kwargs):
        return _resolve_step_fn(args[1], True)(*args)

    step = _step.Step(model_fn, runner_of(**other))
    args = np.float32(1), np.ones(2, np.float32), *range(4)
    assert step.lower(*args, shared_attention_metadata="some").compile()(*args).tolist() == [2, 2]
    assert step(*args, shared_attention_metadata="some").tolist() == [2, 2]
    assert found == [True]


@pytest.mark.parametrize("kind", ["flax", "torchax"])
def test_a_step_takes_its_inputs_in_one_array(kind):
    traced = []

    def impl(weights, caches, ids, attention, embeds, positions, layers, shared=None):
        traced.append(shared is not None)
        first, second = weights if kind == "flax" else (weights["b"], weights["a"])
        return [caches[0] + positions], first * ids + second * attention["lengths"][0], [], None

    if kind == "flax":
        flax = jax.jit(lambda *args: impl(*args), static_argnums=6)

        def _resolve_step_fn(kv_caches, with_options):
            return flax

        def model_fn(*args, shared_attention_metadata=None):
            return _resolve_step_fn(args[1], True)(*args)

        weights = np.float32(100), np.float32(1)
    else:

        @functools.partial(jax.jit, static_argnums=6)
        def model_fn(*args, shared_attention_metadata=None):
            return impl(*args, shared_attention_metadata)

        weights = {"b": np.float32(100), "a": np.float32(1)}
    weights = jax.tree.map(jax.numpy.asarray, weights)
    step = _step.Step(model_fn, runner_of())

    def arguments(array):
        positions, lengths = array([5, 6, 7, 8]), array([9, 0])
        made = array([1, 2, 3, 4]), {"lengths": lengths}, None, positions
        return made, {"lengths": lengths, "positions": positions}

    made, shared = arguments(lambda x: jax.numpy.asarray(x, np.int32))
    rest = (("layer", 0),)
    everywhere = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())
    caches = [jax.device_put(np.zeros(4, np.int32), everywhere)]
    step.lower(weights, caches, *made, rest, shared_attention_metadata=shared).compile()
    caches, *_ = step(weights, caches, *made, rest, shared_attention_metadata=shared)
    assert not caches[0].any()  # of made-up inputs, which are zeros

    (ids, attention, _, positions), shared = arguments(lambda x: np.array(x, np.int32))
    packed = _inputs.Packed([ids, positions, attention, shared])
    for last, at, of in ((None, (), ()), (np.int32([30, 40]), [3, 0], [1, 0]), (None, (), ())):
        packed.take(last if last is None else jax.numpy.asarray(last), at, of)
        before = caches[0]
        caches, hidden, _, _ = step(
            weights, caches, packed, None, None, None, rest, shared_attention_metadata=None
        )
        want = [1, 2, 3, 4] if last is None else [30, 2, 3, 40]
        assert hidden.tolist() == [100 * x + 9 for x in want]
        assert before.is_deleted()
    assert caches[0].tolist() == [15, 18, 21, 24]
    assert traced == [kind == "torchax"]  # once


@pytest.mark.parametrize(("dp_size", "rows"), [(1, 4), (2, 2)])
def test_a_step_has_states_of_as_many_rows_as_requests(dp_size, rows):
    @functools.partial(jax.jit, static_argnums=6)
    def model_fn(weights, caches, ids, attention, embeds, positions, layers, **more):
        return [caches[0] + 0], jax.numpy.stack([ids, positions], 1), [], None

    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("data",), automatic, devices=jax.devices("cpu")[:1])
    runner = runner_of(dp_size=dp_size)
    runner.mesh, runner.model_fn = mesh, model_fn
    runner.compute_logits_fn = jax.jit(lambda *_: None)
    _step.logits_in_one_call(runner)
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    for size in (2, 8):
        caches = [jax.device_put(np.zeros(4, np.int32), everywhere)]
        ids, positions = np.ones((2, size), np.int32)
        made = (), caches, _inputs.Packed([ids, positions, ids, ids]), None, None, None, ()
        hidden = runner.model_fn(*made)[1]
        assert hidden.shape == (max(size, rows), 2)
        assert hidden[:size].all() and not hidden[size:].any()


@pytest.mark.parametrize(
    ("sizes", "room", "drafts", "promises"),
    [
        ([16, 32, 64], 32, 0, {}),  # a token of each, by the shapes
        ([16, 32, 64], 24, 0, {32: 1}),
        ([16, 32, 64, 128, 256], 32, 3, {64: 4, 128: 4}),
        ([16, 32, 48], 40, 1, {48: 2}),  # no step is padded further
        ([16, 32], 8, 0, {16: 1}),
    ],
)
def test_promises_are_of_sizes_that_decode_can_have(sizes, room, drafts, promises):
    speculation = types.SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
    runner = runner_of(num_tokens_paddings=sizes, max_num_reqs=room, speculative_config=speculation)
    assert _step.Step(jax.jit(lambda: None), runner).promises == promises


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Attention:
    seq_lens: np.ndarray


@pytest.mark.parametrize("other", [{}, {"is_multimodal_model": True}])
def test_a_step_that_only_decodes_promises_it(other):
    """To functions within the step too, which JAX would not trace again for equal arguments."""
    traced = []

    @jax.jit
    def attend(positions):
        traced.append(max_query_len.value)
        return 0 * positions + max_query_len.value

    @functools.partial(jax.jit, static_argnums=6)
    def model_fn(weights, caches, ids, attention, embeds, positions, layers, **more):
        return [caches[0] + 0], attend(positions), [], None

    step = _step.Step(model_fn, runner_of(**other))
    everywhere = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())

    def hidden(size, query_lens):
        caches = [jax.device_put(np.zeros(4, np.int32), everywhere)]
        ids, positions = np.ones((2, size), np.int32)
        attention = Attention(np.ones(3, np.int32))
        if query_lens is not None and step.takes_words:
            ids = _inputs.Packed([ids, positions, attention, attention])
            ids.query_lens, positions, attention = query_lens, None, None
        elif query_lens is not None:
            attention.query_lens = query_lens
        return step((), caches, ids, attention, None, positions, ())[1].tolist()

    for size, query_lens, promised in (
        (4, None, 0),  # made-up
        (4, {"a": 1, "b": 1}, 1),
        (4, {"a": 1, "b": 2}, 0),
        (2, {"a": 1, "b": 1}, 0),  # the shapes say it
        (8, {"a": 1, "b": 1}, 0),  # which cannot be
    ):
        assert hidden(size, query_lens) == [promised] * size
    assert traced == [0, 1, 0, 0]


def test_a_step_made_otherwise_is_refused():
    with pytest.raises(UnsupportedError, match="should call _resolve_step_fn"):
        _step.Step(lambda *args: args, runner_of())


class Manager:
    """A CompilationManager that writes down what it is told to do."""

    def __init__(self, speculative_config=None, executor="threads"):
        self.told, self.promises, self._compile_executor = [], [], executor
        self.runner = types.SimpleNamespace(
            mesh=MESH,
            dp_size=1,
            speculative_config=speculative_config,
            pcp_preprocessor=None,
            kv_caches=["some"],
            is_last_rank=True,
            is_pooling_model=False,
            lora_config=None,
            asked=types.SimpleNamespace(ahead=lambda: [("penalized", "counts")]),
        )

    def capture_model(self):
        for name in ("steps", "logits"):
            self.told.append(name)
            self._flush_compilations()
        self._compile_executor = None

    @_start._at_the_end
    def _flush_compilations(self):
        self.told.append("flush")

    @_start._and_logits
    def _precompile_sampling(self):
        self.told.append("sampling")

    @_start._once
    def _precompile_select_from_array(self):
        self.told.append("rows")

    @_start._once
    def _precompile_compute_logits(self):
        self.told.append("logits")

    def _run_compilation(self, name, fn, *args, call_kwargs=None, **kwargs):
        self.told.append((name, args, call_kwargs, kwargs))
        self.promises.append(max_query_len.value)


def test_programs_are_waited_for_once():
    manager = Manager()
    _start._then_waited_for(Manager.capture_model)(manager)
    assert manager.told == ["steps", "logits", "flush"]


@pytest.mark.parametrize("manager", [Manager("some"), Manager(executor=None)])
def test_speculations_programs_and_one_threads_are_waited_for_in_turn(manager):
    _start._then_waited_for(Manager.capture_model)(manager)
    assert manager.told == ["steps", "flush", "logits", "flush", "flush"]


def test_logits_are_compiled_once_before_there_are_caches():
    manager = Manager()
    manager.runner.kv_caches = []
    manager._precompile_sampling()
    manager._flush_compilations()
    manager._precompile_select_from_array()
    manager._precompile_compute_logits()
    penalties = "penalties", ("counts",), None, {"compile_only": True}
    assert manager.told == ["rows", "logits", "sampling", penalties, "flush"]
    other = Manager()
    other._precompile_compute_logits()
    assert other.told == ["logits"]


@pytest.mark.parametrize(
    "other", [{"is_last_rank": False}, {"is_pooling_model": True}, {"lora_config": "some"}]
)
def test_logits_that_need_more_are_compiled_later(other):
    manager = Manager()
    vars(manager.runner).update(other)
    manager._precompile_sampling()
    assert manager.told[0] == "sampling"


@dataclasses.dataclass
class Sampled:
    """How tokens are sampled, as tpu-inference says it."""

    logprobs: bool
    _cache_collision_dummy: np.ndarray


def test_sampling_is_compiled_once_for_tokens_with_and_without_logprobs():
    traced = []

    @functools.partial(jax.jit, static_argnums=1, static_argnames="allow")
    def sample(rng, mesh, logits, metadata, allow=True):
        traced.append((metadata.logprobs, metadata._cache_collision_dummy))
        return logits + rng

    jax.tree_util.register_dataclass(Sampled, ["_cache_collision_dummy"], ["logprobs"])
    sampling = _step.Sampling(sample)
    for logprobs in (True, False):
        how = Sampled(logprobs, np.zeros(1 + logprobs))
        assert sampling.lower(1, None, np.ones(2), how, allow=True).compile()
        assert sampling(1, None, np.ones(2), how, allow=True).tolist() == [2, 2]
    assert traced == [(False, None)]

    manager = Manager()
    run = _start._with_all_arguments(Manager._run_compilation)
    for allowed in (True, False):
        for logprobs in (True, False):
            run(manager, "sample", sampling, 1, num_reqs=2, logprobs=logprobs, allowed=allowed)
    assert [kwargs["allowed"] for *_, kwargs in manager.told] == [True, False]


class Caches(Manager):
    """A manager whose programs compile before there are caches."""

    def __init__(self, **other):
        super().__init__()
        runner, self._warmup_tasks = self.runner, []
        runner.model_fn = types.SimpleNamespace(takes_words=True)
        runner.model_config = types.SimpleNamespace(enforce_eager=False)
        runner.vllm_config = types.SimpleNamespace(kv_transfer_config=None)
        runner.compilation_manager, runner.kv_caches = self, []
        vars(runner).update(other)

    def _program(self, name, fn=None):
        self.told.append(name)
        self._warmup_tasks.append((name, fn))

    def _flush_compilations(self):
        self.told.append(("flush", [name for name, _ in self._warmup_tasks]))
        assert not self.runner.kv_caches
        self._warmup_tasks = []

    @_start._once
    def _precompile_backbone_text_only(self):
        assert isinstance(self.runner.kv_caches[0], jax.ShapeDtypeStruct)
        self._program("steps")

    @_start._once
    def _precompile_sampling(self):
        self._program("sampling")

    @_start._once
    def _precompile_gather_logprobs(self):
        self._program("logprobs")

    @_start._once
    def _precompile_structured_decoding(self):
        self._program("grammars")

    def initialize(self):
        """As tpu-inference's worker does."""
        self._precompile_sampling()
        self._precompile_gather_logprobs()
        place = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("data"))
        allocator = _start._as_shapes(lambda *args: lambda: "an array")
        self.runner.kv_caches += [allocator((2, 3), jax.numpy.bfloat16, place)() for _ in range(2)]


def test_programs_are_compiled_before_the_caches_take_memory():
    manager = Caches()
    with _start.before_there_are_caches(manager.runner):
        manager.initialize()
    others = ["sampling", "logprobs", "grammars"]
    assert manager.told == ["steps", *others, ("flush", others)]
    assert [name for name, _ in manager._warmup_tasks] == ["steps"]  # to be called with the caches
    for cache in manager.runner.kv_caches:
        assert (cache.shape, cache.dtype, cache.any()) == ((2, 3), jax.numpy.bfloat16, False)
        assert cache.sharding.spec == jax.sharding.PartitionSpec("data")
    manager._precompile_backbone_text_only()
    assert manager.told.count("steps") == 1


@pytest.mark.parametrize(
    "other",
    [
        {"model_fn": types.SimpleNamespace(takes_words=False)},
        {"model_config": types.SimpleNamespace(enforce_eager=True)},
        {"vllm_config": types.SimpleNamespace(kv_transfer_config="some")},
    ],
)
def test_others_have_caches_before_their_steps(other):
    manager = Caches(**other)
    with _start.before_there_are_caches(manager.runner):
        manager.initialize()
    assert manager.told == ["sampling", "logprobs"]
    assert manager.runner.kv_caches == ["an array"] * 2


@pytest.mark.parametrize(
    ("dp_size", "tokens", "requests"), [(1, [4, 8], [4]), (2, [2, 4, 8], [2, 4])]
)
def test_logits_are_compiled_for_the_states_that_there_are(dp_size, tokens, requests):
    runner = runner_of(dp_size=dp_size, compute_logits_fn=jax.jit(lambda *_: None))
    runner.model_fn, runner._select_from_array_fn = jax.jit(lambda: None), None
    _step.logits_in_one_call(runner)
    manager, seen = types.SimpleNamespace(runner=runner), []

    def precompile(self):
        seen.append((self.runner.num_tokens_paddings, self.runner.num_reqs_paddings))

    for make in (_start._of_states, _start._of_all_states):
        make(precompile)(manager)
    assert seen == [(tokens, [2, 4]), ([2, 4, 8], requests)]
    assert (runner.num_tokens_paddings, runner.num_reqs_paddings) == ([2, 4, 8], [2, 4])


@pytest.mark.parametrize("call_kwargs", [{}, {"a": 1}])
def test_a_step_is_lowered_with_the_arguments_of_its_calls(call_kwargs):
    manager = Manager()
    run = _start._with_all_arguments(Manager._run_compilation)
    run(manager, "step", None, 1, call_kwargs=call_kwargs, shared_attention_metadata=2, size=3)
    run(manager, "logits", None, 1, size=3)
    assert manager.told == [
        ("step", (1,), {**call_kwargs, "shared_attention_metadata": 2}, manager.told[0][3]),
        ("logits", (1,), {}, {"size": 3}),
    ]
    assert manager.told[0][3]["size"] == 3


def test_a_step_is_compiled_with_its_promise_as_well():
    manager, warm = Manager(), []
    step = _step.Step(jax.jit(lambda: None), runner_of())
    run = _start._with_all_arguments(Manager._run_compilation)
    for size in (2, 4, 8):
        handler = functools.partial(lambda *args: warm.append((args, max_query_len.value)))
        run(manager, "step", step, size, num_tokens=size, warmup_handler=handler)
    told = [(args, kwargs.get("max_query_len", 0)) for _, args, _, kwargs in manager.told]
    assert told == [((2,), 0), ((4,), 0), ((4,), 1), ((8,), 0)]
    assert manager.promises == [0, 0, 1, 0]
    for *_, kwargs in manager.told:  # later
        kwargs["warmup_handler"]("fn", "args")
    assert warm == [(("fn", "args"), promise) for promise in manager.promises]


@pytest.mark.parametrize("speculative_config", [None, "some"])
def test_tokens_are_put_in_by_tpu_inference_only_where_it_is_called(speculative_config):
    manager = Manager(speculative_config)
    _start._only_if_called(lambda self: self.told.append("substitution"))(manager)
    assert manager.told == (["substitution"] if speculative_config else [])


@pytest.mark.parametrize("dtype", [jax.numpy.bfloat16, "int32", torch.float32])
@pytest.mark.parametrize("spec", [None, jax.sharding.PartitionSpec("data")])
def test_made_up_arrays_come_from_the_host(dtype, spec):
    sharding = spec and jax.sharding.NamedSharding(MESH, spec)
    array = _start._sent_from_the_host(None)(Manager(), (2, 3), dtype, sharding)
    assert array.tolist() == [[1, 1, 1]] * 2
    assert array.dtype.name in str(dtype)
    assert array.sharding.mesh == MESH
    assert sharding is None or array.sharding == sharding


def test_models_are_looked_at_in_this_process():
    here = object()
    assert _start._in_this_process(None)(lambda: here) is here


def test_programs_are_compiled_at_once(monkeypatch):
    for cores, given, used in ((3, None, "3"), (64, None, "8"), (3, "1", "1")):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        monkeypatch.setattr("os.environ", {"NUM_PRECOMPILE_WORKERS": given} if given else {})
        xla_gpu.vllm_xla.prepare_environment()
        assert os.environ["NUM_PRECOMPILE_WORKERS"] == used


GRAPHS, LEVEL = "--xla_gpu_enable_command_buffer=", "--xla_gpu_autotune_level="


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (None, f"{GRAPHS}+COLLECTIVES {LEVEL}2"),
        ("--one", f"--one {GRAPHS}+COLLECTIVES {LEVEL}2"),
        (GRAPHS, f"{GRAPHS} {LEVEL}2"),
        (f"{LEVEL}4", f"{LEVEL}4 {GRAPHS}+COLLECTIVES"),
    ],
)
def test_flags_of_xla_are_set_unless_given(monkeypatch, given, used):
    monkeypatch.setattr("os.environ", {"XLA_FLAGS": given} if given is not None else {})
    xla_gpu.vllm_xla.prepare_environment()
    assert os.environ["XLA_FLAGS"] == used


@pytest.mark.parametrize(
    ("given", "torchax"),
    [
        ({}, True),
        ({"architectures": ["Qwen2ForCausalLM"]}, True),  # whose own model needs tied embeddings
        ({"architectures": ["Qwen2ForCausalLM"], "method": "eagle3"}, False),
        ({"architectures": ["GemmaForCausalLM"]}, False),
        ({"architectures": None}, False),
        ({"method": "ngram"}, True),
        ({"method": "eagle3"}, False),
        ({"quantization": "fp8", "method": "eagle3"}, True),
        ({"draft": True, "quantization": "fp8"}, False),
    ],
)
def test_which_models_are_torchax(given, torchax):
    method = given.get("method")
    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            quantization=given.get("quantization"),
            hf_config=types.SimpleNamespace(
                architectures=given.get("architectures", ["LlamaForCausalLM"])
            ),
        ),
        speculative_config=types.SimpleNamespace(method=method) if method else None,
    )
    resolve = _replace._torchax_if_quantized_or_faster(lambda config, is_draft_model: "flax_nnx")
    found = resolve(config, given.get("draft", False))
    assert found == ("vllm" if torchax else "flax_nnx")


YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}


@pytest.mark.parametrize(
    ("impl", "more", "said"),
    [
        ("flax_nnx", YARN, ["rope_type is 'yarn'"]),
        ("flax_nnx", {"use_sliding_window": True}, ["use_sliding_window is True"]),
        ("flax_nnx", {"rope_parameters": {"rope_type": "llama3"}}, []),
        ("flax_nnx", {"rope_parameters": None}, []),
        ("flax_nnx", YARN | {"architectures": ["GptOssForCausalLM"]}, []),
        ("auto", YARN, []),
        ("auto", YARN | {"method": "eagle3"}, ["rope_type is 'yarn'"]),
        ("vllm", YARN | {"method": "eagle3"}, []),
    ],
)
def test_what_flax_models_compute_otherwise_is_told(monkeypatch, impl, more, said):
    monkeypatch.setenv("MODEL_IMPL_TYPE", impl)
    more = {"architectures": ["Qwen2ForCausalLM"]} | more
    method = more.pop("method", None)
    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            quantization=None, hf_config=types.SimpleNamespace(**more)
        ),
        speculative_config=types.SimpleNamespace(method=method) if method else None,
    )
    found = _replace.otherwise_in_flax(config)
    assert [what.split(",")[0] for what in found] == said
