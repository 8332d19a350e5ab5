"""Wrong uses of kernels: each raises an error that names what was wrong, and what is allowed."""

import copy
import functools
import os
import pathlib
import pickle
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
    "host": (cuda(host="source"), "host is str; it must be an xla_gpu.host_kernel"),
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
        "f: n is 1099511627776, which its type i32 does not hold",
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
        r"f\.cc:1:\d+: error:",
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
