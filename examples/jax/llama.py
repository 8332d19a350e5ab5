"""A Llama or Qwen3 model as Hugging Face keeps it, and one step of it over a paged cache.

`read_config` and `load_weights` read the folder. `forward` is the step: the new tokens of many
sequences, prompts and single tokens mixed, in one loop over the layers (docs/decode-loop.md).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from xla_gpu.jax import paged_attention, update_kv_cache

# ---- The checkpoint ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    """What config.json says, as far as the step needs it."""

    hidden: int
    mlp: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    eps: float
    frequencies: np.ndarray  # f32 [head_dim / 2]: of the rotary embedding, radians a position
    qk_norm: bool  # Qwen3 norms queries and keys
    tied: bool  # the head is the embedding
    eos: frozenset[int]
    dtype: str


NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
NEEDED += ("vocab_size", "max_position_embeddings", "rms_norm_eps")
ALLOWED = {  # the last is what a missing entry means
    "architectures": (["Qwen3ForCausalLM"], ["LlamaForCausalLM"]),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "quantization_config": (None,),
}


def read_config(folder: pathlib.Path) -> Config:
    given = json.loads((folder / "config.json").read_text())
    if missing := [name for name in NEEDED if name not in given]:
        raise ValueError(f"config.json has no {', '.join(missing)}")
    for name, values in ALLOWED.items():
        if given.get(name, values[-1]) not in values:
            raise ValueError(f"config.json: {name} is {given[name]!r}; allowed: {values}")
    head_dim = given.get("head_dim") or given["hidden_size"] // given["num_attention_heads"]
    eos = given.get("eos_token_id")
    if (generation := folder / "generation_config.json").exists():
        eos = json.loads(generation.read_text()).get("eos_token_id", eos)
    return Config(
        hidden=given["hidden_size"],
        mlp=given["intermediate_size"],
        layers=given["num_hidden_layers"],
        q_heads=given["num_attention_heads"],
        kv_heads=given.get("num_key_value_heads") or given["num_attention_heads"],
        head_dim=head_dim,
        vocab=given["vocab_size"],
        max_len=given["max_position_embeddings"],
        eps=given["rms_norm_eps"],
        frequencies=rope_frequencies(given, head_dim),
        qk_norm=given.get("architectures") == ["Qwen3ForCausalLM"],
        tied=bool(given.get("tie_word_embeddings")),
        eos=frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        dtype=given.get("dtype") or given.get("torch_dtype") or "float32",
    )


def rope_frequencies(given: dict[str, Any], head_dim: int) -> np.ndarray:
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or given.get("rope_theta") or 10000.0
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "llama3":  # slow rotations are slowed further, fast ones are kept
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequencies *= kept + (1 - kept) / rope["factor"]
    elif kind != "default":
        raise ValueError(f"config.json: rope_type is {kind!r}; allowed: default, llama3")
    return frequencies.astype(np.float32)


DTYPES = {"F32": jnp.float32, "F16": jnp.float16, "BF16": jnp.bfloat16}
GetTensor = Callable[..., np.ndarray]  # (name, *shape)


def open_tensors(folder: pathlib.Path) -> GetTensor:
    """The tensors of *.safetensors: of each file a length, a header in JSON, then their bytes."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if not 0 < size <= file.stat().st_size - 8:
                raise ValueError(f"{file} is no safetensors file, or not all of it")
            header = json.loads(opened.read(size))
        data = np.memmap(file, np.uint8, "r", offset=8 + size)
        found |= {name: (info, data) for name, info in header.items() if name != "__metadata__"}

    def get(name: str, *shape: int) -> np.ndarray:
        if name not in found:
            raise ValueError(f"{folder}: no *.safetensors here has the tensor {name}")
        info, data = found[name]
        if info["dtype"] not in DTYPES or tuple(info["shape"]) != shape:
            allowed = f"{', '.join(DTYPES)} of {list(shape)}"
            raise ValueError(f"{name} is {info['dtype']} of {info['shape']}; allowed: {allowed}")
        begin, end = info["data_offsets"]
        if end > data.size:
            raise ValueError(f"{data.filename} ends before {name} does")
        return data[begin:end].view(DTYPES[info["dtype"]]).reshape(shape)

    return get


def random_tensors(dtype: Any) -> GetTensor:
    """Weights without a file, to try a model's speed."""
    some = (np.random.default_rng(0).standard_normal(1 << 20, np.float32) / 16).astype(dtype)
    return lambda name, *shape: np.resize(some[len(name) :], shape)


def load_weights(c: Config, get: GetTensor, dtype: Any) -> dict[str, Any]:
    q, kv = c.q_heads * c.head_dim, c.kv_heads * c.head_dim

    def put(*parts: np.ndarray) -> jax.Array:
        return jnp.asarray(np.concatenate(parts).astype(dtype, copy=False))

    def layer(i: int) -> dict[str, jax.Array]:
        def of(name: str, *shape: int) -> np.ndarray:
            return get(f"model.layers.{i}.{name}.weight", *shape)

        qkv = (("q", q), ("k", kv), ("v", kv))
        weights = {
            "norm1": put(of("input_layernorm", c.hidden)),
            "qkv": put(*(of(f"self_attn.{n}_proj", rows, c.hidden) for n, rows in qkv)),
            "o": put(of("self_attn.o_proj", c.hidden, q)),
            "norm2": put(of("post_attention_layernorm", c.hidden)),
            "gate_up": put(*(of(f"mlp.{n}_proj", c.mlp, c.hidden) for n in ("gate", "up"))),
            "down": put(of("mlp.down_proj", c.hidden, c.mlp)),
        }
        for name in ("q_norm", "k_norm") if c.qk_norm else ():
            weights[name] = put(of(f"self_attn.{name}", c.head_dim))
        return weights

    embedding = put(get("model.embed_tokens.weight", c.vocab, c.hidden))
    return {
        "embedding": embedding,
        "layers": [layer(i) for i in range(c.layers)],
        "norm": put(get("model.norm.weight", c.hidden)),
        "head": embedding if c.tied else put(get("lm_head.weight", c.vocab, c.hidden)),
    }


# ---- The model -----------------------------------------------------------------------------------


class Batch(NamedTuple):
    """The new tokens of all sequences, one sequence after the other, then padding."""

    tokens: jax.Array  # i32 [tokens]
    positions: jax.Array  # i32 [tokens]: in its sequence
    slots: jax.Array  # i32 [tokens]: page * page_size + place in the page; -1 in padding
    lens: jax.Array  # i32 [seqs]: tokens of each sequence, the new ones included
    tables: jax.Array  # i32 [seqs, pages of the longest]: the pages of each
    starts: jax.Array  # i32 [seqs + 1]: its first row in tokens
    num_seqs: jax.Array  # i32 [1]: the rest is padding
    temperature: jax.Array  # f32 [seqs]
    top_p: jax.Array  # f32 [seqs]
    seeds: jax.Array  # u32 [seqs]


def norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    y = x.astype(jnp.float32)
    y *= jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return weight * y.astype(x.dtype)


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("ti,oi->to", x, weight)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def forward(
    c: Config, weights: dict[str, Any], caches: list[jax.Array], batch: Batch
) -> tuple[jax.Array, list[jax.Array]]:
    """The logits [seqs, vocab] after each sequence's last token, and the caches."""
    angles = batch.positions[:, None, None] * c.frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x = weights["embedding"][batch.tokens]
    updated = []
    for w, cache in zip(weights["layers"], caches, strict=True):
        y = linear(norm(x, w["norm1"], c.eps), w["qkv"])
        y = y.reshape(-1, c.q_heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = jnp.split(y, [c.q_heads, c.q_heads + c.kv_heads], axis=1)
        if c.qk_norm:
            q, k = norm(q, w["q_norm"], c.eps), norm(k, w["k_norm"], c.eps)
        cache = update_kv_cache(rotate(k, cos, sin), v, cache, batch.slots)
        updated.append(cache)
        index = batch.lens, batch.tables, batch.starts, batch.num_seqs
        out = paged_attention(rotate(q, cos, sin), cache, *index)
        x += linear(out.reshape(len(x), -1), w["o"])
        gate, up = jnp.split(linear(norm(x, w["norm2"], c.eps), w["gate_up"]), 2, axis=1)
        x += linear(jax.nn.silu(gate) * up, w["down"])
    last = norm(x[jnp.maximum(batch.starts[1:] - 1, 0)], weights["norm"], c.eps)
    return linear(last, weights["head"]).astype(jnp.float32), updated


def sample(logits: jax.Array, batch: Batch) -> jax.Array:
    """The next tokens, i32 [seqs]: the likeliest at temperature 0, else drawn among top-p."""
    likeliest = jnp.argmax(logits, -1).astype(jnp.int32)

    def draw() -> jax.Array:
        order = jnp.argsort(-logits, -1)
        z = jnp.take_along_axis(logits, order, -1)
        z = (z - z[:, :1]) / jnp.maximum(batch.temperature, 1e-6)[:, None]
        p = jax.nn.softmax(z)
        kept = jnp.cumsum(p, -1) - p < batch.top_p[:, None]
        # The noise of a token depends on seed and position alone, not on what else is in the batch.
        keys = jax.vmap(lambda s, n: jax.random.fold_in(jax.random.key(s), n))
        noise = jax.vmap(lambda key: jax.random.gumbel(key, z.shape[1:]))
        z = jnp.where(kept, z + noise(keys(batch.seeds, batch.lens)), -jnp.inf)
        drawn = jnp.take_along_axis(order, jnp.argmax(z, -1, keepdims=True), -1)[:, 0]
        return jnp.where(batch.temperature > 0, drawn.astype(jnp.int32), likeliest)

    return jax.lax.cond(jnp.any(batch.temperature > 0), draw, lambda: likeliest)
