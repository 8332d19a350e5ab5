"""The recipe of docs/jax.md for a scan over layers: the right numbers, and no copy of a cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages import ROOT, blocks_of
from xla_gpu.jax import paged_attention, update_kv_cache


def recipe_of(layers):
    """The names that the page's block defines, of so many layers."""
    page = ROOT / "docs" / "jax.md"
    (block,) = (b for b in blocks_of(page) if "def run_layer(" in b.text)
    sizes = "layers, pages, page_size, heads, head_dim = "
    assert f"{sizes}4, " in block.text
    names = {}
    exec(block.text.replace(f"{sizes}4, ", f"{sizes}{layers}, "), names)
    return names


def arguments(recipe, dtype=jnp.float32):
    """Random weights and tokens; three sequences, of which the last has a page of no cache."""
    rng = np.random.default_rng(5)
    width = recipe["heads"] * recipe["head_dim"]

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    weights = {name: normal(recipe["layers"], width, width) / width for name in "qkv"}
    shape = (recipe["pages"], recipe["page_size"], 2 * recipe["heads"], recipe["head_dim"])
    caches = [normal(*shape) for _ in range(recipe["layers"])]
    slots = jnp.array([7 * 16 + 3, 9 * 16, -1, recipe["pages"] * 16], jnp.int32)
    lens, starts = jnp.array([20, 1, 2], jnp.int32), jnp.array([0, 1, 2, 4], jnp.int32)
    tables = jnp.array([[5, 7], [9, -1], [recipe["pages"], 0]], jnp.int32)
    return caches, normal(4, width), weights, (slots, lens, tables, starts)


def layer_by_layer(recipe, caches, x, weights, slots, lens, tables, starts):
    """The same step with a cache for each layer and no scan."""
    heads, head_dim = recipe["heads"], recipe["head_dim"]
    new = []
    for layer, cache in enumerate(caches):
        q, k, v = ((x @ weights[n][layer]).reshape(-1, heads, head_dim) for n in "qkv")
        cache = update_kv_cache(k, v, cache, slots)
        out = paged_attention(q, cache, lens, tables, starts, lens.size, scale=head_dim**-0.5)
        x = x + out.reshape(x.shape)
        new.append(cache)
    return x, jnp.concatenate(new)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_scan_gives_what_the_layers_give(dtype):
    recipe = recipe_of(3)
    caches, x, weights, rest = arguments(recipe, dtype)
    want_x, want_cache = jax.jit(lambda *args: layer_by_layer(recipe, *args))(
        caches, x, weights, *rest
    )
    got_x, got_cache = jax.jit(recipe["step"])(jnp.concatenate(caches), x, weights, *rest)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    for got, want in ((got_x, want_x), (got_cache, want_cache)):
        got, want = np.float32(got), np.float32(want)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert np.isnan(np.float32(got_x[2:])).all()  # its page is of no cache, nor the next layer's
    assert np.isfinite(np.float32(got_x[:2])).all()


@pytest.mark.parametrize("layers", [2, 8])
def test_the_scan_copies_no_cache(layers):
    """Temporaries are less than one layer's pages, however many layers there are."""
    recipe = recipe_of(layers)
    caches, x, weights, rest = arguments(recipe)
    cache = jnp.concatenate(caches)
    step = jax.jit(recipe["step"], donate_argnums=0)
    compiled = step.lower(cache, x, weights, *rest).compile()
    analysis = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes < caches[0].nbytes
    assert analysis.alias_size_in_bytes >= cache.nbytes
