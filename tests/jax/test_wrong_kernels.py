"""Wrong uses of kernels: each raises an error that names what was wrong, and what is allowed."""

import copy
import functools
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_gpu

SOURCE = """
extern "C" void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
  for (long i = 0; i < n; ++i) out[i] = alpha * x[i] + y[i];
}
void fail(const float* x, float* out) { throw 1; }
"""
X, Y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))


def saxpy(**change):
    said = {"outputs": {"out": "x"}, "scalars": {"n": lambda x: x.size}} | change
    return xla_gpu.host_kernel(SOURCE, "saxpy", **said)


def made(source="void f(const float* x, float* out, int n) {}", entry="f", **said):
    return lambda: xla_gpu.host_kernel(source, entry, **({"outputs": {"out": "x"}} | said))


def called(*args, **named):
    return lambda: jax.block_until_ready(jax.jit(lambda: saxpy()(*args, **named))())


def cuda(**change):
    text = "__global__ void f(const float* x, float* out) {}"
    said = {"source": text, "entry": "f", "grid": 1, "block": 32, "outputs": {"out": "x"}} | change

    def call():
        return jax.jit(xla_gpu.cuda_kernel(**said)).trace(X)

    return call


def run(source, **said):
    said = {"entry": "f", "outputs": {"out": "x"}} | said
    return lambda: jax.block_until_ready(xla_gpu.host_kernel(source, **said)(X))


WRONG = {
    # What describes a kernel.
    "no such entry": (made(entry="g"), "declares no function 'g'"),
    "entry in a comment": (made("// void f(int x)\n"), "declares no function 'f'"),
    "no such file": (made("missing.cc"), "the source file missing.cc does not exist"),
    "nameless parameter": (
        made("void f(const float*, float* out) {}"),
        "parameter 0 of f has no name",
    ),
    "unknown scalar type": (
        made("void f(const float* x, float* out, Own n) {}"),
        "the type of scalar n is not known",
    ),
    "an output of no parameter": (
        made(outputs={"result": "x"}),
        "output result is no parameter of f",
    ),
    "no outputs": (made(outputs={}), "there is no result"),
    "like what is no argument": (made(outputs={"out": "z"}), 'like is "z", which is no argument'),
    "in place of nothing": (made(in_place=["z"]), 'alias_of is "z", which is no argument'),
    "vmap": (made(vmap="parallel"), "vmap is 'parallel'; allowed are sequential"),
    "a scalar that is no parameter": (
        made(scalars={"m": 1}),
        "the type of scalar m|scalar m is no parameter",
    ),
    "scalar of no dtype": (made(scalars={"n": ("int7", 1)}), r"scalars\['n'\] is"),
    "scalar of text": (made(scalars={"n": "many"}), r"scalars\['n'\] is 'many'"),
    "default of another type": (made(scalars={"n": 0.5}), "the default of n is the float 0.5"),
    "reserved name": (
        made("void f(const float* grid, float* out) {}", outputs={"out": "grid"}),
        "grid",
    ),
    "unknown parameter": (
        made(arguments=["x"], parameters=["x", "y"]),
        '"y", which is no argument',
    ),
    "parameter of nothing": (made(parameters=[{"type": "f32"}]), "must have one of value"),
    "constant of another type": (
        made(arguments=["x"], parameters=["x", "out", {"value": 0.5, "type": "i32"}]),
        "must be a i32",
    ),
    "host": (cuda(host=3), "host is int; it must be an xla_gpu.host_kernel, or C"),
    "host without the kernel": (cuda(host="void g() {}"), "declares no function 'f'"),
    "name of an op": (made(name="paged_attention"), "this library has an op of this name"),
    "name of two lines": (made(name="a\nb"), "name is"),
    "entry by a function without a name": (cuda(entry=lambda x: "f"), "name is None"),
    "workspace without a size": (
        run("void f(const float* x, float* out, void* workspace) {}", workspace="much"),
        "workspace is 'much'",
    ),
    # Calls.
    "too few": (called(X, alpha=1.0), "missing 1 required positional argument: 'y'"),
    "too many": (called(X, Y, Y, alpha=1.0), "takes 2 positional arguments but 3"),
    "no scalar": (called(X, Y), "missing 1 required keyword-only argument: 'alpha'"),
    "unknown keyword": (
        called(X, Y, alpha=1.0, beta=2.0),
        r"saxpy\(\) got an unexpected keyword argument 'beta'",
    ),
    "a derived scalar": (
        called(X, Y, alpha=1.0, n=3),
        r"saxpy\(\) got an unexpected keyword argument 'n'",
    ),
    "scalar is text": (
        called(X, Y, alpha="2"),
        "saxpy: alpha is str '2'; allowed is a Python number",
    ),
    "scalar is no f32": (
        called(X, Y, alpha=1e300),
        r"saxpy: alpha is 1e\+300, which its type f32 does not hold; allowed are -3.40282e\+38 to",
    ),
    "scalar is no float": (called(X, Y, alpha=-(10**400)), "saxpy: alpha is an int of 1329 bits"),
    "scalar is None": (called(X, Y, alpha=None), "saxpy: alpha is NoneType None"),
    "scalar is a bool": (called(X, Y, alpha=True), "saxpy: alpha is bool True"),
    "scalar is an array": (
        called(X, Y, alpha=jnp.ones(())),
        "saxpy: alpha is an array: it is fixed",
    ),
    "dtype": (
        called(X.astype(jnp.int32), Y, alpha=1.0),
        r"saxpy: x is i32\[2,3\]; its dtype must be f32",
    ),
    "dtype of the second": (
        called(X, Y.astype(jnp.bfloat16), alpha=1.0),
        r"saxpy: y is bf16\[2,3\]",
    ),
    "two dtypes for one type": (
        lambda: xla_gpu.host_kernel(
            "template <typename T> void add(const T* x, const T* y, T* out) { out[0] = x[0]; }",
            "add<float>",
            outputs={"out": "x"},
        )(X, Y.astype(jnp.bfloat16)),
        r"add: x is f32\[2,3\] but y is bf16\[2,3\]; the source text has pointers to one type",
    ),
    "an argument is None": (
        called(X, None, alpha=1.0),
        "saxpy: y is None; it must be an array",
    ),
    "an argument is text": (called(X, "y", alpha=1.0), "saxpy: y is str 'y'; it must be an array"),
    "no argument at all": (called(None, None, alpha=1.0), "saxpy: no argument came"),
    "gradient": (
        lambda: jax.grad(lambda x: saxpy()(x, Y, alpha=1.0).sum())(X),
        "saxpy: differentiation is not supported; give the kernel a gradient",
    ),
    "vmap without a rule": (
        lambda: jax.vmap(lambda x: saxpy()(x, x, alpha=1.0))(X),
        "saxpy: vmap is not supported; give the kernel a vmap rule",
    ),
    "a gradient of too few": (
        lambda: jax.grad(
            lambda x: saxpy(name="few", gradient=lambda *a, **k: (Y,))(x, Y, alpha=1.0).sum()
        )(X),
        "few: gradient gave tuple; it must give a tuple of 2",
    ),
    "symbolic shapes": (
        lambda: __import__("jax.export").export.export(jax.jit(lambda x: saxpy()(x, x, alpha=1.0)))(
            jax.ShapeDtypeStruct(__import__("jax.export").export.symbolic_shape("n"), jnp.float32)
        ),
        "saxpy: x has the symbolic shape",
    ),
    # Functions of arguments.
    "a function of what is no argument": (
        run("void f(const float* x, float* out, int n) {}", scalars={"n": lambda z: z.size}),
        "the function n has a parameter z, which is no argument",
    ),
    "a function that gives text": (
        run("void f(const float* x, float* out, int n) {}", scalars={"n": lambda x: "3"}),
        "f: n is str '3'; allowed is a Python int",
    ),
    "a function that gives what no int holds": (
        run("void f(const float* x, float* out, int n) {}", scalars={"n": lambda x: 1 << 40}),
        "f: n is 1099511627776, which its type i32 does not hold; allowed are -2147483648 to",
    ),
    "a function that gives what no float holds": (
        run("void f(const float* x, float* out, float n) {}", scalars={"n": lambda x: 10**400}),
        r"f: n is an int of 1329 bits; allowed are -1.79769e\+308 to 1.79769e\+308",
    ),
    "a default that no f32 holds": (
        run("void f(const float* x, float* out, float n) {}", scalars={"n": 1e39}),
        r"f: the default of n is the float 1e\+39; it must be a f32: -3.40282e\+38 to 3.40282e\+38",
    ),
    "a default that no number holds": (
        run("void f(const float* x, float* out, float n) {}", scalars={"n": 10**400}),
        r"f: scalars\['n'\] is an int of 1329 bits; allowed are -1.79769e\+308 to",
    ),
    "a negative unsigned": (
        run("void f(const float* x, float* out, unsigned n) {}", scalars={"n": -1}),
        "f: the default of n is the int -1; it must be a u32",
    ),
    "an output of one int": (
        run("void f(const float* x, float* out) {}", outputs={"out": lambda x: 3}),
        r"outputs\['out'\] is 3",
    ),
    "an output of no dtype": (
        run("void f(const float* x, float* out) {}", outputs={"out": lambda x: (x.shape, "int7")}),
        r"outputs\['out'\] is",
    ),
    "an output of a negative size": (
        run("void f(const float* x, float* out) {}", outputs={"out": lambda x: ((-1,), "f32")}),
        r"outputs\['out'\] is",
    ),
    # What a compiler or the kernel says.
    "does not compile": (
        run("void f(const float* x, float* out) { int y = ; }"),
        r"kernel\.cc:1:\d+: error:",
    ),
    "carets": (run("void f(const float* x, float* out) { undeclared(); }"), r"\^~+"),
    "an option that is none": (
        run("void f(const float* x, float* out) {}", options=["--no-such"]),
        "--no-such",
    ),
    "throws": (run(SOURCE, entry="fail"), "fail: the function threw"),
    "no such library": (
        lambda: jax.block_until_ready(
            xla_gpu.host_kernel("/missing.so:f", arguments=["x"], outputs={"out": "x"})(X)
        ),
        "f: the library /missing.so cannot be loaded",
    ),
    "no such symbol": (
        lambda: jax.block_until_ready(
            xla_gpu.host_kernel(
                f"{xla_gpu.library_path()}:missing", arguments=["x"], outputs={"out": "x"}
            )(X)
        ),
        "exports no symbol 'missing'",
    ),
    # Launches, whose numbers are checked when a call is traced, on a CPU too.
    "grid of four": (cuda(grid=(1, 1, 1, 1)), "f: grid is .*; it must be 1 to 3 ints"),
    "grid of text": (cuda(grid="many"), "f: grid is 'many'"),
    "grid of floats": (cuda(grid=(1.5,)), "f: grid is"),
    "block of none": (cuda(block=()), "f: block is"),
    "shared memory of text": (cuda(shared_memory="48 KB"), "f: shared_memory is '48 KB'"),
    "negative shared memory": (cuda(shared_memory=-1), "f: shared_memory is -1"),
    "cluster": (cuda(cluster=(0, 1, 1)), r"cluster is \[0,1,1\]"),
    "no kernel for the CPU": (
        lambda: jax.block_until_ready(
            xla_gpu.cuda_kernel(
                "__global__ void f(const float* x, float* out) {}",
                "f",
                grid=1,
                block=1,
                outputs={"out": "x"},
            )(X)
        ),
        "f: there is no kernel for platform Host",
    ),
    "convention": (
        lambda: xla_gpu.external_kernel(1, arguments=["x"], convention="rust"),
        "convention is 'rust'",
    ),
    "platform": (
        lambda: xla_gpu.external_kernel(1, arguments=["x"], outputs={"out": "x"}, platform="TPU"),
        "platform is 'TPU'",
    ),
    "api_version": (
        lambda: xla_gpu.external_kernel(1, arguments=["x"], outputs={"out": "x"}, api_version=7),
        "api_version is 7; it must be 1 to 3",
    ),
    "a library without its symbol": (
        lambda: xla_gpu.host_kernel("lib.so", arguments=["x"]),
        "lib.so",
    ),
    "cubin without arguments of a file": (
        lambda: xla_gpu.cubin_kernel("/missing.cubin", "f", arguments=["x"], grid=1, block=1),
        "the image /missing.cubin does not exist",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses(name):
    call, message = WRONG[name]
    with pytest.raises(Exception, match=message) as raised:
        call()
    assert not isinstance(raised.value, AssertionError | KeyError | IndexError | AttributeError)


# ---- Descriptions: each parameter ----------------------------------------------------------------

HOST = "void f(const float* x, float* out, int n) { out[0] = n; }"
DEVICE = "__global__ void f(const float* x, float* out) {}"


def host(**change):
    said = {"source": HOST, "entry": "f", "outputs": {"out": "x"}, "scalars": {"n": 1}} | change
    return jax.jit(xla_gpu.host_kernel(**said)).trace(X)


def device(**change):
    said = {"source": DEVICE, "entry": "f", "grid": 1, "block": 32, "outputs": {"out": "x"}}
    return jax.jit(xla_gpu.cuda_kernel(**{**said, **change})).trace(X)


def image(**change):
    said = {"image": b"\x7fELF", "entry": "f", "arguments": ["x"], "grid": 1, "block": 1}
    return jax.jit(xla_gpu.cubin_kernel(**{**said, "outputs": {"out": "x"}, **change})).trace(X)


def external(**change):
    said = {"function": "/lib.so:f", "arguments": ["x"], "outputs": {"out": "x"}} | change
    return jax.jit(xla_gpu.external_kernel(**said)).trace(X)


def nested(depth=5000):
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


# By maker: (parameter, what came, what the message says of it).
PARAMETERS = {
    host: [
        ("source", 3, "source is 3; with an entry it must be text"),
        ("source", HOST.encode(), "source is b'void"),
        ("source", HOST + "\0", "text in UTF-8 without NUL"),
        ("source", HOST + "// \udc80", "text in UTF-8 without NUL"),
        ("source", pathlib.Path("\udcff.cc"), "text in UTF-8 without NUL, or the path"),
        ("source", pathlib.Path("/"), "the source file / cannot be read: Is a directory"),
        ("source", pathlib.Path("a" * 5000), "cannot be read: File name too long"),
        ("entry", b"f", "entry is b'f'; it must be a name, an expression"),
        ("entry", "", "entry is ''"),
        ("entry", "f\0", "entry is"),
        ("entry", "f; int q", "declares no function 'f; int q'"),
        ("entry", " f", "entry is ' f'"),
        ("outputs", "out", "outputs is 'out'; it must be a dict by the names of results"),
        ("outputs", ["out"], "outputs is .*; it must be a dict"),
        ("outputs", {1: "x"}, "outputs is {1: 'x'}; it must be a dict"),
        ("outputs", {"out": None}, r"outputs\['out'\] is None"),
        ("outputs", {"out": ("23", "f32")}, r"outputs\['out'\] is \('23', 'f32'\)"),
        ("outputs", {"out": ((True,), "f32")}, r"outputs\['out'\] is"),
        ("outputs", {"out": ((1 << 62,) * 2, "f32")}, "its size in bytes does not fit"),
        ("outputs", {"out": ((2,), "complex64")}, r"outputs\['out'\] is"),
        ("outputs", {"out": nested()}, r"outputs\['out'\] is \[\[.*; it must be"),
        ("outputs", {"out": "out"}, 'like is "out", which is no argument'),
        ("in_place", "x", "in_place is 'x'; it must be a list of different names"),
        ("in_place", ["x", "x"], "in_place is .*; it must be a list of different names"),
        ("in_place", None, "in_place is None"),
        ("in_place", (n for n in ["x"]), "in_place is <generator .*; it must be a list"),
        ("in_place", ["out"], 'alias_of is "out", which is no argument'),
        ("in_place", ["x"], "parameter x of f is a result, but points to const"),
        ("in_place", nested(), "in_place is"),
        ("scalars", ["n"], "scalars is .*; it must be a dict by the names of scalars"),
        ("scalars", {"n": 1 << 70}, "1180591620717411303424 does not fit"),
        ("scalars", {"n": float("nan")}, r"scalars\['n'\] is nan; a default must be finite"),
        ("scalars", {"x": 1}, "x of f is a pointer, but a scalar"),
        ("scalars", {"n": jnp.ones(())}, r"scalars\['n'\] is"),
        ("scalars", {"n": max}, "the function n has parameters without names"),
        ("scalars", {"n": lambda *sizes: 1}, "the function n has parameters without names"),
        ("scalars", {"n": lambda x: 1.5}, "n is float 1.5; allowed is a Python int"),
        ("scalars", {"n": lambda x: None}, "n is NoneType None"),
        ("scalars", {"n": lambda x: True}, "n is bool True"),
        ("scalars", {"n": lambda self: 1}, "the function n has a parameter self, which is no"),
        ("arguments", "x", "arguments is 'x'; it must be a list of names"),
        ("arguments", {"x": 1}, "arguments is {'x': 1}; it must be a list"),
        ("arguments", [1], r"arguments is \[1\]"),
        ("arguments", ["x", "x"], "'x' is the name of two arguments"),
        ("arguments", [{}], "name"),
        ("arguments", [{"name": "x", "dtipes": ["f32"]}], "dtipes"),
        ("arguments", [{"name": "x", "dtypes": ["f31"]}], "f31"),
        ("arguments", [{"name": "x", "dtypes": "f32"}], "dtypes"),
        ("arguments", [{"name": nested()}], "arguments is"),
        ("arguments", ["a b"], 'is "a b"; it must be an identifier'),
        ("arguments", ["grid"], 'is "grid", which calls use for something else'),
        ("arguments", ["result_types"], 'is "result_types", which calls use'),
        ("parameters", "x", "parameters is 'x'; it must be a list of names"),
        ("parameters", [3], r"parameters is \[3\]"),
        ("options", "-O3", "options is '-O3'; it must be a list of str"),
        ("options", [3], r"options is \[3\]"),
        ("options", ["-D\0"], "options is"),
        ("workspace", -1, "workspace is -1; it must be a number of bytes"),
        ("workspace", 1.5, "workspace is 1.5"),
        ("workspace", True, "workspace is True"),
        ("name", 3, "name is 3; it must be the custom call's target"),
        ("name", "", "name is ''"),
        ("name", "a\0b", "name is"),
        ("name", "a" * 201, "a line of at most 200 bytes"),
        ("vmap", ["sequential"], "vmap is .*; allowed are sequential"),
        ("gradient", (1, 2), r"gradient is \(1, 2\); it must be a function or None"),
        ("sharding", ["i"], "sharding is .*; it must be a rule"),
        ("sharding", "i j, i j", "sharding is 'i j, i j'; it must have a name for each dimension"),
        ("sharding", "i -> i -> i", "sharding is"),
        ("sharding", "i, i -> i", r"of its arguments \(x\)"),
        ("sharding", "i -> i, i", r"of its results \(out\)"),
        ("sharding", "i i -> i i", "sharding is 'i i -> i i'"),
        ("sharding", "1 2 -> 1 2", "sharding is '1 2 -> 1 2'"),
        ("doc", b"text", "doc is b'text'; it must be a str"),
    ],
    device: [
        ("entry", 3, "entry is 3; it must be a name, an expression, or a function"),
        ("grid", None, "grid is None; it must be 1 to 3 ints"),
        ("grid", True, "grid is True; it must be 1 to 3 ints"),
        ("grid", b"x", "grid is b'x'"),
        ("grid", -1, r"grid is \[-1,1,1\]; it must be three ints from 0"),
        ("grid", 0, r"grid is \[0,1,1\], so no block would write result out"),
        ("grid", 1 << 31, r"grid is \[2147483648,1,1\]"),
        ("grid", (1, 65536), r"grid is \[1,65536,1\]"),
        ("grid", 1 << 70, "grid"),
        ("grid", lambda x: None, "grid is None"),
        ("grid", lambda x: -1, r"grid is \[-1,1,1\]"),
        ("grid", lambda q: 1, "the function grid has a parameter q"),
        ("grid", max, "the function grid has parameters without names"),
        ("block", 0, r"block is \[0,1,1\]; it must be three ints from 1"),
        ("block", 1025, r"block is \[1025,1,1\]"),
        ("block", (32, 33), "a block has at most 1024 threads"),
        ("block", (1, 1, 65), r"block is \[1,1,65\]"),
        ("shared_memory", None, "shared_memory is None; it must be a number of bytes"),
        ("shared_memory", 1 << 21, "shared_memory is 2097152; it must be 0 to"),
        ("shared_memory", lambda x: 0.5, "shared_memory is 0.5"),
        ("include_dirs", "include", "include_dirs is 'include'; it must be a list of folders"),
        ("include_dirs", [1], r"include_dirs is \[1\]"),
        ("defines", ["A"], "defines is .*; it must be a dict of macros"),
        ("defines", {1: 2}, "defines is {1: 2}"),
        ("defines", {"A": ["x"]}, "defines is"),
        ("cluster", 2, "cluster is 2; it must be three ints of 1 to 16"),
        ("cluster", (1, 1), r"cluster is \(1, 1\)"),
        ("cluster", (17, 1, 1), r"cluster is \[17,1,1\]"),
        ("cluster", "111", "cluster is '111'"),
        ("capture", 1, "capture is 1; it must be True or False"),
        ("capture", None, "capture is None"),
        ("host", b"", "host is bytes; it must be an xla_gpu.host_kernel, or C"),
    ],
    image: [
        ("image", 3, "image is 3; it must be bytes, or the path of a file"),
        ("image", bytearray(b"x"), "image is bytearray"),
        ("image", "./missing.cubin", "the image missing.cubin does not exist"),
        ("image", pathlib.Path("/"), "the image / cannot be read: Is a directory"),
        ("entry", None, "entry is None; it must be the name of a function"),
        ("arguments", None, "arguments is None; it must be a list"),
        ("scalars", {"n": 1}, "the type of scalar n is not known"),
    ],
    external: [
        ("function", None, "function is None; it must be 'path/to/lib.so:symbol'"),
        ("function", "lib.so", "function is 'lib.so'"),
        ("function", "lib.so:", "function is 'lib.so:'"),
        ("function", ("a", "b", "c"), "function is"),
        ("function", True, "function is True"),
        ("function", 0, "function is 0"),
        ("function", 1 << 64, "function is 18446744073709551616"),
        ("function", print, "function is <built-in function print>"),
        ("convention", 3, "convention is 3"),
        ("convention", "", "convention is ''; allowed are tvm_ffi"),
        ("platform", [], r"platform is \[\]; allowed are"),
        ("platform", None, "platform is None"),
        ("api_version", "2", "api_version is '2'; it must be 1, 2, 3 or None"),
        ("api_version", 0, "api_version is 0; it must be 1 to 3"),
        ("opaque", b"x", "opaque is b'x'; it must be a str"),
        ("owned", 1, "owned is 1; it must be True or False"),
        ("returns_error", "no", "returns_error is 'no'"),
    ],
}  # fmt: skip
ROWS = [(make, *row) for make, rows in PARAMETERS.items() for row in rows]


@pytest.mark.parametrize(
    "make, name, value, message",
    ROWS,
    ids=[f"{make.__name__}-{name}-{i}" for i, (make, name, _, _) in enumerate(ROWS)],
)
def test_wrong_parameters(make, name, value, message):
    with pytest.raises((xla_gpu.InvalidArgumentError, xla_gpu.NotFoundError), match=message):
        make(**{name: value})


def test_numbers_of_numpy_are_numbers():
    device(grid=np.int64(2), block=(np.int32(32),), shared_memory=lambda x: np.prod(x.shape))
    kernel = saxpy(scalars={"alpha": np.float32(3), "n": lambda x: np.int64(x.size)}, name="numpy")
    np.testing.assert_array_equal(kernel(np.asarray(X), Y), 3 * X + Y)


# ---- Calls and gradients -------------------------------------------------------------------------


class Alike:
    shape, dtype = (2, 3), "float32"


ARRAYS = {
    "a type": (jax.ShapeDtypeStruct((2, 3), jnp.float32), "x is ShapeDtypeStruct"),
    "what has a shape and a dtype": (Alike(), "x is Alike"),
    "objects": (np.array([None]), r"x is ndarray of dtype \|O"),
    "text": (np.array(["a"]), "x is ndarray of dtype <U1"),
    "bytes of another order": (np.ones((2, 3), ">f4"), "x is ndarray of dtype >f4"),
    "a mask": (np.ma.ones((2, 3)), "x is MaskedArray"),
    "a ragged list": ([[1.0], [1.0, 2.0]], "x is list"),
    "complex": (X + 1j, "x: dtype complex64 has no counterpart"),
    "keys": (jax.random.key(0), "x: dtype key"),
    "ints": (1, r"x is i32\[\]; its dtype must be f32"),
    "a function": (jnp.ones, "x is function"),
    "a dict": ({"x": X}, "x is dict"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_wrong_arrays(name):
    value, message = ARRAYS[name]
    with pytest.raises(xla_gpu.InvalidArgumentError, match=f"saxpy: {message}"):
        saxpy()(value, Y, alpha=1.0)


GRADIENTS = {
    "none": (None, "gradient gave NoneType"),
    "an array": (Y, "gradient gave ArrayImpl"),
    "a dict": ({"x": Y, "y": Y}, "gradient gave dict"),
    "another shape": ((Y[0], Y), r"gradient of x is .*; it must be a real array of shape \(2, 3\)"),
    "text": (("a", Y), "gradient of x is 'a'"),
    "a number": ((1.0, Y), "gradient of x is 1.0"),
    "complex": ((Y, Y * 1j), "gradient of y is"),
    "a type": ((Y, jax.ShapeDtypeStruct((2, 3), jnp.float32)), "gradient of y is"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_wrong_gradients(name):
    value, message = GRADIENTS[name]
    kernel = saxpy(gradient=lambda *kept, alpha: value, name=f"wrong {name}")
    with pytest.raises(xla_gpu.InvalidArgumentError, match=f"wrong {name}: {message}"):
        jax.grad(lambda x: kernel(x, Y, alpha=1.0).sum())(X)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_what_a_function_raises_says_whose_function_it_is():
    with pytest.raises(ZeroDivisionError) as raised:
        device(grid=lambda x: 1 // 0)
    assert "f: raised by the function grid" in raised.value.__notes__


def test_a_kernel_is_itself_when_copied_and_is_not_pickled():
    kernel = saxpy()
    assert copy.copy(kernel) is kernel and copy.deepcopy([kernel])[0] is kernel
    with pytest.raises(TypeError, match="saxpy: a kernel cannot be pickled"):
        pickle.dumps(kernel)


def test_threads_define_and_call_at_once():
    results = {}

    def work(i):
        kernel = saxpy(name=f"thread{i % 4}")
        results[i] = float(kernel(X, Y, alpha=float(i))[0, 1])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i + 1.0 for i in range(12)}


# ---- The C++ compiler ----------------------------------------------------------------------------

PROGRAM = f"""
import os, jax.numpy as jnp, xla_gpu
kernel = xla_gpu.host_kernel({HOST!r} + f"// {{os.getpid()}}", "f", outputs={{"out": "x"}})
try:
    kernel(jnp.ones(2), n=1)
except Exception as error:
    assert len(str(error)) < 1 << 20
    print(error)
"""
COMPILERS = {
    "missing": (None, r"no C\+\+ compiler: .* cannot be started"),
    "fails at once": ("exit 1", r"no C\+\+ compiler: .* ended with exit code 1"),
    "killed": ("[ $1 = --version ] || kill -9 $$", "f does not compile:\n.* signal"),
    "hangs": ("[ $1 = --version ] || sleep 600", "did not end within 1 s"),
    "makes nothing": ("exit 0", "made no library"),
    "megabytes": ("[ $1 = --version ] || { yes | head -c 30000000 >&2; exit 1; }", "compile:\ny"),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_wrong_compilers(name, tmp_path):
    script, message = COMPILERS[name]
    compiler = tmp_path / "compiler"
    if script is not None:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
    env = {**os.environ, "CXX": str(compiler), "XLA_GPU_COMPILE_TIMEOUT": "1"}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
    )
    assert re.search(message, said.stdout), said.stdout[:300]
