"""examples/jax/llama.py and llama_engine.py: checkpoints, the step, sampling, the scheduler."""

from __future__ import annotations

import json
import random
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_llama
from tiny_llama import random_requests

sys.path.insert(0, str(tiny_llama.EXAMPLES))
import llama
from llama_engine import Engine, Sequence


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    """GPUs round float32 products otherwise."""
    with jax.default_matmul_precision("highest"):
        yield


def load(folder, dtype=jnp.float32):
    config = llama.read_config(folder)
    return config, llama.load_weights(config, llama.open_tensors(folder), dtype)


# ---- The step ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(llama_checkpoint):
    """An engine whose 14 pages are far too few for its 8 sequences."""
    config, weights = load(llama_checkpoint("llama3"))
    return Engine(config, weights, max_len=128, max_seqs=8, budget=24, page_size=8, num_pages=14)


def new_sequence(prompt, count, temperature=0.0, top_p=1.0, seed=0, stop=frozenset()):
    return Sequence(list(prompt), count, temperature, top_p, seed, stop)


def run(engine, sequences):
    """Runs all to their end; the tokens of each."""
    prompts = [len(s.tokens) for s in sequences]
    for sequence in sequences:
        engine.add(sequence)
    while batch := engine.schedule():
        engine.deliver(batch, np.asarray(engine.start(batch)))
    return [s.tokens[n:] for s, n in zip(sequences, prompts, strict=True)]


@pytest.mark.parametrize("kind", tiny_llama.KINDS)
def test_logits_of_chunks_and_decodes_are_the_models(llama_checkpoint, kind):
    """Two sequences, in chunks that begin and end anywhere in pages that lie anywhere."""
    config, weights = load(llama_checkpoint(kind))
    ids = np.random.default_rng(0).integers(3, 256, (2, 41))
    want = tiny_llama.Reference(llama_checkpoint(kind)).logits(ids)
    tables = np.array([[5, 0, 9], [2, 7, 4]], np.int32)
    shape = (10, 16, 2 * config.kv_heads, config.head_dim)
    caches = [jnp.full(shape, jnp.nan) for _ in range(config.layers)]
    step = jax.jit(lambda *args: llama.forward(config, *args), donate_argnums=1)
    read = np.zeros(2, np.int32)
    for chunk in ((13, 1), (1, 18), (20, 1), (1, 20), (6, 1)):
        new = np.array(chunk, np.int32)
        places = [(s, p) for s in range(2) for p in range(read[s], read[s] + new[s])]
        owner, positions = np.array(places, np.int32).T
        read += new
        batch = llama.Batch(
            tokens=ids[owner, positions],
            positions=positions,
            slots=tables[owner, positions // 16] * 16 + positions % 16,
            lens=read,
            tables=tables,
            starts=np.cumsum([0, *new], dtype=np.int32),
            num_seqs=np.array([2], np.int32),
            temperature=np.zeros(2, np.float32),
            top_p=np.ones(2, np.float32),
            seeds=np.zeros(2, np.uint32),
        )
        logits, caches = step(weights, caches, batch)
        np.testing.assert_allclose(logits, want[[0, 1], read - 1], rtol=1e-3, atol=1e-4)
    assert (read == 41).all()


def test_bfloat16_is_near(llama_checkpoint):
    config, weights = load(llama_checkpoint("llama"), jnp.bfloat16)
    prompt = random_requests(1, seed=3, longest=40, most=1)[0][0]
    engine = Engine(config, weights, max_seqs=1, budget=64, num_pages=8)
    (token,) = run(engine, [new_sequence(prompt, 1)])[0]
    logits = tiny_llama.Reference(llama_checkpoint("llama")).logits(np.array([prompt]))[0, -1]
    assert logits.max() - logits[token] < 0.1  # their deviation is above 1
    assert all(cache.dtype == jnp.bfloat16 for cache in engine.caches)


def test_the_program_calls_ours_and_copies_no_cache(engine):
    shape = ",".join(map(str, engine.caches[0].shape))
    for program in engine.programs.values():
        text = program.as_text()
        for target in ("xla_gpu_update_kv_cache", "xla_gpu_paged_attention"):
            assert text.count(f'custom_call_target="{target}"') == len(engine.caches)
        assert f"f32[{shape}]" in text
        assert not re.search(rf"= f32\[{shape}\]\S* (copy|copy-start|transpose|fusion)\(", text)
        memory = program.memory_analysis()
        assert memory.alias_size_in_bytes >= sum(cache.nbytes for cache in engine.caches)


def test_caches_stay_where_they_are(engine):
    before = [cache.unsafe_buffer_pointer() for cache in engine.caches]
    run(engine, [new_sequence(range(3, 40), 5)])
    assert [cache.unsafe_buffer_pointer() for cache in engine.caches] == before


# ---- Sampling ------------------------------------------------------------------------------------


def draws(logits, temperature, top_p, number):
    """How often each token is drawn."""
    seeds = np.arange(number, dtype=np.uint32)
    batch = llama.Batch(*[None] * 10)._replace(
        lens=np.full(number, 7, np.int32),
        temperature=np.full(number, temperature, np.float32),
        top_p=np.full(number, top_p, np.float32),
        seeds=seeds,
    )
    rows = jnp.tile(jnp.asarray(logits, jnp.float32), (number, 1))
    return np.bincount(jax.jit(llama.sample)(rows, batch), minlength=len(logits))


@pytest.mark.parametrize(
    "temperature, top_p, kept", [(1.0, 1.0, 5), (0.7, 1.0, 5), (1.0, 0.75, 2), (2.0, 0.5, 2)]
)
def test_tokens_are_drawn_as_often_as_they_should(temperature, top_p, kept):
    logits = np.log([0.05, 0.5, 0.1, 0.3, 0.05])
    p = np.exp(logits / temperature)
    p[np.argsort(-p)[kept:]] = 0
    p /= p.sum()
    counts = draws(logits, temperature, top_p, 20_000)
    assert np.abs(counts - 20_000 * p).max() < 5 * np.sqrt(20_000 * 0.25)
    assert (counts[p == 0] == 0).all()


@pytest.mark.parametrize("temperature, top_p", [(0, 1), (1, 0), (1e-30, 1), (0, 0)])
def test_the_likeliest_alone(temperature, top_p):
    assert draws([1.0, 3.0, 2.0], temperature, top_p, 50).tolist() == [0, 50, 0]


def test_a_seed_gives_the_same_tokens_in_another_batch(engine):
    alone = run(engine, [new_sequence([5, 6, 7], 12, temperature=1.0, seed=9)])[0]
    others = [new_sequence([9] * n, 12, temperature=2.0, seed=n) for n in (1, 15, 30)]
    among = run(engine, [*others, new_sequence([5, 6, 7], 12, temperature=1.0, seed=9)])
    assert among[-1] == alone
    assert len({tuple(tokens) for tokens in among}) == 4


# ---- The scheduler -------------------------------------------------------------------------------


def check(engine, batch):
    """What must hold before each step."""
    held = [page for s in engine.running for page in s.table[: s.pages]]
    assert sorted(held + engine.free) == list(range(engine.num_pages))  # each page has one owner
    assert sum(n for _, n in batch) <= engine.budget
    assert len(engine.running) <= engine.max_seqs
    for sequence, n in batch:
        assert sequence in engine.running
        assert sequence.read + n <= len(sequence.tokens) <= sequence.pages * engine.page_size
    decodes = {s for s in engine.running if len(s.tokens) - s.read == 1}
    assert decodes <= {s for s, _ in batch}  # none waits for a prompt
    assert not any(s.pages or s.read for s in engine.waiting)
    assert batch or not (engine.running or engine.waiting)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_arrivals_and_departures(llama_checkpoint, engine, seed):
    """Random requests come, some are cancelled, pages run out; all others get the right tokens."""
    choose = random.Random(seed)
    reference = tiny_llama.Reference(llama_checkpoint("llama3"))
    requests = random_requests(60, seed, longest=60, most=40)
    coming, came = list(requests), []
    before = engine.preemptions
    while True:
        while coming and choose.random() < 0.4:
            came.append(new_sequence(*coming.pop()))
            engine.add(came[-1])
        batch = engine.schedule()
        check(engine, batch)
        if not batch and not coming:
            break
        if batch:
            tokens = engine.start(batch)
            if choose.random() < 0.1:
                engine.end(choose.choice(came), "cancelled")  # in the midst of a step
            engine.deliver(batch, np.asarray(tokens))
    assert engine.preemptions > before
    assert len(engine.free) == engine.num_pages
    assert not any(s.pages or s.read for s in came)
    done = [s for s in came if s.finish == "length"]
    assert {s.finish for s in came} == {"length", "cancelled"} and len(done) > 20
    asked = [(s.tokens[: -s.made], s.made) for s in done]
    assert reference.wrong(asked, [s.tokens[-s.made :] for s in done]) == []


def test_a_stop_token_ends_a_sequence(engine):
    free = run(engine, [new_sequence([5, 6, 7], 12)])[0]
    stopped = new_sequence([5, 6, 7], 12, stop=frozenset([free[4]]))
    assert run(engine, [stopped])[0] == free[: free.index(free[4]) + 1]
    assert stopped.finish == "stop"


# ---- The checkpoint ------------------------------------------------------------------------------


WRONG_CONFIGS = {
    "architectures": (["GptOssForCausalLM"], r"architectures is \['GptOssForCausalLM'\]"),
    "hidden_act": ("gelu", "hidden_act is 'gelu'; allowed: .*silu"),
    "rope_scaling": ({"rope_type": "yarn"}, "rope_type is 'yarn'; allowed: default, llama3"),
    "quantization_config": ({"quant_method": "fp8"}, "quantization_config is"),
    "intermediate_size": (128, r"mlp.gate_proj.weight is F32 of \[256, 256\]; allowed: .*\[128"),
    "num_hidden_layers": (3, "has the tensor model.layers.2"),
}


@pytest.mark.parametrize("name", WRONG_CONFIGS)
def test_a_checkpoint_that_is_not_served(tmp_path, name):
    value, message = WRONG_CONFIGS[name]
    folder = tiny_llama.write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:-1000], "ends before model.layers.1.* does"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1", "is no safetensors file"),
        (lambda data: b"", "is no safetensors file"),
    ],
)
def test_a_damaged_checkpoint(tmp_path, damage, message):
    (file,) = tiny_llama.write(tmp_path, tie_word_embeddings=True).glob("*.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_configs_as_transformers_5_writes_them(tmp_path):
    config = tiny_llama.SIZES | {"dtype": "bfloat16"}
    theta = config.pop("rope_theta")
    config["rope_parameters"] = tiny_llama.LLAMA3 | {"rope_theta": theta}
    (tmp_path / "config.json").write_text(json.dumps(config))
    new = llama.read_config(tmp_path)
    old = tiny_llama.SIZES | {"rope_scaling": tiny_llama.LLAMA3}
    (tmp_path / "config.json").write_text(json.dumps(old))
    np.testing.assert_array_equal(new.frequencies, llama.read_config(tmp_path).frequencies)
    assert new.dtype == "bfloat16"


def test_end_tokens_of_the_generation_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_llama.SIZES))
    assert llama.read_config(tmp_path).eos == {1}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert llama.read_config(tmp_path).eos == {7, 9}
