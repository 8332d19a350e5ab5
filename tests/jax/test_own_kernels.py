"""Kernels of the user's in JAX on the CPU: C++ source and C functions as custom calls."""

import ctypes
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_gpu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xla_gpu.jax import deserialize, export_checks

SOURCE = """
#include <cstdint>
#include <cmath>
extern "C" void saxpy(const float* x, const float* y, float* out, float alpha, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = alpha * x[i] + y[i];
}
template <typename T>
void scale(T* x, double by, long n) {
  for (long i = 0; i < n; ++i) x[i] = T(x[i] * by);
}
namespace norms {
void rms(const float* x, const float* weight, float* out, float* scales, long rows, long cols) {
  for (long r = 0; r < rows; ++r) {
    float sum = 0;
    for (long c = 0; c < cols; ++c) sum += x[r * cols + c] * x[r * cols + c];
    scales[r] = 1 / std::sqrt(sum / cols);
    for (long c = 0; c < cols; ++c) {
      out[r * cols + c] = x[r * cols + c] * scales[r] * (weight == nullptr ? 1 : weight[c]);
    }
  }
}
}
void fail(const float* x, float* out) { throw 1; }
int code(const float* x, float* out, int value) { return value; }
"""


def size(x):
    return x.size


def saxpy(**change):
    said = {"outputs": {"out": "x"}, "scalars": {"n": size}} | change
    return xla_gpu.host_kernel(SOURCE, "saxpy", **said)


@pytest.fixture(scope="module")
def kernel():
    return saxpy()


X, Y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))


def test_a_call_is_one_custom_call_of_the_kernels_name(kernel):
    call = jax.jit(lambda x, y: kernel(x, y, alpha=2.0))
    np.testing.assert_array_equal(call(X, Y), 2 * X + Y)
    text = call.lower(X, Y).compile().as_text()
    assert 'custom_call_target="saxpy"' in text
    assert text.count(" custom-call(") == 1


def test_eager_positional_and_by_name(kernel):
    for result in (kernel(X, Y, alpha=2), kernel(X, y=Y, alpha=2.0), kernel(alpha=2, y=Y, x=X)):
        np.testing.assert_array_equal(result, 2 * X + Y)
    np.testing.assert_array_equal(kernel(np.asarray(X), np.asarray(Y), alpha=2), 2 * X + Y)


def test_shapes_and_scalars_change_from_call_to_call(kernel):
    for n in (1, 0, 17):
        x = jnp.arange(float(n))
        np.testing.assert_array_equal(kernel(x, x, alpha=float(n)), (n + 1) * x)


def test_kernels_of_one_text_are_compiled_once(tmp_path, monkeypatch):
    compiler, runs = tmp_path / "compiler", tmp_path / "runs"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo run >> {runs};; esac\nexec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", "")
    names = [f"times_{i}" for i in range(20)]
    text = "".join(
        f"void {name}(const float* x, float* out) {{ *out = {i} * *x; }}\n"
        for i, name in enumerate(names)
    )
    for i, entry in enumerate(names):
        for name in (entry, f"other_{i}"):
            kernel = xla_gpu.host_kernel(text, entry, outputs={"out": "x"}, name=name)
            assert kernel(jnp.ones(())) == i
    assert runs.read_text().split() == ["run"]


def test_a_kernel_made_again_sees_the_file_that_it_includes(tmp_path):
    header, source = tmp_path / "times.h", tmp_path / "times.cc"
    source.write_text('#include "times.h"\nvoid f(const float* x, float* out) { *out = N * *x; }')
    for n in (2, 3):
        header.write_text(f"#define N {n}\n")
        assert xla_gpu.host_kernel(source, "f", outputs={"out": "x"})(jnp.ones(())) == n


def test_macros_that_are_flags():
    kernel = xla_gpu.cuda_kernel(
        "__global__ void f(float* x) {}", "f", grid=1, block=1, in_place=["x"],
        defines={"FAST": True, "SLOW": False, "N": 3, "E": 0.5, "BARE": None},
    )  # fmt: skip
    options = kernel._definition["implementations"]["CUDA"]["options"]
    assert options == ["-DFAST=1", "-DSLOW=0", "-DN=3", "-DE=0.5", "-DBARE"]


@pytest.mark.parametrize("alpha", [np.inf, -np.inf, np.nan, 3.4028235e38, 1e-300])
def test_floats_that_a_scalar_may_be(kernel, alpha):
    np.testing.assert_array_equal(kernel(Y, Y, alpha=alpha), np.float32(alpha) + Y)


@pytest.mark.parametrize("zero", [0.0, np.float32(0), np.float64(0)], ids=["py", "f32", "f64"])
def test_minus_zero_is_another_scalar_than_zero(kernel, zero):
    x = jnp.ones(1)

    def inverses(x):  # by an addition of -0, which alone keeps the sign
        return [1 / kernel(x, -0.0 * x, alpha=alpha) for alpha in (zero, -zero)]

    with jax.disable_jit():
        np.testing.assert_array_equal(inverses(x), [[np.inf], [-np.inf]])
    np.testing.assert_array_equal(inverses(x), [[np.inf], [-np.inf]])
    np.testing.assert_array_equal(jax.jit(inverses)(x), [[np.inf], [-np.inf]])  # in one program


def test_defaults():
    kernel = saxpy(scalars={"alpha": 3.0, "n": size}, name="saxpy_default")
    np.testing.assert_array_equal(kernel(X, Y), 3 * X + Y)
    assert repr(kernel) == "<xla_gpu kernel saxpy_default(x, y, *, alpha=3.0)>"


@pytest.mark.parametrize(
    "dtype, ctype", [("float32", "float"), ("int32", "int"), ("int8", "signed char")]
)
def test_a_template_updates_in_place(dtype, ctype):
    kernel = xla_gpu.host_kernel(
        SOURCE, f"scale<{ctype}>", in_place=["x"], scalars={"n": size}, name=f"scale_{dtype}"
    )
    x = jnp.arange(5).astype(dtype)
    np.testing.assert_array_equal(kernel(x, by=2.0), 2 * x)
    np.testing.assert_array_equal(x, np.arange(5))  # what is used again is copied first
    donated = jax.jit(lambda x: kernel(x, by=3.0), donate_argnums=0)
    np.testing.assert_array_equal(donated(x + 0), 3 * x)


def test_arguments_choose_an_instance():
    kernel = xla_gpu.host_kernel(
        SOURCE,
        lambda x: f"scale<{'float' if x.dtype == 'f32' else 'signed char'}>",
        name="scale",
        in_place=["x"],
        scalars={"n": size},
    )
    for dtype in ("float32", "int8"):
        x = jnp.arange(5).astype(dtype)
        np.testing.assert_array_equal(kernel(x, by=2.0), 2 * x)


def cuda_scale(host, entry="scale<float>"):
    text = "template <typename T> __global__ void scale(T* x, double by, long n) {}"
    return xla_gpu.cuda_kernel(
        text,
        entry,
        name="scale",
        grid=1,
        block=1,
        in_place=["x"],
        scalars={"n": size},
        host=host,
    )


def test_the_host_twin_is_source_of_the_same_entry():
    x = jnp.arange(5.0)
    np.testing.assert_array_equal(cuda_scale(SOURCE)(x, by=2.0), 2 * x)


def test_the_host_twin_has_an_instance_of_its_own():
    def entry(x):
        return f"scale<{'float' if x.dtype == 'f32' else 'int'}>"

    twin = xla_gpu.host_kernel(SOURCE, entry, name="scale", in_place=["x"], scalars={"n": size})
    for kernel in (cuda_scale(twin, entry), cuda_scale(twin)):
        for dtype in ("float32", "int32"):
            x = jnp.arange(5).astype(dtype)
            np.testing.assert_array_equal(kernel(x, by=2.0), 2 * x)


def rms(**change):
    return xla_gpu.host_kernel(
        SOURCE,
        "norms::rms",
        outputs={"out": "x", "scales": lambda x: ((x.shape[0],), "f32")},
        scalars={"rows": lambda x: x.shape[0], "cols": lambda x: x.shape[1]},
        arguments=["x", {"name": "weight", "optional": True}],
        **change,
    )


def test_optional_arguments_and_several_results():
    kernel = rms()
    out, scales = kernel(X)
    expected = X * jax.lax.rsqrt(jnp.mean(X * X, 1, keepdims=True))
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert scales.shape == (2,)
    out, _ = kernel(X, weight=jnp.arange(3.0))
    np.testing.assert_allclose(out, expected * jnp.arange(3.0), rtol=1e-6)


def test_bools_are_bools_in_and_outside_of_jit():
    source = "void count(const bool* x, int* out, long n) { while (n--) *out += x[n]; }"
    outputs = {"out": ((), "i32")}
    count = xla_gpu.host_kernel(source.replace("{", "{ *out = 0;", 1), "count", outputs=outputs)
    assert count(np.array([True, False, True]), n=3) == 2
    assert count([True, False, True], n=3) == 2
    assert count(True, n=1) == jax.jit(lambda x: count(x, n=1))(True) == 1


def test_scan_remat_and_a_loop(kernel):
    def body(carry, _):
        return kernel(carry, Y, alpha=1.0), None

    looped, _ = jax.jit(lambda x: jax.lax.scan(body, x, None, length=5))(X)
    np.testing.assert_array_equal(looped, X + 5)
    again = jax.jit(jax.checkpoint(lambda x: kernel(x, Y, alpha=1.0)))
    np.testing.assert_array_equal(again(X), X + 1)


@pytest.mark.parametrize("method", ["sequential", "broadcast_all"])
def test_vmap(method):
    kernel = saxpy(vmap=method, name=f"saxpy_{method}")
    x = jnp.arange(12.0).reshape(4, 3)
    mapped = jax.vmap(lambda x, y: kernel(x, y, alpha=2.0), in_axes=(0, None))
    np.testing.assert_array_equal(mapped(x, jnp.ones(3)), 2 * x + 1)
    mapped = jax.jit(jax.vmap(lambda x, y: kernel(x, y, alpha=2.0), in_axes=(1, 1), out_axes=1))
    np.testing.assert_array_equal(mapped(x, x), 3 * x)


def test_vmap_that_gives_first_dimensions_of_1():
    seen = []

    def rows(x):
        seen.append(x.shape)
        return x.size

    kernel = saxpy(vmap="expand_dims", name="saxpy_expand", scalars={"n": rows})
    jax.vmap(lambda x: kernel(x, x, alpha=2.0))(jnp.ones((4, 3)))
    assert seen[-1] == (4, 3)


def test_a_gradient():
    kernel = saxpy(
        name="saxpy_gradient",
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
    )
    gradients = jax.jit(jax.grad(lambda x, y: kernel(x, y, alpha=2.0).sum(), (0, 1)))(X, Y)
    np.testing.assert_array_equal(gradients[0], jnp.full((2, 3), 2.0))
    np.testing.assert_array_equal(gradients[1], Y)


def test_two_kernels_of_one_name_are_both_right():
    texts = [f"void twin(const float* x, float* out) {{ *out = *x + {i}; }}" for i in (1, 2)]
    first, second = (xla_gpu.host_kernel(t, "twin", outputs={"out": "x"}) for t in texts)
    x = jnp.ones(1)
    both = jax.jit(lambda x: (first(x), second(x)))(x)
    assert [float(r[0]) for r in both] == [2, 3]


def test_kernels_of_equal_definitions_have_rules_of_their_own():
    shapes = []

    def rows(x):
        shapes.append(x.shape)
        return x.size

    kernels = {
        vmap: saxpy(vmap=vmap, name="twins", scalars={"n": rows})
        for vmap in (None, "sequential", "broadcast_all")
    }
    x = jnp.arange(12.0).reshape(4, 3)
    seen = {}
    for kernel in kernels.values():
        kernel(x[0], x[0], alpha=1.0)
    for vmap, kernel in kernels.items():
        mapped = jax.vmap(lambda x, kernel=kernel: kernel(x, x, alpha=2.0))
        shapes.clear()
        if vmap is None:
            with pytest.raises(NotImplementedError, match="twins: vmap is not supported"):
                mapped(x)
        else:
            np.testing.assert_array_equal(mapped(x), 3 * x)
            seen[vmap] = shapes[-1]
    assert seen == {"sequential": (3,), "broadcast_all": (4, 3)}


def test_a_ctypes_function_and_a_symbol(tmp_path):
    library = tmp_path / "libadd.so"
    source = tmp_path / "add.c"
    source.write_text(
        "void add_one(const float* x, float* out, int n)"
        "{ for (int i = 0; i < n; ++i) out[i] = x[i] + 1; }"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    said = {
        "arguments": [{"name": "x", "dtypes": ["f32"]}],
        "outputs": {"out": "x"},
        "scalars": {"n": ("i32", size)},
    }
    for function in (f"{library}:add_one", (library, "add_one"), ctypes.CDLL(library).add_one):
        kernel = xla_gpu.host_kernel(function, **said)
        np.testing.assert_array_equal(jax.jit(kernel)(X), X + 1)


def test_an_exported_program_loads_in_a_process_that_knows_no_kernel(kernel, tmp_path):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    exported = export.export(
        jax.jit(lambda x, y: kernel(x, y, alpha=0.5)), disabled_checks=export_checks()
    )(X, Y)
    file = tmp_path / "program"
    file.write_bytes(exported.serialize())
    np.testing.assert_array_equal(deserialize(file.read_bytes()).call(X, Y), X / 2 + Y)
    program = (
        "import sys, numpy as np, xla_gpu.jax\n"
        "x = np.arange(6, dtype=np.float32).reshape(2, 3)\n"
        "loaded = xla_gpu.jax.deserialize(open(sys.argv[1], 'rb').read())\n"
        "np.testing.assert_array_equal(loaded.call(x, x * 0 + 1), x / 2 + 1)\n"
    )
    subprocess.run([sys.executable, "-c", program, file], check=True, env=os.environ)


def test_a_program_with_a_function_of_this_process_is_not_exported(tmp_path):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda x, out: None)
    kernel = xla_gpu.host_kernel(function, arguments=["x"], outputs={"out": "x"}, name="local")
    with pytest.raises(ValueError, match="local: its Host code is a function of this process"):
        export.export(jax.jit(kernel), disabled_checks=export_checks())(X)


# ---- Random signatures -------------------------------------------------------------------------

C_TYPES = {
    "float32": "float", "int32": "int32_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
    "int16": "int16_t", "uint16": "uint16_t", "uint32": "uint32_t",
}  # fmt: skip
SCALARS = {"float": st.floats(-100, 100, width=32, allow_subnormal=False),  # XLA flushes them
           "double": st.floats(-1e9, 1e9, allow_subnormal=False),
           "int32_t": st.integers(-(2**31), 2**31 - 1), "int64_t": st.integers(-(2**63), 2**63 - 1),
           "uint8_t": st.integers(0, 255), "int16_t": st.integers(-(2**15), 2**15 - 1),
           "bool": st.booleans()}  # fmt: skip


x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


ROLES = ("read", "in place", "given", "absent")  # the last two: of optional ones


@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_signature_is_called_as_it_is_declared(data):
    """The kernel tells what came, so that nothing may come in another's place."""
    kinds = data.draw(
        st.lists(st.tuples(st.sampled_from(sorted(C_TYPES)), st.sampled_from(ROLES)), max_size=8)
    )
    kinds.insert(0, (data.draw(st.sampled_from(sorted(C_TYPES))), "read"))
    scalars = data.draw(st.lists(st.sampled_from(sorted(SCALARS)), max_size=12))
    given, declared, lines = {}, {"out": "double* out"}, []
    for i, (dtype, role) in enumerate(kinds):
        shape = data.draw(st.lists(st.integers(1, 3), max_size=3))
        # Told apart from all others, as far as the type allows.
        given[f"a{i}"] = (np.arange(np.prod(shape, dtype=int)) + 10 * i + 1).reshape(shape)
        if dtype == "bool":
            given[f"a{i}"] = given[f"a{i}"] * data.draw(st.integers(0, 1))
        given[f"a{i}"] = given[f"a{i}"].astype(dtype)
        last = given[f"a{i}"].size - 1
        const = "" if role == "in place" else "const "
        declared[f"a{i}"] = f"{const}{C_TYPES[dtype]}* a{i}"
        lines.append(f"out[{2 * i}] = a{i} == nullptr ? -1 : double(a{i}[0]);")
        lines.append(f"out[{2 * i + 1}] = a{i} == nullptr ? -1 : double(a{i}[{last}]);")
        if role == "in place":
            lines.append(f"a{i}[{last}] = a{i}[0];")
    declared["copy"] = f"{C_TYPES[kinds[0][0]]}* copy"
    lines.append(f"for (int i = 0; i < {given['a0'].size}; ++i) copy[i] = a0[i];")
    declared |= {f"s{i}": f"{t} s{i}" for i, t in enumerate(scalars)}
    lines += [f"out[{2 * len(kinds) + i}] = double(s{i});" for i in range(len(scalars))]
    order = data.draw(st.permutations(list(declared)))
    source = f"""#include <cstdint>
        void f({", ".join(declared[n] for n in order)}) {{ {" ".join(lines)} }}"""
    optional = [f"a{i}" for i, (_, role) in enumerate(kinds) if role in ("given", "absent")]
    in_place = [f"a{i}" for i, (_, role) in enumerate(kinds) if role == "in place"]
    kernel = xla_gpu.host_kernel(
        source,
        "f",
        arguments=[
            *(n for n in given if n not in optional),
            *({"name": n, "optional": True} for n in optional),
        ],
        outputs={"out": ((2 * len(kinds) + len(scalars),), "float64"), "copy": "a0"},
        in_place=in_place,
        options=["-O0"],
    )
    came = {f"a{i}": given[f"a{i}"] for i, (_, role) in enumerate(kinds) if role != "absent"}
    numbers = {f"s{i}": data.draw(SCALARS[t]) for i, t in enumerate(scalars)}
    with x64(True):
        out, copy, *updated = jax.jit(lambda came: kernel(**came, **numbers))(came)
        out = np.asarray(out)
    expected = []
    for name, array in given.items():
        expected += [array.flat[0], array.flat[-1]] if name in came else [-1, -1]
    expected += [np.float64(number) for number in numbers.values()]
    np.testing.assert_array_equal(out, np.asarray(expected, np.float64))
    np.testing.assert_array_equal(copy, given["a0"])
    for name, new in zip(in_place, updated, strict=True):
        want = given[name].copy()
        want.flat[-1] = want.flat[0]
        assert new.dtype == want.dtype
        np.testing.assert_array_equal(new, want)
