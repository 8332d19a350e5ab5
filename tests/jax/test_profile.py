"""xla_gpu.profile on the CPU: kernels and ops that JAX calls, counted and timed."""

import threading

import jax
import jax.numpy as jnp
import pytest
import xla_gpu
from xla_gpu.jax import simple_add

SLEEPER = """
#include <time.h>
void sleeper(const float* x, float* out, long microseconds) {
  timespec t = {0, microseconds * 1000};
  nanosleep(&t, nullptr);
  *out = *x;
}
"""


@pytest.fixture(scope="module")
def sleeper():
    return xla_gpu.host_kernel(SLEEPER, "sleeper", outputs={"out": "x"})


def test_times_are_those_of_each_kernel(sleeper):
    x = jnp.ones(1)
    call = jax.jit(lambda x, us: sleeper(x, microseconds=us), static_argnums=1)
    for us in (2000, 4000):
        call(x, us).block_until_ready()
    with xla_gpu.profile() as p:
        assert p.kernels == ()
        for us in (2000, 4000, 4000):
            call(x, us).block_until_ready()
        simple_add(x, x).block_until_ready()
    slow, add = p.kernels
    assert (slow.name, slow.platform, slow.calls, slow.timed) == ("sleeper", "Host", 3, 3)
    assert slow.key.startswith("sleeper@")
    assert 2000 <= slow.min_us <= slow.mean_us <= slow.max_us < slow.total_us
    assert slow.max_us >= 4000
    assert slow.mean_us == pytest.approx(slow.total_us / 3)
    assert (add.name, add.key, add.calls) == ("simple_add", "simple_add", 1)
    header, first, second = str(p).splitlines()
    assert header.split()[:3] == ["kernel", "platform", "calls"]
    assert first.split()[:3] == ["sleeper", "Host", "3"]
    assert second.split()[:3] == ["simple_add", "Host", "1"]
    assert len(header) == len(first) == len(second)


def test_threads_and_two_kernels_of_one_name(sleeper):
    other = xla_gpu.host_kernel(
        "void sleeper(const float* x, float* out) { *out = 2 * *x; }",
        "sleeper",
        outputs={"out": "x"},
    )
    x = jnp.ones(1)

    def work():
        for _ in range(5):
            sleeper(x, microseconds=100).block_until_ready()
            other(x).block_until_ready()

    threads = [threading.Thread(target=work) for _ in range(4)]
    with xla_gpu.profile() as p:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(k.name, k.calls, k.timed) for k in p.kernels] == [("sleeper", 20, 20)] * 2
    assert len({k.key for k in p.kernels}) == 2


def test_one_at_a_time_and_none_after_an_error(sleeper):
    x = jnp.ones(1)
    with xla_gpu.profile() as p, pytest.raises(xla_gpu.XlaGpuError, match="one at a time"):
        xla_gpu.profile().__enter__()
    assert p.kernels == ()
    with pytest.raises(ZeroDivisionError), xla_gpu.profile() as p:
        sleeper(x, microseconds=1).block_until_ready()
        raise ZeroDivisionError
    assert [k.calls for k in p.kernels] == [1]
    sleeper(x, microseconds=1).block_until_ready()
    with xla_gpu.profile() as p:
        pass
    assert p.kernels == ()
    assert len(str(p).splitlines()) == 1


def test_the_table_tells_of_what_is_not_timed():
    captured = xla_gpu.KernelTimes("k", "k@0", "CUDA", 3, 0, 0.0, 0.0, 0.0)
    assert captured.mean_us == 0
    p = xla_gpu.Profile()
    p.kernels = (captured,)
    assert str(p).splitlines()[1].split() == ["k", "CUDA", "3", "-", "-", "-", "-"]
    assert "not timed: 3 calls" in str(p)
