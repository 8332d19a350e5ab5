"""The problems that the benchmarks time, and the formulations to compare with (JAX only)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sequences of one length over a shuffled paged cache: decode (one query each) or prefill.

    `dtype` is the cache's and, but for fp8, where it is bfloat16, that of queries and outputs.
    """

    batch: int
    context: int
    dtype: str
    prefill: bool = False
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16

    @property
    def parts(self) -> list[Problem]:
        """Problems of one length each, in the order of their rows."""
        return [self]

    @property
    def query_len(self) -> int:
        return self.context if self.prefill else 1

    @property
    def query_dtype(self) -> str:
        return "bfloat16" if self.dtype.startswith("float8") else self.dtype

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def __str__(self) -> str:
        kind = "prefill" if self.prefill else "decode"
        return f"{kind} {self.batch}x{self.context} {self.dtype}"

    def title(self) -> str:
        kind = "Causal prefill" if self.prefill else "Decode"
        count = f"{self.batch} sequence{'s' if self.batch > 1 else ''} of {self.context} tokens"
        return f"{kind}, {count}, {self.dtype}"

    def kv_bytes(self) -> int:
        """Bytes of keys and values that a call reads."""
        size = jnp.dtype(self.dtype).itemsize
        return 2 * self.batch * self.context * self.kv_heads * self.head_dim * size

    def flops(self) -> int:
        """Multiplications and additions of both matrix products, under the causal mask."""
        pairs = self.query_len * self.context - self.query_len * (self.query_len - 1) // 2
        return 4 * self.batch * pairs * self.q_heads * self.head_dim

    def make(self, seed: int = 0) -> dict[str, jax.Array]:
        """The arguments of paged_attention, the interleaved cache's pages in random order."""
        keys = jax.random.split(jax.random.PRNGKey(seed), 3)
        pages_a_sequence = -(-self.context // self.page_size)
        pages = self.batch * pages_a_sequence
        cache_shape = (pages, self.page_size, 2 * self.kv_heads, self.head_dim)
        tokens = self.batch * self.query_len
        tables = jax.random.permutation(keys[2], pages).astype(jnp.int32)
        return {
            "query": jax.random.normal(
                keys[0], (tokens, self.q_heads, self.head_dim), jnp.dtype(self.query_dtype)
            ),
            "kv_cache": jax.random.normal(keys[1], cache_shape, jnp.dtype(self.query_dtype)).astype(
                jnp.dtype(self.dtype)
            ),
            "context_lens": jnp.full((self.batch,), self.context, jnp.int32),
            "block_tables": tables.reshape(self.batch, pages_a_sequence),
            "query_start_loc": jnp.arange(self.batch + 1, dtype=jnp.int32) * self.query_len,
            "num_seqs": jnp.array([self.batch], jnp.int32),
        }

    def gathered(self, args: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Contiguous (K, V), each [batch, context, kv_heads, head_dim]."""
        kv = args["kv_cache"][args["block_tables"]]
        kv = kv.reshape(self.batch, -1, 2 * self.kv_heads, self.head_dim)[:, : self.context]
        return kv[:, :, 0::2], kv[:, :, 1::2]


@dataclasses.dataclass(frozen=True)
class Mixed(Problem):
    """A prompt of so many tokens, and after it in the batch the decodes that the rest describes."""

    prompt: int = 0

    @property
    def parts(self) -> list[Problem]:
        same = {one.name: getattr(self, one.name) for one in dataclasses.fields(Problem)}
        prompt = {"batch": 1, "context": self.prompt, "prefill": True}
        return [Problem(**same | prompt), Problem(**same)]

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)


def joined(first: dict[str, jax.Array], second: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The arguments of one call for the sequences of two, the first's before the second's."""

    def both(name: str) -> jax.Array:
        return jnp.concatenate([first[name], second[name]])

    width = max(args["block_tables"].shape[1] for args in (first, second))

    def tables(args: dict[str, jax.Array], first_page: int) -> jax.Array:
        missing = width - args["block_tables"].shape[1]
        return jnp.pad(args["block_tables"] + first_page, ((0, 0), (0, missing)))

    starts = second["query_start_loc"][1:] + len(first["query"])
    return {
        "query": both("query"),
        "kv_cache": both("kv_cache"),
        "context_lens": both("context_lens"),
        "block_tables": jnp.concatenate([tables(first, 0), tables(second, len(first["kv_cache"]))]),
        "query_start_loc": jnp.concatenate([first["query_start_loc"], starts]),
        "num_seqs": first["num_seqs"] + second["num_seqs"],
    }


def jnp_gather(p: Problem, args: dict[str, jax.Array]) -> jax.Array:
    """What one writes without a kernel: gather the pages, then dense masked attention."""
    k, v = (a.astype(args["query"].dtype) for a in p.gathered(args))
    group = p.q_heads // p.kv_heads
    q = args["query"].reshape(p.batch, p.query_len, p.kv_heads, group, p.head_dim)
    logits = jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=jnp.float32) * p.scale
    position = p.context - p.query_len + jnp.arange(p.query_len)
    visible = jnp.arange(p.context) <= position[:, None]
    visible = visible & (jnp.arange(p.context) < args["context_lens"][:, None, None, None, None])
    weights = jax.nn.softmax(jnp.where(visible, logits, -jnp.inf), axis=-1)
    out = jnp.einsum("bhgqk,bkhd->bqhgd", weights.astype(v.dtype), v)
    return out.reshape(args["query"].shape).astype(args["query"].dtype)
