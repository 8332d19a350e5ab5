"""What a host process may do to the library: fork, run out of memory, run out of threads."""

import os
import pathlib
import subprocess
import sys

import pytest

FORK_PROGRAM = pathlib.Path(__file__).with_name("fork_program.py")

# Ops on as much memory as a limit leaves; each limit in a process of its own.
LOW_MEMORY = """
import resource, sys
import numpy as np
from xla_gpu import _ops
from xla_gpu._errors import XlaGpuError

def ref(array):
    return _ops.TensorRef(_ops.spec_of(array), array.ctypes.data)

# Partial results of so many sequences take some 34 MB.
seqs = 512
args = [np.ones((seqs, 128, 128), np.float32), np.ones((1, 32, 64, 128), np.float32),
        np.full(seqs, 32, np.int32), np.zeros((seqs, 1), np.int32),
        np.arange(seqs + 1, dtype=np.int32), np.array([seqs], np.int32)]
out = np.zeros((seqs, 128, 128), np.float32)
_ops.infer("simple_add", "Host", [_ops.TensorSpec("f32", (1,))] * 2, {})  # the library is loaded
pages_used = int(open("/proc/self/statm").read().split()[0])
limit = pages_used * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
error = ""
try:
    _ops.run("paged_attention", "Host", [ref(a) for a in args], [ref(out)], {"scale": 1.0})
except XlaGpuError as e:
    error = str(e)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert "out of memory" in error if error else np.allclose(out, 1), error
print("refused" if error else "ran")
"""

# Python functions in calls that run when the process ends: XLA's threads stay out of them.
LEAVES = """
import ctypes, sys, time
import jax, jax.numpy as jnp, numpy as np, xla_gpu
from jax.sharding import NamedSharding, PartitionSpec

def add_one(x, out, n):
    time.sleep(0.01)
    for i in range(n):
        out[i] = x[i] + 1

if sys.argv[1] == "ctypes":
    pointer = ctypes.POINTER(ctypes.c_float)
    function = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_int64)(add_one)
    options = dict(parameters=["x", "out", {"elements_of": "x", "type": "i64"}])
else:
    import tvm_ffi

    function, options = tvm_ffi.convert(
        lambda x, out: add_one(*(np.from_dlpack(a).ravel() for a in (x, out)), x.shape[0] * 3)
    ), {}
kernel = xla_gpu.external_kernel(
    function, name="add_one", arguments=["x"], outputs={"out": "x"}, platform="Host",
    sharding="i j -> i j", **options
)
mesh = jax.make_mesh((2,), ("x",))
x = jax.device_put(jnp.zeros((8, 3)), NamedSharding(mesh, PartitionSpec("x")))
step = jax.jit(kernel)
np.testing.assert_array_equal(step(x), 1)
results = [step(x) for _ in range(30)]
print("leaves")  # while calls run
"""


def run(*command: str) -> str:
    """The program's output; fails if it fails."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), JAX_PLATFORMS="cpu")
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout.strip()


def test_children_forked_while_threads_run_ops_run_them_too():
    assert int(run(str(FORK_PROGRAM), "3")) > 10


def test_too_little_memory_or_too_few_threads_are_an_error_or_enough():
    megabytes = [0, 1, 4, 9, 16, 24, 48, 256]
    outcomes = [run("-c", LOW_MEMORY, str(mb << 20)) for mb in megabytes]
    assert outcomes[-1] == "ran"
    assert "refused" in outcomes


@pytest.mark.parametrize("maker", ["ctypes", "tvm_ffi"])
def test_a_process_leaves_while_calls_of_python_functions_run(maker):
    if maker == "tvm_ffi":
        pytest.importorskip("tvm_ffi")
    assert run("-c", LEAVES, maker) == "leaves"
