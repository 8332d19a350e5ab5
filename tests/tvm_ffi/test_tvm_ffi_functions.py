"""TVM-FFI functions as custom calls of JAX on the CPU: all kinds that kernels.cc has."""

import gc
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import jax
import jax.numpy as jnp
import xla_gpu

X = jnp.asarray(np.random.default_rng(0).standard_normal((6, 32)), jnp.float32)
Y = X + 1


def make(function, arguments="x", returned=("out",), parameters=None, **members):
    """A kernel on the CPU whose results are like x, and are what the function returns."""
    members.setdefault("outputs", dict.fromkeys(returned, "x"))
    return xla_gpu.external_kernel(
        function,
        convention="tvm_ffi",
        platform="Host",
        arguments=list(arguments),
        parameters=parameters or [a for a in arguments if isinstance(a, str)],
        **members,
    )


@pytest.fixture
def function(kernels):
    def made(symbol, *args, **members):
        return make((kernels, symbol), *args, **members)

    return made


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


class Holder:
    """As CuTe DSL's compiled functions are, which hold none where they are for another GPU."""

    def __init__(self, function):
        self.__tvm_ffi_object__ = lambda: function


def test_what_holds_a_function():
    def twice(x, anchor, y):  # an argument again, as TileLang's want one
        np.from_dlpack(y)[...] = 2 * np.from_dlpack(x) + 0 * np.from_dlpack(anchor)

    kernel = xla_gpu.external_kernel(
        Holder(tvm_ffi.convert(twice)),
        name="held",
        arguments=["x"],
        outputs={"y": "x"},
        parameters=["x", "x", "y"],
        platform="Host",
    )
    gc.collect()
    np.testing.assert_array_equal(jax.jit(kernel)(X), 2 * X)
    with pytest.raises(
        xla_gpu.InvalidArgumentError, match="the Holder holds no function .* for another GPU"
    ):
        xla_gpu.external_kernel(Holder(None), arguments=["x"], outputs={"y": "x"})


def test_a_host_twin_has_parameters_of_its_own():
    """The function's are in another order, with what only launchers are given."""
    kernel = xla_gpu.external_kernel(
        "none.so:negate",
        arguments=["x"],
        outputs={"out": "x"},
        scalars={"n": ("i64", lambda x: x.size)},
        parameters=["stream", "n", "out", "x"],
        host="void negate(const float* x, float* out, long n) {"
        "  for (long i = 0; i < n; ++i) out[i] = -x[i]; }",
    )
    np.testing.assert_array_equal(jax.jit(kernel)(X), -X)


# ---- Results that the caller allocates ----


@pytest.mark.parametrize("owned", [False, True])
def test_results_as_parameters(function, owned):
    add = function(
        "add_scaled",
        ["x", "y"],
        owned=owned,
        scalars={"alpha": ("f64", 0.5)},
        parameters=["x", "y", "alpha", "out"],
    )
    np.testing.assert_allclose(jax.jit(add)(X, Y), X + 0.5 * Y, rtol=1e-6)
    np.testing.assert_allclose(add(X, Y, alpha=2.0), X + 2 * Y, rtol=1e-6)
    for shape in ((), (1,), (0, 4), (2, 1, 3, 1, 2)):
        x = jnp.ones(shape, jnp.float32)
        np.testing.assert_allclose(jax.jit(add)(x, x), 1.5 * x)


def test_functions_that_own_their_parameters(function):
    triple = function("triple_of_owned", owned=True, parameters=["x", "out"])
    np.testing.assert_allclose(jax.jit(triple)(X), 3 * X, rtol=1e-6)
    views = function("triple_of_owned", parameters=["x", "out"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="triple_of_owned: .*TypeError"):
        jax.jit(views)(X).block_until_ready()


def test_scalars_constants_and_absent_arguments(function):
    scalars = function(
        "scalars",
        ["x", {"name": "bias", "optional": True}],
        scalars={"n": "i32", "flag": ("pred", False)},
        parameters=["x", "bias", "n", "flag", {"value": 0.25, "type": "f32"}, None, "out"],
    )
    assert scalars(X, n=7)[0, 0] == 7.25
    assert scalars(X, n=-7, flag=True)[0, 0] == 93.25
    assert scalars(X, bias=X, n=5)[0, 0] == 1005.25
    sizes = function(
        "scalars",
        parameters=[
            "x",
            None,
            {"dim_of": "x", "dim": 1, "type": "i64"},
            {"value": True, "type": "pred"},
            {"elements_of": "x", "type": "f64"},
            {"value": -1, "type": "i8"},
            "out",
        ],
    )
    assert sizes(X)[0, 0] == 32 + 100 + X.size + 10000


def test_in_place(function):
    add_to = function("add_to", ["x", "y"], outputs={}, in_place=["y"])
    np.testing.assert_allclose(jax.jit(add_to, donate_argnums=1)(X, Y + 0), X + Y, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(add_to)(X, Y), X + Y, rtol=1e-6)
    np.testing.assert_allclose(Y, X + 1)


# ---- Results that the function allocates ----

RETURNS = {
    "softmax": lambda x: softmax(x),
    "scratch_first": lambda x: 2 * x + 1,
    "freed_scratch_first": lambda x: x + 2 * x[0, 0],
    "two": lambda x: (x + 1, x + 2),
    "two_swapped": lambda x: (x + 2, x + 1),
    "three_rotated": lambda x: (x + 2, x + 3, x + 1),
    "one_twice": lambda x: (x + 1, x + 1),
    "as_one_dimension": lambda x: -x,
    "many": lambda x: x + 20,
}


@pytest.mark.parametrize("symbol", RETURNS)
def test_allocated_results(function, symbol):
    expected = RETURNS[symbol]
    count = len(jax.tree.leaves(jax.eval_shape(expected, X)))
    kernel = function(symbol, returned=[f"out{i}" for i in range(count)])
    called = jax.jit(kernel)
    for i in range(4):  # the order of allocations is known from the second call on
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6),
            called(X + i),
            expected(X + i),
        )


def test_a_function_that_changes_its_order(function):
    called = jax.jit(function("changes_its_mind", returned=["a", "b"]))
    first = [float(called(X)[0][0, 0]) for _ in range(6)]
    np.testing.assert_allclose(first[:2] * 3, first)
    np.testing.assert_allclose(sorted(first[:2]), sorted([X[0, 0] + 1, X[0, 0] + 2]), rtol=1e-6)


def test_an_argument_as_result(function):
    same = jax.jit(function("identity", owned=True))
    np.testing.assert_array_equal(same(X), X)


def test_scan_and_threads(function):
    kernel = function("scratch_first")

    @jax.jit
    def chain(x):
        return jax.lax.scan(lambda c, _: (kernel(c) * 0.5, None), x, None, length=50)[0]

    wanted = np.asarray(X + 25)
    results = [None] * 4

    def run(i):
        for _ in range(20):
            results[i] = np.asarray(chain(X))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


# ---- Function objects ----


def test_functions_of_a_module_and_of_python(kernels):
    module = tvm_ffi.load_module(kernels)
    kernel = make(module.softmax)
    np.testing.assert_allclose(jax.jit(kernel)(X), softmax(X), rtol=1e-5)

    def plus_one(x, out):
        np.from_dlpack(out)[...] = np.from_dlpack(x) + 1

    python = jax.jit(make(tvm_ffi.convert(plus_one), parameters=["x", "out"]))
    for i in range(100):
        np.testing.assert_allclose(python(X + i), X + i + 1, rtol=1e-6)

    tvm_ffi.register_global_func("xla_gpu.test.plus_one", plus_one)
    found = tvm_ffi.get_global_func("xla_gpu.test.plus_one")
    np.testing.assert_allclose(jax.jit(make(found, parameters=["x", "out"]))(X), X + 1, rtol=1e-6)


def test_python_errors_and_kept_tensors():
    def bad(x, out):
        raise ValueError(f"from Python: {tuple(x.shape)}")

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ValueError: from Python: \(6"):
        jax.jit(make(tvm_ffi.convert(bad), parameters=["x", "out"]))(X).block_until_ready()
    kept = []
    with pytest.raises(jax.errors.JaxRuntimeError, match="the function keeps 1 of"):
        keeper = tvm_ffi.convert(lambda x, out: kept.append(x))
        jax.jit(make(keeper, parameters=["x", "out"]))(X).block_until_ready()
    kept.clear()  # the end of a tensor after its call's
    gc.collect()


# ---- What is wrong ----

WRONG = {
    "fails": "TypeError: rows must be even, not 6",
    "fails_otherwise": "a plain C\\+\\+ exception",
    "fails_with_result": "ValueError: .*after an allocation of 192",
    "keeps_scratch": "the function keeps 1 of the call's tensors",
    "allocates_in_a_thread": "in the thread: .*allocator",
    "wrong_dtype": r"returned i32\[6,32\] for result 0; it must return f32\[6,32\]",
    "wrong_shape": r"returned f32\[1,2,3\] for result 0; it must return f32\[6,32\]",
    "on_cuda": "allocates on device 2:0; the call runs on 1:0",
    "too_much": "negative dimension or of more bytes than there are",
    "more_than_there_is": "MemoryError: out of memory",
    "negative_shape": "negative dimension",
    "returns_nothing": "returned None for result 0; it must return a tensor",
    "returns_an_int": "returned a value of type index 1 for result 0",
    "returns_others": "returned 2 values; it must return 1 tensors",
    "returns_three": "returned 3 values; it must return 1 tensors",
}


@pytest.mark.parametrize("symbol", WRONG)
def test_errors_are_told_and_the_process_goes_on(function, symbol):
    called = jax.jit(function(symbol))
    good = jax.jit(function("softmax"))
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"{symbol}: .*{WRONG[symbol]}"):
            called(X).block_until_ready()
        np.testing.assert_allclose(good(X), softmax(X), rtol=1e-5)


def test_wrong_results_in_arrays(function):
    pair = ["a", "b"]
    for symbol, message in (
        ("returns_others", "returned a value of type index 1 for result 1"),
        ("returns_three", "returned 3 values; it must return 2 tensors"),
        ("softmax", "returned 1 values; it must return 2 tensors"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(jax.jit(function(symbol, returned=pair))(X))


def test_a_result_with_strides(function):
    kernel = function("transposed", ["x", "y"], outputs={"out": "y"}, parameters=["x"])
    called = jax.jit(kernel)
    with pytest.raises(jax.errors.JaxRuntimeError, match="transposed: .*dense row-major"):
        called(X, X.T + 0).block_until_ready()


def test_kept_arguments(function):
    called = jax.jit(function("keeps", owned=True, outputs={}, in_place=["x"]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="keeps: the function keeps 1 of"):
        called(X + 0).block_until_ready()


@pytest.mark.parametrize(
    ("library", "symbol", "message"),
    [
        (None, "no_such", "exports no symbol '__tvm_ffi_no_such'"),
        ("/nowhere/kernels.so", "softmax", "/nowhere/kernels.so cannot be loaded"),
    ],
)
def test_libraries_and_symbols_that_are_not_there(kernels, library, symbol, message):
    kernel = make((library or kernels, symbol))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.jit(kernel)(X).block_until_ready()


def test_an_object_that_is_no_function():
    array = tvm_ffi.convert([1, 2])
    with pytest.raises(jax.errors.JaxRuntimeError, match="type index 71; it must be a function"):
        jax.jit(make(array))(X).block_until_ready()


# ---- libtvm_ffi ----


@pytest.mark.parametrize("installed", [True, False])
def test_libtvm_ffi_is_found_or_asked_for(kernels, installed):
    """By a process that has not imported tvm_ffi; the kernels know no folder to find it in."""
    program = f"""
        import sys
        if not {installed}:
            sys.modules["tvm_ffi"] = None
        import jax, jax.numpy as jnp, xla_gpu
        softmax = xla_gpu.external_kernel(
            sys.argv[1] + ":softmax", convention="tvm_ffi", platform="Host", arguments=["x"],
            outputs={{"out": "x"}}, parameters=["x"])
        try:
            print(jax.jit(softmax)(jnp.zeros((1, 4))))
        except Exception as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), kernels],
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = "[[0.25 0.25 0.25 0.25]]" if installed else "pip install apache-tvm-ffi"
    assert expected in done.stdout, done.stdout + done.stderr
