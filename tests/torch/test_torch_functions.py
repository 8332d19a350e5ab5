"""Functions on torch tensors as kernels (`xla_gpu.torch_kernel`): on torch's CPU tensors."""

import functools
import gc
import os
import sys
import threading

import numpy as np
import pytest
import torch
import xla_gpu
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
LIKE_X = {"out": "x"}


def saxpy(x, y, out, *, alpha: float):
    torch.add(y, x, alpha=alpha, out=out)


def made(fn, **said):
    return xla_gpu.torch_kernel(fn, **{"outputs": LIKE_X, "name": "f", **said})


# ---- What a function takes and returns -----------------------------------------------------------


def test_a_function_that_writes():
    kernel = xla_gpu.torch_kernel(saxpy, outputs=LIKE_X)
    assert repr(kernel) == "<xla_gpu kernel saxpy(x, y, *, alpha)>"
    assert torch.equal(kernel(X, Y, alpha=2.0), 2 * X + Y)
    assert torch.equal(kernel(X.t(), y=Y.t(), alpha=-1), Y.t() - X.t())


def test_a_function_that_returns():
    def split(x, at: int = 1):
        return x[:, :at].contiguous(), x[:, at:]  # the second with strides

    kernel = xla_gpu.torch_kernel(
        split,
        outputs={
            "left": lambda x, at: ((x.shape[0], at), x.dtype),
            "right": lambda x, at: ((x.shape[0], x.shape[1] - at), x.dtype),
        },
    )
    for at in (0, 1, 2, 3):
        left, right = kernel(X, at=at)
        assert torch.equal(left, X[:, :at]) and torch.equal(right, X[:, at:])


def test_one_output_written_and_one_returned():
    def both(x, doubled):
        doubled.copy_(2 * x)
        return x.sum()

    kernel = made(both, outputs={"total": ((), "f32"), "doubled": "x"})
    total, doubled = kernel(X)
    assert total.item() == 15 and torch.equal(doubled, 2 * X)


def test_in_place():
    def add_to(y, x):
        y += x

    kernel = made(add_to, outputs={}, in_place=["y"])
    y = Y.clone()
    assert kernel(y, X) is y and torch.equal(y, X + 1)


def test_numbers_and_defaults():
    seen = []

    def f(x, /, a: int, b=0.1, *, c=True, bias=None, mode="plain", n: "int" = 0, **rest):
        seen.append((a, b, c, bias is None, mode, n))
        return x * 1

    kernel = made(f, scalars={"n": lambda x: x.size, "b": ("f32", 0.1)})
    assert str(kernel.__signature__) == "(x, *, bias=None, b=0.1, a, c=True)"
    kernel(X, a=-(2**63))
    kernel(X, a=1, b=2, c=False, bias=Y)
    b = float(np.float32(0.1))
    assert seen == [(-(2**63), b, True, True, "plain", 6), (1, 2.0, False, False, "plain", 6)]
    assert [type(value) for value in seen[0]] == [int, float, bool, bool, str, int]


def test_every_type_of_number():
    values = {"pred": True, "i8": -128, "i16": -3, "i32": 2**31 - 1, "i64": -(2**63),
              "u8": 255, "u16": 2**16 - 1, "u32": 2**32 - 1, "u64": 2**63 - 1,
              "f32": 1.5, "f64": 1e300}  # fmt: skip
    seen = {}
    names = [f"s_{dtype}" for dtype in values]
    pairs = ", ".join(f"{name}={name}" for name in names)
    text = f"def f(x, {', '.join(names)}):\n    seen.update({pairs})\n    return x + 0\n"
    scope = {"seen": seen}
    exec(text, scope)
    kernel = made(scope["f"], scalars={f"s_{dtype}": dtype for dtype in values})
    kernel(X, **{f"s_{dtype}": value for dtype, value in values.items()})
    assert {name: seen[name] for name in names} == dict(zip(names, values.values(), strict=True))


def test_functions_without_a_signature():
    attend = made(
        functional.scaled_dot_product_attention,
        arguments=["q", "k", "v", {"name": "mask", "optional": True}],
        parameters=["q", "k", "v", "mask"],
        outputs={"out": "q"},
    )
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    assert torch.equal(attend(q, k, v), functional.scaled_dot_product_attention(q, k, v))
    mask = torch.rand(5, 5) > 0.5
    mask[:, 0] = True
    torch.testing.assert_close(
        attend(q, k, v, mask=mask), functional.scaled_dot_product_attention(q, k, v, mask)
    )
    # An op of torch.ops, with a None between.
    clamp = made(
        torch.ops.aten.clamp.Tensor, arguments=["x", "most"], parameters=["x", None, "most"]
    )
    assert torch.equal(clamp(X, Y), X.clamp(max=1))
    # By default arguments, outputs, scalars.
    kernel = made(
        lambda *given: given[1].copy_(given[0] * given[2]),
        arguments=["x"],
        scalars={"by": float},
    )
    assert torch.equal(kernel(X, by=3), 3 * X)


def test_a_partial_a_module_and_a_method():
    assert torch.equal(made(functools.partial(torch.mul, X), arguments=["x"],
                            parameters=["x"])(Y), X)  # fmt: skip
    linear = torch.nn.Linear(3, 4)
    kernel = made(linear.forward, outputs={"out": lambda input: ((2, 4), "f32")})
    assert torch.equal(kernel(X), linear(X))


# ---- Types ---------------------------------------------------------------------------------------

DTYPES = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64, torch.bfloat16,
    torch.float8_e5m2, torch.float8_e4m3fn,
]  # fmt: skip


def random_bits(shape, dtype, seed=0):
    """A tensor whose bytes are 0 and 1."""
    made = torch.empty(shape, dtype=dtype)
    if made.numel():
        bytes_ = made.view(-1).view(torch.uint8)
        bytes_.copy_(torch.from_numpy(np.random.default_rng(seed).integers(0, 2, len(bytes_))))
    return made


def same_bits(a, b):
    return a.numel() == 0 or torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_dtypes_and_shapes(dtype, shape):
    seen = []

    def copy(x, out):
        seen.append((x.dtype, tuple(x.shape), out.dtype, tuple(out.shape), x.is_contiguous()))
        out.copy_(x)

    x = random_bits(shape, dtype)
    out = made(copy)(x)
    assert seen == [(dtype, shape, dtype, shape, True)]
    assert out.dtype == dtype and out.shape == shape
    assert same_bits(out, x)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_calls(data):
    """Any number of arrays of any types, some absent, in any order, are those that were given."""
    count = data.draw(st.integers(1, 12))
    shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)
    types = [data.draw(st.sampled_from(DTYPES)) for _ in range(count)]
    given_ = {
        f"a{i}": random_bits(data.draw(shapes), dtype, i) if i == 0 or data.draw(st.booleans())
        else None
        for i, dtype in enumerate(types)
    }  # fmt: skip
    order = data.draw(st.permutations(list(given_)))
    seen = {}

    def f(*values):
        seen.update(zip(order, [None if v is None else v.clone() for v in values], strict=True))
        return torch.tensor(len(values))

    kernel = made(
        f,
        arguments=[{"name": name, "optional": name != "a0"} for name in given_],
        parameters=order,
        outputs={"out": ((), "i64")},
    )
    assert kernel(**given_).item() == count
    for name, want in given_.items():
        got = seen[name]
        assert (got is None) == (want is None)
        if want is not None:
            assert got.dtype == want.dtype and got.shape == want.shape
            assert same_bits(got, want)


# ---- The call ------------------------------------------------------------------------------------


def test_nothing_is_copied_and_no_gradient_is_recorded():
    seen = []

    def f(x, out):
        seen.append((x.data_ptr(), torch.is_grad_enabled(), (x * 2).requires_grad))
        out.copy_(x)

    x = X.clone().requires_grad_()
    with torch.no_grad():
        made(f)(x)
    assert seen == [(x.data_ptr(), False, False)]
    assert torch.is_grad_enabled()


def test_gradient_and_vmap():
    kernel = made(
        lambda x, alpha=2.0: alpha * x,
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0],),
        vmap="broadcast_all",
    )
    x = X.clone().requires_grad_()
    kernel(x, alpha=3.0).sum().backward()
    assert torch.equal(x.grad, torch.full_like(X, 3.0))
    assert torch.equal(torch.vmap(kernel)(X), 2 * X)
    step = torch.compile(lambda x: kernel(x + 1), backend="aot_eager", fullgraph=True)
    for x in (X, X[:1], torch.ones(7, 5)):
        assert torch.equal(step(x), 2 * x + 2)


def test_kept_tensors_are_errors_but_not_those_of_a_cycle():
    kept = []
    kernel = made(lambda x: kept.append(x[0]) or x * 2)
    with pytest.raises(xla_gpu.XlaGpuError, match="f: the function keeps 1 of the call's tensors"):
        kernel(X)
    kept.clear()

    def cycle(x):
        held = [x]
        held.append(held)
        return x * 2

    gc.disable()
    try:
        assert torch.equal(made(cycle)(X), 2 * X)
    finally:
        gc.enable()


def test_threads():
    kernel = made(saxpy)
    failed = []

    def work(n):
        x = torch.full((n + 1,), float(n))
        for _ in range(50):
            if not torch.equal(kernel(x, x, alpha=float(n)), n * x + x):
                failed.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_kernel_inside_a_kernel():
    inner = made(lambda x: x + 1, name="inner")
    outer = made(lambda x: inner(inner(x)) * 2, name="outer")
    assert torch.equal(outer(X), 2 * X + 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child():
    kernel = made(saxpy)
    kernel(X, Y, alpha=1.0)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if torch.equal(kernel(X, Y, alpha=2.0), 2 * X + Y) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class StrangeError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


ERRORS = {
    "value": (ValueError("bad"), ValueError, r"f: ValueError: bad \(.*test_torch_functions.py:"),
    "not implemented": (NotImplementedError("no"), NotImplementedError, "f: NotImplementedError"),
    "memory": (MemoryError("full"), xla_gpu.XlaGpuError, "f: MemoryError: full"),
    "its own": (StrangeError(), xla_gpu.XlaGpuError, "f: StrangeError"),
    "exit": (SystemExit(3), xla_gpu.XlaGpuError, "f: SystemExit: 3"),
    "long": (RuntimeError("é" * 9000), xla_gpu.XlaGpuError, "f: RuntimeError: éé"),
    "zero": (RuntimeError("a\0b"), xla_gpu.XlaGpuError, "f: RuntimeError: a"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_a_function_raises(case):
    raised, kind, message = ERRORS[case]

    def fails(x):
        raise raised

    for _ in range(2):
        with pytest.raises(kind, match=message):
            made(fails)(X)


def test_codes_of_errors():
    def fails(x):
        raise MemoryError

    with pytest.raises(xla_gpu.XlaGpuError) as raised:
        made(fails)(X)
    assert raised.value.code == xla_gpu.StatusCode.RESOURCE_EXHAUSTED


# ---- Wrong uses ----------------------------------------------------------------------------------


def returns(value, **said):
    return lambda: made(lambda x: value, **said)(X)


WRONG = {
    "no function": (lambda: made(3), "torch_kernel: fn is int 3; it must be a function"),
    "a lambda": (lambda: made(lambda x: x, name=None), "name is None; a function without one"),
    "a partial": (lambda: made(functools.partial(saxpy), name=None), "name is None"),
    "no signature": (lambda: made(torch.softmax), "f: arguments is None; .* has no signature"),
    "*args": (lambda: made(lambda *args: args[0]), "f: arguments is None; .* wrap it in a def"),
    "an op": (lambda: made(torch.ops.aten.abs), "f: arguments is None"),
    "no outputs": (lambda: made(lambda x: x, outputs={}), "f: there is no result"),
    "output": (
        lambda: made(lambda x: x, outputs={"out": "z"}),
        'like is "z", which is no argument',
    ),
    "in place": (lambda: made(lambda x: None, in_place=["z"]), "which is no argument"),
    "in place of an output": (lambda: made(lambda x, out: None, in_place=["out"]), "out"),
    "scalar": (
        lambda: made(lambda x: x, scalars={"n": int}),
        "f: scalar n is no parameter of the function, which takes x",
    ),
    "argument": (
        lambda: made(lambda x: x, arguments=["x", "y"]),
        "f: argument y is no parameter of the function, which takes x",
    ),
    "unknown parameter": (
        lambda: made(lambda x, y: x, arguments=["x"]),
        "f: the function's parameter y is no argument, output or scalar",
    ),
    "parameters": (
        lambda: made(lambda x: x, arguments=["x"], parameters=["x", "q"]),
        '"q", which is no argument, result or scalar',
    ),
    "scalar of no dtype": (
        lambda: made(lambda x, n: x, scalars={"n": lambda x: x.size}),
        r"f: scalars\['n'\] is .* which tells no dtype",
    ),
    "scalar of text": (
        lambda: made(lambda x, n: x, scalars={"n": "many"}),
        r"f: scalars\['n'\] is 'many', which tells no dtype",
    ),
    "scalar of a half": (
        lambda: made(lambda x, n: x, scalars={"n": torch.float16}),
        "f: scalar n is of type f16; allowed are pred, ints, f32 and f64",
    ),
    "default": (
        lambda: made(lambda x, n=1.5: x, scalars={"n": ("i32", 1.5)}),
        "the default of n is the float 1.5",
    ),
    "platform": (lambda: made(lambda x: x, platform="TPU"), "f: platform is 'TPU'"),
    "no platform": (lambda: made(lambda x: x, platform=[]), r"f: platform is \[\]"),
    "vmap": (lambda: made(lambda x: x, vmap="all"), "f: vmap is 'all'"),
    "host": (lambda: made(lambda x: x, host=saxpy), "f: host is function"),
    "of the other platform": (
        lambda: made(lambda x: x, platform="CUDA")(X),
        "f: there is no kernel for platform Host",
    ),
    "too few": (lambda: made(saxpy)(X, alpha=1.0), "missing 1 required positional argument: 'y'"),
    "dtype": (
        lambda: made(lambda x: x, arguments=[{"name": "x", "dtypes": ["i32"]}])(X),
        r"f: x is f32\[2,3\]; its dtype must be i32",
    ),
    "a scalar as an array": (lambda: made(lambda x, dim=None: x)(X, dim=1), "f: dim is int 1"),
    "nothing": (returns(None), r"f: TypeError: the function returned NoneType for out; .* f32"),
    "a number": (returns(3.0), "f: TypeError: the function returned float for out"),
    "two": (returns((X, X)), "f: ValueError: the function returned 2 values; it must return out"),
    "shape": (
        returns(X.t()),
        r"f: ValueError: the function returned f32\[3,2\] on cpu for out; it must return "
        r"f32\[2,3\] on cpu",
    ),
    "another dtype": (returns(X.double()), r"the function returned f64\[2,3\] on cpu for out"),
    "a complex": (returns(X + 0j), r"the function returned torch.complex64\[2,3\] on cpu"),
    "device": (returns(X.to("meta")), r"the function returned f32\[2,3\] on meta for out"),
    "wrong call of it": (
        lambda: made(torch.abs, arguments=["x"])(X),
        r"f: TypeError: abs\(\) takes 1 positional argument but 2 were given",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses(name):
    call, message = WRONG[name]
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
        call()


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "xla_gpu.torch", None)
    with pytest.raises(xla_gpu.NotFoundError, match="f: a torch_kernel needs PyTorch"):
        made(lambda x: x)
