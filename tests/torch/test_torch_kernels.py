"""Kernels of the user's on torch's CPU tensors: values, errors, transforms, compile, export."""

import concurrent.futures
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import xla_gpu
from torch import func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from user_kernels import (
    SIZE,
    SOURCE,
    add_to,
    pairs,
    random_case,
    row_sums,
    scale,
    swap_out,
)
from xla_gpu.torch import _user_kernels

X = torch.arange(1.0, 5.0)
OLD = torch.__version__ < "2.5"
needs_2_5 = pytest.mark.skipif(OLD, reason="torch 2.4 has no register_vmap, and traces no writes")
ROWS = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    yield
    torch._dynamo.reset()


# ---- Eager ---------------------------------------------------------------------------------------


def test_values():
    assert torch.equal(scale(X), 2 * X)
    assert torch.equal(scale(X, alpha=3), 3 * X)
    assert torch.equal(scale(x=X, alpha=-1.5), -1.5 * X)
    assert torch.equal(pairs(X), torch.stack([X, -X], 1).reshape(-1))
    assert torch.equal(row_sums(ROWS), ROWS.sum(1))
    assert scale(torch.tensor(3.0)).item() == 6 and scale(torch.empty(0, 2)).shape == (0, 2)
    assert pairs(torch.empty(0)).shape == (0,)
    assert torch.equal(scale(torch.nn.Parameter(X)), 2 * X)


@pytest.mark.parametrize("call", [scale, torch.compile(lambda x, alpha: scale(x, alpha=alpha))])
def test_scalars_out_of_range(call):
    for alpha in (1e300, -1e39):
        with pytest.raises(Exception, match="its type f32 does not hold; allowed are -3.40282e"):
            call(X, alpha=alpha)
    for alpha in (math.inf, -math.inf):
        assert torch.equal(call(X, alpha=alpha), alpha * X)


def test_scalars_that_are_no_floats():
    for alpha in (10**400, -(10**5000)):
        with pytest.raises(xla_gpu.InvalidArgumentError, match="alpha is an int of .* allowed are"):
            scale(X, alpha=alpha)


def test_in_place_writes_and_returns_the_tensor():
    y = torch.ones(4)
    version = y._version
    assert add_to(y, X) is y and torch.equal(y, X + 1) and y._version > version
    before, after = swap_out(y, X)
    assert after is y and torch.equal(before, X + 1) and torch.equal(y, X)


def test_views_are_copied_but_not_those_in_place():
    wide = torch.arange(8.0).reshape(4, 2)
    assert torch.equal(scale(wide[:, 1]), 2 * wide[:, 1])
    assert torch.equal(scale(wide.t()), 2 * wide.t())
    assert torch.equal(scale(X[:1].expand(4)), torch.full((4,), 2.0))
    assert torch.equal(scale(torch.complex(X, X).conj().imag), -2 * X)
    with pytest.raises(ValueError, match=r"add_to: y f32\[4\] has strides \(2,\); what is written"):
        add_to(wide[:, 0], X)


def test_memory_that_floats_may_not_lie_at_is_refused():
    odd = torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1)
    for x in (X, odd, X, odd):  # before a call of these types, and after
        if x is X:
            assert torch.equal(scale(x), 2 * X)
            continue
        with pytest.raises(
            ValueError, match=r"argument 0 \(f32\[4\]\) lies at address .*; give it"
        ):
            scale(x)


def test_zeros_of_both_signs():
    for alpha in (0.0, -0.0, 0.0, np.float64(-0.0), 0.0, np.float32(-0.0)):
        assert math.copysign(1, scale(X, alpha=alpha)[0].item()) == math.copysign(1, alpha)


def test_functions_of_arguments_choose_a_variant():
    chosen = []

    def entry(x):
        chosen.append(x.dtype)
        return f"times<{'float' if x.dtype == 'f32' else 'int'}, {x.ndim}>"

    base = xla_gpu.host_kernel(SOURCE, "times<float, 1>", outputs={"out": "x"}, scalars=SIZE)
    definition = dict(base._definition)
    host = definition["implementations"]["Host"]
    kernel = xla_gpu.Kernel(
        {**definition, "arguments": [{"name": "x"}]},
        outputs={},
        derived={"n": lambda x: x.size},
        variant=lambda specs, scalars: {
            "implementations": {"Host": {**host, "entry": entry(specs["x"])}}
        },
    )
    for x in (X, ROWS, X.int(), X):
        assert torch.equal(kernel(x), x * x.ndim)
    assert chosen == ["f32", "f32", "i32"]
    step = torch.compile(lambda x: kernel(x + 1), backend="aot_eager", fullgraph=True)
    for x in (X, ROWS, X.int()):
        assert torch.equal(step(x), (x + 1) * x.ndim)


def test_two_kernels_of_one_name():
    def of(factor):
        source = f"void k(const float* x, float* out) {{ *out = {factor} * *x; }}"
        return xla_gpu.host_kernel(source, "k", outputs={"out": "x"})

    one, two = of(2), of(3)
    step = torch.compile(lambda x: (one(x), two(x), one(x)), backend="aot_eager", fullgraph=True)
    for call in (step, lambda x: (one(x), two(x), one(x))):
        assert [r.item() for r in call(torch.tensor(5.0))] == [10, 15, 10]


def test_kernels_of_one_definition_have_rules_of_their_own():
    def of(gradient):
        return xla_gpu.host_kernel(
            SOURCE, "scale", outputs={"out": "x"}, scalars=SIZE, name="same", gradient=gradient
        )

    one = of(lambda args, results, gradients, alpha: (gradients[0],))
    two = of(lambda args, results, gradients, alpha: (alpha * gradients[0],))
    for kernel, want in ((one, 1), (two, 7), (one, 1)):
        for call in (kernel, torch.compile(kernel, backend="aot_eager", fullgraph=True)):
            x = X.clone().requires_grad_()
            call(x, alpha=7.0).sum().backward()
            assert torch.equal(x.grad, torch.full((4,), float(want)))


def test_words_of_python_are_names_with_an_underscore():
    source = "void k(const float* in, float lambda, float* out) { *out = lambda * *in; }"
    kernel = xla_gpu.host_kernel(
        source, "k", outputs={"out": lambda in_: (in_.shape, in_.dtype)}, name="words"
    )
    assert str(kernel.__signature__) == "(in_, *, lambda_)"
    assert kernel(torch.tensor(2.0), lambda_=3.0).item() == 6
    assert kernel(in_=torch.tensor(2.0), lambda_=4.0).item() == 8


def test_threads():
    inputs = [torch.full((n % 7 + 1,), float(n)) for n in range(64)]

    def work(x):
        return [scale(x, alpha=x[0].item()) for _ in range(20)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for x, results in zip(inputs, pool.map(work, inputs)):
            assert all(torch.equal(r, x * x[0]) for r in results)


@pytest.mark.parametrize("group", range(12))
def test_random_signatures(group):
    rng = np.random.default_rng([310, group])
    case = random_case(rng)
    for turn in range(3):
        args = {n: a.clone() for n, a in case.args.items()}
        if turn == 2 and not (
            OLD and case.in_place
        ):  # through torch's dispatcher, on fake tensors, and compiled
            step = torch.compile(case.call, backend="aot_eager", fullgraph=True)
            results = step(args)
        else:
            results = case.call(args)
        for result, want, name in zip(
            results, case.want(), [*case.outputs, *case.in_place], strict=True
        ):
            assert torch.equal(result.to(torch.int64), want), name
        for name, tensor in args.items():
            want = case.args[name] + (1 if name in case.in_place else 0)
            assert torch.equal(tensor, want), name
    types = [dtype for _, dtype in case.outputs.values()]
    assert [_user_kernels._schema.DTYPES[r.dtype] for r in results[: len(types)]] == types


# ---- Bad use -------------------------------------------------------------------------------------

BAD = {
    "missing argument": (lambda: scale(), TypeError, r"scale\(\) missing 1 required.*'x'"),
    "too many": (lambda: scale(X, X), TypeError, r"scale\(\) takes 1 positional"),
    "unknown keyword": (lambda: scale(X, beta=1), TypeError, r"unexpected keyword.*'beta'"),
    "dtype": (lambda: scale(X.double()), ValueError, r"scale: x is f64\[4\]; its dtype"),
    "float8": (lambda: scale(X.to(torch.float8_e4m3fn)), ValueError, "its dtype must be f32"),
    "complex": (lambda: scale(X + 0j), ValueError, "torch.complex64 has no counterpart in XLA"),
    "None": (lambda: add_to(X, None), ValueError, "add_to: x is None; it must be a torch"),
    "nothing": (lambda: scale(None), ValueError, "scale: no argument came"),
    "list": (lambda: add_to(X, [1.0]), ValueError, r"add_to: x is list \[1.0\]; it must be"),
    "array": (lambda: add_to(X, np.ones(4)), ValueError, "add_to: x is ndarray"),
    "scalar None": (lambda: scale(X, alpha=None), ValueError, "scale: alpha is NoneType None"),
    "scalar bool": (lambda: scale(X, alpha=True), ValueError, "scale: alpha is bool True"),
    "scalar text": (lambda: scale(X, alpha="2"), ValueError, "scale: alpha is str '2'"),
    "scalar list": (lambda: scale(X, alpha=[2]), ValueError, r"scale: alpha is list \[2\]"),
    "scalar tensor": (lambda: scale(X, alpha=X), ValueError, "scale: alpha is an array"),
    "meta and CPU": (
        lambda: add_to(X, X.to("meta")),
        ValueError,
        r"add_to: x f32\[4\] is on meta but y is on cpu; all arguments must be on one device",
    ),
    "sparse": (lambda: scale(X.to_sparse()), (ValueError, NotImplementedError), "scale|Sparse"),
    "derived scalar": (lambda: scale(X, n=3), TypeError, "unexpected keyword.*'n'"),
    "rank for a function": (lambda: row_sums(X), IndexError, "out of range"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_use(what):
    call, kind, message = BAD[what]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.filterwarnings("ignore")
def test_bad_use_while_dynamo_traces():
    with pytest.raises(Exception, match="its dtype must be f32"):
        torch.compile(scale, backend="eager", fullgraph=True)(X.double())


# ---- Fake and meta tensors -----------------------------------------------------------------------


def test_meta_and_fake_tensors():
    for x in (X.to("meta"), FakeTensorMode().from_tensor(X)):
        assert scale(x).shape == (4,) and scale(x).device == x.device
        assert pairs(x).shape == (8,) and type(pairs(x)) is type(x)
        y = torch.empty_like(x)
        assert add_to(y, x) is y
        before, after = swap_out(y, x)
        assert after is y and before is not y
        with pytest.raises(ValueError, match="its dtype must be f32"):
            scale(x.double())


# ---- Gradients -----------------------------------------------------------------------------------


def test_a_gradient_of_its_own():
    x = X.clone().requires_grad_()
    scale(scale(x, alpha=3.0)).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 6.0))
    assert torch.equal(func.grad(lambda x: scale(x, alpha=3.0).sum())(X), torch.full((4,), 3.0))
    if not OLD:
        assert torch.equal(torch.vmap(func.grad(lambda x: scale(x).sum()))(ROWS), 0 * ROWS + 2)
        assert torch.equal(func.grad(lambda x: torch.vmap(scale)(x).sum())(ROWS), 0 * ROWS + 2)
    compiled = torch.compile(scale, backend="aot_eager", fullgraph=True)
    x.grad = None
    compiled(x, alpha=5.0).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 5.0))


def test_a_kernel_without_one_says_so():
    x = X.clone().requires_grad_()
    message = r"xla_gpu::pairs has no gradient \(give the kernel a gradient\)"
    out = pairs(x)
    assert torch.equal(out.detach(), pairs(X))
    with pytest.raises(NotImplementedError, match=message):
        out.sum().backward()
    with pytest.raises(NotImplementedError, match="xla_gpu::add_to has no gradient"):
        add_to(X.clone(), x)
    with pytest.raises(NotImplementedError, match="xla_gpu::scale has no forward-mode derivative"):
        func.jvp(scale, (X,), (X,))
    with torch.no_grad():
        assert torch.equal(add_to(torch.zeros(4), x), X)


def test_a_wrong_count_of_gradients():
    kernel = xla_gpu.host_kernel(
        SOURCE, "pairs", name="wrong", outputs={"out": lambda x: ((2 * x.size,), x.dtype)},
        scalars=SIZE, gradient=lambda args, results, gradients: gradients[0],
    )  # fmt: skip
    with pytest.raises(ValueError, match="wrong: gradient gave Tensor; it must give a tuple of 1"):
        kernel(X.clone().requires_grad_()).sum().backward()


# ---- vmap ----------------------------------------------------------------------------------------


@needs_2_5
def test_vmap():
    assert torch.equal(torch.vmap(scale)(ROWS), 2 * ROWS)
    assert torch.equal(torch.vmap(scale, in_dims=1, out_dims=1)(ROWS), 2 * ROWS)
    cube = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(torch.vmap(row_sums)(cube), cube.sum(2))
    assert torch.equal(torch.vmap(torch.vmap(scale))(cube), 2 * cube)
    assert torch.vmap(row_sums)(cube[:0]).shape == (0, 3)
    with pytest.raises(NotImplementedError, match="pairs: vmap is not supported; give the kernel"):
        torch.vmap(pairs)(ROWS)


@needs_2_5
def test_vmap_in_place():
    y = torch.ones(2, 3)
    torch.vmap(add_to)(y, ROWS)
    assert torch.equal(y, ROWS + 1)
    before, _ = torch.vmap(swap_out, in_dims=(0, None))(y, ROWS[1])
    assert torch.equal(before, ROWS + 1) and torch.equal(y, ROWS[1].expand(2, 3))
    across = torch.ones(3, 2)
    torch.vmap(add_to, in_dims=(1, 0))(across, ROWS)
    assert torch.equal(across, ROWS.t() + 1)
    with pytest.raises(ValueError, match="add_to: y is written in place but has no batch dim"):
        torch.vmap(add_to, in_dims=(None, 0))(torch.ones(3), ROWS)


# ---- torch.compile -------------------------------------------------------------------------------


def program(x, y):
    a = scale(x + 1, alpha=3.0)
    y = add_to(y, a)
    before, after = swap_out(y, x)
    return pairs(a) * 2, before, after + 1


@needs_2_5
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled(backend):
    step = torch.compile(program, backend=backend, fullgraph=True)
    for size in (4, 5, 6, 7):
        x = torch.arange(float(size))
        ours, theirs = torch.ones(size), torch.ones(size)
        for got, want in zip(step(x, ours), program(x, theirs), strict=True):
            assert torch.equal(got, want)
        assert torch.equal(ours, theirs)


def test_any_size_is_one_graph():
    """Functions of arguments are expressions of sizes there, not constants."""
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph

    step = torch.compile(lambda x: pairs(scale(x)), backend=backend, fullgraph=True)
    for size in range(2, 9):
        assert step(torch.ones(size)).shape == (2 * size,)
    assert len(compiles) == 2  # for one size, then for any


def test_ints_are_any_and_floats_constants():
    source = "void k(const float* x, int64_t n, float a, float* out) { *out = *x * n * a; }"
    kernel = xla_gpu.host_kernel(f"#include <cstdint>\n{source}", "k", outputs={"out": "x"})
    step = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    for n in range(2, 7):
        assert step(torch.tensor(1.0), n=n, a=0.5).item() == n / 2
    assert step(torch.tensor(1.0), n=2, a=1.5).item() == 3


def test_an_int_that_is_any_as_a_float():
    step = torch.compile(lambda x: scale(x, alpha=x.shape[0]), backend="aot_eager", dynamic=True)
    for size in (3, 5):
        assert step(torch.ones(size)).tolist() == [size] * size


@pytest.mark.parametrize("kernel", [scale, pairs])
def test_opcheck(kernel):
    run, tensors = _user_kernels.bind(kernel, (X,))
    scalars = (2.0,) if kernel is scale else ()
    opcheck(torch.ops.xla_gpu.kernel.default, ([X], *run._told(tensors, scalars)))


@needs_2_5
def test_opcheck_in_place():
    y = torch.ones(4)
    run, tensors = _user_kernels.bind(swap_out, (y, X))
    opcheck(torch.ops.xla_gpu.kernel_1_.default, ([X], [y], *run._told(tensors, ())))


# ---- torch.export --------------------------------------------------------------------------------

LOAD = """
import sys, torch, xla_gpu.torch
program = torch.export.load(sys.argv[1]).module()
for size in (3, 6):
    y = torch.ones(size)
    out = program(torch.arange(float(size)), y)
    print([t.tolist() for t in (*out, y)])
"""


class Program(torch.nn.Module):
    def forward(self, x, y):
        return program(x, y)


@needs_2_5
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_runs_where_no_kernel_is_defined(strict, tmp_path):
    size = {0: torch.export.Dim("size", min=2)}
    exported = torch.export.export(
        Program(), (X, torch.ones(4)), dynamic_shapes={"x": size, "y": size}, strict=strict
    )
    torch.export.save(exported, tmp_path / "program.pt2")
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "program.pt2")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    for size, line in zip((3, 6), run.stdout.splitlines(), strict=True):
        y = torch.ones(size)
        out = program(torch.arange(float(size)), y)
        assert line == str([t.tolist() for t in (*out, y)])


@needs_2_5
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_aot_inductor(tmp_path):
    inductor = torch._inductor
    if not hasattr(inductor, "aoti_load_package"):
        pytest.skip("this torch has no packages of AOTInductor")
    size = {0: torch.export.Dim("size", min=2)}
    exported = torch.export.export(
        Program(), (X, torch.ones(4)), dynamic_shapes={"x": size, "y": size}
    )
    package = str(tmp_path / "program.pt2")
    loaded = inductor.aoti_load_package(
        inductor.aoti_compile_and_package(exported, package_path=package)
    )
    for size in (4, 7):
        x, y, same = torch.arange(float(size)), torch.ones(size), torch.ones(size)
        for made, wanted in zip(loaded(x, y), program(x, same), strict=True):
            assert torch.equal(made, wanted)
        assert torch.equal(y, same)


@pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="this torch does not tell an export"
)
def test_functions_of_this_process_cannot_be_exported():
    import ctypes

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    def nothing(x, out): ...

    kernel = xla_gpu.host_kernel(nothing, name="f", arguments=["x"], outputs={"out": "x"})

    class Local(torch.nn.Module):
        def forward(self, x):
            return kernel(x)

    with pytest.raises(Exception, match="f: its Host code is a function of this process"):
        torch.export.export(Local(), (X,), strict=False)


def test_a_trace_that_would_fix_sizes():
    source = "void k(const float* x, float* y, long n) { while (n--) y[n] = x[n]; }"
    kernel = xla_gpu.host_kernel(source, "k", outputs={"y": "x"}, scalars={"n": lambda x: x.size})
    with pytest.raises(NotImplementedError, match="k: torch.jit.trace would fix .*torch.export"):
        torch.jit.trace(lambda x: kernel(x), X)


def test_an_unknown_kernel():
    with pytest.raises(LookupError, match="no op 'nobody@0'"):
        torch.ops.xla_gpu.kernel([X], "nobody@0", [], [], [], [])
    with pytest.raises(LookupError, match="no op 'nobody@0#9999'"):
        torch.ops.xla_gpu.kernel([X], "nobody@0#9999", [], [], [], [])
    known = scale.schema
    with pytest.raises(ValueError, match="its definition is that of 'scale@"):
        torch.ops.xla_gpu.kernel([X], "other@1", [4], [2.0], [], [], known.definition)
    with pytest.raises(ValueError, match="scale: ints, floats or launch is too short"):
        torch.ops.xla_gpu.kernel([X], known.key, [], [2.0], [], [])
