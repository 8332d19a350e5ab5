"""Wrong descriptions and calls: each raises an error that says what was wrong."""

import pytest
import triton
import triton_kernels as kernels
import xla_gpu
from xla_gpu._ops import TensorSpec
from xla_gpu._triton import _decorators

X = TensorSpec("f32", (100,))


class Anything:
    """An object without some of what a Triton function has."""

    def __init__(self, **members):
        self.__dict__.update(members)


def kernel(fn=kernels.add, **changes):
    given = {"grid": 1, "outputs": {"out": "x"}, "constexprs": {"BLOCK": 128}, "arch": "sm_90"}
    return xla_gpu.triton_kernel(fn, **{**given, **changes})


def tuned(**changes):
    return kernel(kernels.tuned, **{"constexprs": None, **changes})


def plain(x):
    return x


def hooked(**options):
    return triton.autotune(configs=kernels.CONFIGS, key=["n"], **options)(kernels.add)


WITH_A_HOOK = [triton.Config({"BLOCK": 64}, pre_hook=lambda args: None)]

DESCRIPTIONS = [
    (dict(fn=plain), "plain: it is function .*; it must be a @triton.jit function"),
    (dict(fn=3), "it must be a @triton.jit function"),
    (
        dict(outputs={"y_ptr": "x"}),
        "outputs has 'y_ptr', no parameter of it; allowed are x, y, out",
    ),
    (dict(outputs={"BLOCK": "x"}), "outputs has 'BLOCK', a tl.constexpr of it; allowed are x, y"),
    (dict(outputs={}), "it has neither outputs nor in_place"),
    (dict(in_place=["z"]), "in_place has 'z', no parameter of it"),
    (dict(in_place="out"), "in_place is 'out'; it must be a list of different names"),
    (dict(in_place=["out"]), "out is in outputs and in in_place"),
    (dict(in_place=["x", "x"]), "in_place is .*; it must be a list of different names"),
    (dict(outputs=["out"]), "outputs is .*; it must be a dict by the names of results"),
    (dict(scalars=["n"]), "scalars is .*; it must be a dict by the names of scalars"),
    (dict(options="maxnreg"), "options is 'maxnreg'; it must be a dict"),
    (dict(capture=1), "capture is 1; it must be True or False"),
    (dict(gradient=1), "gradient is 1; it must be a function or None"),
    (dict(name=3), "name is 3; it must be the custom call's target"),
    (dict(constexprs={"BLOK": 1}), "constexprs has 'BLOK', no parameter of it; allowed are BLOCK"),
    (dict(constexprs={"n": 1}), "constexprs has 'n', no tl.constexpr of it"),
    (dict(constexprs=128), "constexprs is 128; it must be a dict, or a function"),
    (dict(scalars={"BLOCK": 1}), "scalars has 'BLOCK', a tl.constexpr of it"),
    (dict(scalars={"out": 1}), "out is in outputs and in scalars"),
    (dict(num_warps=3), "num_warps is 3; allowed are 1, 2, 4, 8, 16 and 32"),
    (dict(num_warps=64), "num_warps is 64"),
    (dict(num_warps=0), "num_warps is 0"),
    (dict(num_stages="2"), "num_stages is '2'; it must be an int of 1 or more"),
    (dict(num_ctas=0), "num_ctas is 0; it must be an int of 1 or more"),
    (dict(num_ctas=2, arch="sm_80"), "num_ctas is 2, which needs sm_90 or newer; it is for sm_80"),
    (dict(options={"num_wraps": 4}), "'num_wraps' is neither a parameter .* nor an option"),
    (dict(arch="90x"), "arch is '90x'; it must be as 'sm_90'"),
    (dict(arch="volta"), "arch is 'volta'"),
    (dict(grid=()), "grid is \\(\\); it must be 1 to 3 ints"),
    (dict(grid=(1, 1, 1, 1)), "grid is .*; it must be 1 to 3 ints"),
    (dict(grid=1.5), "grid is 1.5; it must be 1 to 3 ints"),
    (dict(fn=kernels.tuned), "constexprs has BLOCK, which @triton.autotune says"),
    (dict(fn=kernels.by_size), "constexprs has BLOCK, which @triton.heuristics says"),
    (dict(fn=kernels.tuned, constexprs={}, num_warps=4), "num_warps is given, and chosen by"),
    (dict(fn=hooked(pre_hook=lambda *a, **k: 0)), "pre_hook and post_hook of @triton.autotune"),
    (dict(fn=hooked(post_hook=lambda *a, **k: 0)), "reset_to_zero and restore_value are supp"),
    (
        dict(fn=triton.autotune(configs=WITH_A_HOOK, key=[])(kernels.add)),
        "a triton.Config with a pre_hook",
    ),
    (
        dict(fn=triton.autotune(configs=kernels.CONFIGS, key=[])(kernels.tuned)),
        "it is under two @triton.autotune",
    ),
]


@pytest.mark.parametrize(
    "changes, message", DESCRIPTIONS, ids=[row[-1][:40] for row in DESCRIPTIONS]
)
def test_descriptions(changes, message):
    with pytest.raises((xla_gpu.InvalidArgumentError, xla_gpu.UnimplementedError), match=message):
        kernel(**changes)


CALLS = [
    (kernel, (X, X), {}, "n is missing; say it in the call"),
    (lambda: kernel(constexprs=None), (X, X, 5), {}, "BLOCK is missing; say it in constexprs or"),
    (kernel, (X,), {"n": 3}, "y is missing"),
    (kernel, (X, X, "many"), {}, "n is str 'many'; .*declare it tl.constexpr"),
    (kernel, (X, X, [3]), {}, r"n is list \[3\]; allowed are arrays, numbers and None"),
    (kernel, (X, X, 2**64), {}, "n is 18446744073709551616; it must fit 64 bits with a sign"),
    (kernel, (X, X, 3j), {}, "n is complex"),
    (kernel, (None, X, 3), {}, "outputs\\['out'\\] is 'x', which is no argument of this call"),
    (kernel, (X, X, 3), {"BLOCK": 3}, "Triton .* cannot compile it for sm_90: .*power of 2"),
    (kernel, (X, X, None), {}, "Triton .* cannot compile it"),
    (
        kernel,
        (X, Anything(shape=(3,), dtype="c64"), 3),
        {},
        "y is of dtype c64, which XLA does not have",
    ),
    (lambda: kernel(grid=lambda meta: meta), (X, X, 3), {}, "grid is {"),
    (lambda: kernel(grid=lambda a, b: 1), (X, X, 3), {}, "grid has a parameter a, which is no arg"),
    (lambda: kernel(grid=lambda n: (n, 0.5)), (X, X, 3), {}, r"grid is \(3, 0.5\); it must be"),
    (
        lambda: kernel(constexprs=lambda n: n),
        (X, X, 3),
        {},
        "constexprs gave 3; it must give a dict",
    ),
    (lambda: kernel(constexprs=lambda n: {"B": n}), (X, X, 3), {}, "constexprs has 'B', no param"),
    (
        lambda: kernel(outputs={"out": lambda x: (x.shape, "f31")}),
        (X, X, 3),
        {},
        r"outputs\['out'\] is \(\(100,\), 'f31'\); it must be the name",
    ),
    (tuned, (X, X, 3), {"BLOCK": 16}, "BLOCK is given, which @triton.autotune says"),
    (
        lambda: kernel(kernels.accumulate, outputs={}, in_place=["total"]),
        (3, X, 3),
        {},
        "total is 3; in_place names it, so it is an array",
    ),
    (
        lambda: kernel(kernels.typed, constexprs={}),
        (X, X, True),
        {},
        r"wide is f32\[100\]; it is declared as a scalar, i64",
    ),
    (
        kernel,
        (X, Anything(base=X, block_shape=[16]), 3),
        {},
        "y is a tensor descriptor made on the host",
    ),
    (lambda: kernel(arch=None), (X, X, 3), {}, "there is no NVIDIA GPU here .*arch='sm_90'"),
]


@pytest.mark.parametrize("make, args, named, message", CALLS, ids=[row[-1][:40] for row in CALLS])
def test_calls(make, args, named, message):
    with pytest.raises(xla_gpu.InvalidArgumentError, match=f"(?s){message}"):
        make().variant(*args, **named)


@pytest.mark.parametrize(
    "args, named, message",
    [
        ((X, X, 3, 4), {}, "add: too many positional arguments"),
        ((X, X, 3), {"n": 3}, "add: multiple values for argument 'n'"),
        ((X, X, 3), {"m": 3}, "add: got an unexpected keyword argument 'm'"),
        ((X, X, 3), {"out": X}, "add: got an unexpected keyword argument 'out'"),
        ((X, X, 3), {"num_warps": 4}, "add: got an unexpected keyword argument 'num_warps'"),
    ],
)
def test_signatures(args, named, message):
    with pytest.raises(TypeError, match=message):
        kernel().variant(*args, **named)


def test_a_changed_global(monkeypatch):
    made = kernel()
    made.variant(X, X, 3)
    changed = {("SIZE", 0): (3, {"SIZE": 4})}
    monkeypatch.setattr(kernels.add, "used_global_vals", changed)
    with pytest.raises(xla_gpu.InvalidArgumentError, match="the global SIZE, .* from 3 to 4"):
        made.variant(X, X, 3)


def test_what_triton_interprets():
    class InterpretedFunction:
        fn = None

    with pytest.raises(xla_gpu.InvalidArgumentError, match="TRITON_INTERPRET=1"):
        _decorators.Decorated("k", InterpretedFunction())


def test_gluon():
    class GluonJITFunction:
        params = ()

        def is_gluon(self):
            return True

    with pytest.raises(xla_gpu.UnimplementedError, match="Gluon"):
        _decorators.Decorated("k", GluonJITFunction())


def test_machine_code_that_takes_something_else(monkeypatch):
    from xla_gpu._triton import _compile, _cubin

    monkeypatch.setattr(_compile, "kernel_info", lambda *a: _cubin.KernelInfo((8, 8), 128))
    with pytest.raises(
        xla_gpu.UnimplementedError, match=r"takes parameters of \[8, 8\] bytes, not"
    ):
        kernel().variant(X, X, 3)
