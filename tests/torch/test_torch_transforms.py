"""Forward and backward differentiation of the torch ops, and functorch's transforms over them.

The ops have no derivative of any kind: whatever asks for one hears so, and never gets zeros.
"""

import pytest
import torch
import xla_gpu.torch
from torch import func
from torch.autograd import forward_ad
from torch_calls import small_batch

ops = torch.ops.xla_gpu
A = torch.arange(1.0, 4.0)
ROWS = torch.arange(6.0).reshape(2, 3)
DOORS = pytest.mark.parametrize("add", [ops.simple_add, xla_gpu.torch.simple_add])
NO_GRADIENT = r"simple_add has no gradient \(use a \+ b\)"
NO_TANGENT = r"simple_add has no forward-mode derivative \(use a \+ b\)"


def dual(function, primal=A, tangent=A):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(primal, tangent)))


def jvp(function, primal=A, tangent=None):
    return func.jvp(function, (primal,), (primal if tangent is None else tangent,))


def under(context, function):
    """As `function`, within the context."""

    def call(x):
        with context():
            return function(x)

    return call


def with_aux(function):
    """(a sum with a gradient, what `function` gives beside it)."""
    return lambda x: (x.sum(), function(x))


FORWARD = {
    "dual": dual,
    "dual, no_grad": lambda f: dual(under(torch.no_grad, f)),
    "dual that requires a gradient": lambda f: dual(f, A.clone().requires_grad_()),
    "dual of a vmap": lambda f: dual(torch.vmap(f), ROWS, ROWS),
    "jvp": jvp,
    "jvp, no_grad": lambda f: jvp(under(torch.no_grad, f)),
    "jvp of jvp": lambda f: jvp(lambda x: jvp(f, x)[0]),
    "jvp of vmap": lambda f: jvp(torch.vmap(f), ROWS),
    "vmap of jvp": lambda f: torch.vmap(lambda x: jvp(f, x))(ROWS),
    "jvp of vjp's result": lambda f: jvp(lambda x: func.vjp(f, x)[0]),
    "jvp of grad's aux": lambda f: jvp(lambda x: func.grad(with_aux(f), has_aux=True)(x)[1]),
    "jvp of functionalize": lambda f: jvp(func.functionalize(f)),
    "linearize": lambda f: func.linearize(f, A),
    "jacfwd": lambda f: func.jacfwd(f)(A),
    "jacobian": lambda f: torch.autograd.functional.jacobian(
        f, A, strategy="forward-mode", vectorize=True
    ),
    "hessian": lambda f: func.hessian(lambda x: f(x).sum())(A),
    "compiled jvp": lambda f: torch.compile(lambda x: jvp(f, x), backend="eager")(A),
}
BACKWARD = {
    "grad": lambda f: func.grad(lambda x: f(x).sum())(A),
    "grad of vmap": lambda f: func.grad(lambda x: torch.vmap(f)(x).sum())(ROWS),
    "vmap of grad": lambda f: torch.vmap(func.grad(lambda x: f(x).sum()))(ROWS),
    "grad of vjp's result": lambda f: func.grad(lambda x: func.vjp(f, x)[0].sum())(A),
    "grad of grad's aux": lambda f: func.grad(
        lambda x: func.grad(with_aux(f), has_aux=True)(x)[1].sum()
    )(A),
    "vjp": lambda f: func.vjp(f, A)[1](A),
    "jacrev": lambda f: func.jacrev(f)(A),
    "compiled grad": lambda f: torch.compile(
        func.grad(lambda x: f(x).sum()), backend="aot_eager"
    )(A),
}  # fmt: skip
if torch.__version__ < "2.5":  # its Dynamo follows func.grad into kernels and fails, aloud
    del BACKWARD["compiled grad"]


@pytest.mark.filterwarnings("ignore")
@DOORS
@pytest.mark.parametrize("transform", FORWARD)
def test_forward_mode_says_that_there_is_no_derivative(transform, add):
    with pytest.raises(NotImplementedError, match=NO_TANGENT):
        FORWARD[transform](lambda x: add(x, torch.ones_like(x)))


@pytest.mark.filterwarnings("ignore")
@DOORS
@pytest.mark.parametrize("transform", BACKWARD)
def test_reverse_mode_says_that_there_is_no_gradient(transform, add):
    with pytest.raises(NotImplementedError, match=NO_GRADIENT):
        BACKWARD[transform](lambda x: add(x, torch.ones_like(x)))


@pytest.mark.parametrize("name", ["paged_attention", "paged_attention_with_lse"])
@pytest.mark.parametrize("position", [0, 1])
def test_forward_mode_of_attention(name, position):
    args = small_batch()

    def call(x):
        return getattr(ops, name)(*args[:position], x, *args[position + 1 :], 0.125)

    with pytest.raises(NotImplementedError, match=f"xla_gpu::{name} has no forward-mode"):
        jvp(call, args[position])
    with pytest.raises(NotImplementedError, match="xla_gpu::paged_attention has no forward-mode"):
        jvp(lambda sinks: ops.paged_attention(*args, 0.125, sinks=sinks), torch.ones(8))
    with pytest.raises(NotImplementedError, match="xla_gpu::paged_attention has no forward-mode"):
        jvp(lambda q: xla_gpu.torch.paged_attention(q, *args[1:], 0.125), args[0])


@pytest.mark.parametrize("written", ["key", "kv_cache"])
@pytest.mark.parametrize("update", [ops.update_kv_cache_, xla_gpu.torch.update_kv_cache_])
def test_forward_mode_of_an_update_in_place(update, written):
    tensors = {"key": torch.ones(8, 2, 64), "kv_cache": torch.zeros(16, 16, 4, 64)}
    before = tensors["kv_cache"].clone()

    def call(x):
        given = {**tensors, written: x}
        update(given["key"], tensors["key"], given["kv_cache"], torch.arange(8))
        return given["kv_cache"]

    for transform in (jvp, dual):
        with pytest.raises(NotImplementedError, match="update_kv_cache_ has no forward-mode"):
            transform(call, tensors[written], torch.ones_like(tensors[written]))
    assert torch.equal(tensors["kv_cache"], before)


# ---- What needs no derivative runs ------------------------------------------------------------


@DOORS
def test_forward_mode_beside_the_op(add):
    """Its inputs have no tangent, or forward mode is off: the rest is differentiated."""
    want = A + A + A
    for function in (
        lambda x: add(A, A) + x,
        lambda x: add(x.detach(), A) + x,
        lambda x: under(torch.inference_mode, lambda y: add(y, A))(x) + x,
    ):
        value, tangent = jvp(function)
        assert torch.equal(value, want) and torch.equal(tangent, A)
        value, tangent = dual(function)
        assert torch.equal(value, want) and torch.equal(tangent, A)


@pytest.mark.filterwarnings("ignore")
@DOORS
def test_reverse_mode_beside_the_op(add):
    def call(x):
        return x.square().sum(), add(x, torch.ones_like(x))

    gradient, aux = func.grad(call, has_aux=True)(A)
    assert torch.equal(gradient, 2 * A) and torch.equal(aux, A + 1)
    gradient, aux = torch.vmap(func.grad(call, has_aux=True))(ROWS)
    assert torch.equal(gradient, 2 * ROWS) and torch.equal(aux, ROWS + 1)
    x = A.clone().requires_grad_()
    loss, aux = call(x)
    loss.backward()
    assert torch.equal(x.grad, 2 * A) and torch.equal(aux, A + 1)


@pytest.mark.filterwarnings("ignore")
@DOORS
def test_transforms_that_differentiate_nothing(add):
    assert torch.equal(torch.vmap(add)(ROWS, ROWS), 2 * ROWS)
    assert torch.equal(torch.vmap(torch.vmap(add))(ROWS, ROWS), 2 * ROWS)
    assert torch.equal(func.functionalize(add)(A, A), 2 * A)


def test_in_place_where_functorch_cannot_follow():
    """torch itself refuses; what matters is that nothing is written to a copy and lost."""
    key, cache = torch.ones(2, 8, 2, 64), torch.zeros(2, 16, 16, 4, 64)

    def call(key, cache):
        xla_gpu.torch.update_kv_cache_(key, key, cache, torch.arange(8))
        return cache

    for transform in (torch.vmap(call), func.functionalize(lambda k, c: call(k[0], c[0]))):
        with pytest.raises(RuntimeError, match="xla_gpu::update_kv_cache_"):
            transform(key, cache)
