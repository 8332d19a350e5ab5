"""What one process finds out of one road: how soon, how fast, what the framework may do with it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from roads import Road

SMALL, LARGE, CHAIN = 8, 1 << 20, 100


def _us(call: Callable[[], Any], wait: Callable[[Any], Any], rounds: int = 15) -> float:
    """The least of the rounds' microseconds a call: of many calls, and one wait behind them."""
    calls, passed = 1, 0.0
    while passed < 0.02:  # seconds a round
        calls *= 2
        start = time.perf_counter()
        for _ in range(calls):
            out = call()
        wait(out)
        passed = time.perf_counter() - start
    least = passed
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            out = call()
        wait(out)
        least = min(least, time.perf_counter() - start)
    return 1e6 * least / calls


class _Jax:
    def __init__(self, road: Road) -> None:
        import jax
        import jax.numpy as jnp

        if (jax.default_backend() == "gpu") != (road.platform == "GPU"):
            raise RuntimeError(f"JAX has its arrays on {jax.default_backend()} here")
        self.jax, self.jnp, self.road = jax, jnp, road
        self.wait = jax.block_until_ready
        self.wait(jax.jit(lambda x: x + 1)(jnp.ones(SMALL)))  # the client exists

    def arrays(self, size: int) -> tuple[Any, Any]:
        return self.jnp.arange(float(size)) % 7, self.jnp.ones(size)

    def value(self, out: Any) -> Any:
        import numpy as np

        return np.asarray(out)

    def times(self, f: Callable[..., Any]) -> dict[str, float]:
        jax = self.jax

        @jax.jit
        def chain(x: Any, y: Any) -> Any:
            for _ in range(CHAIN):
                x = f(x, y)
                if not self.road.is_kernel:  # which XLA would make one of
                    x = jax.lax.optimization_barrier(x)
            return x

        small, large = self.arrays(SMALL), self.arrays(LARGE)
        jitted = jax.jit(f)
        return {
            "eager": _us(lambda: f(*small), self.wait),
            "jit": _us(lambda: jitted(*small), self.wait),
            "chain": _us(lambda: chain(*small), self.wait) / CHAIN,
            "chain, large": _us(lambda: chain(*large), self.wait) / CHAIN,
        }

    def probes(self, f: Callable[..., Any]) -> dict[str, Callable[[], str]]:
        jax, jnp = self.jax, self.jnp
        x, y = self.arrays(SMALL)

        def vmap() -> str:
            stack = jnp.stack([x, x + 1, x + 2])
            got = jax.jit(jax.vmap(f, (0, None)))(stack, y)
            assert (got == 2 * stack + 1).all(), "wrong values"
            return "yes"

        def gradient() -> str:
            assert (jax.grad(lambda x: f(x, y).sum())(x) == 2).all(), "wrong values"
            return "yes"

        def sharding() -> str:
            devices = jax.devices()[:2]
            if len(devices) < 2:
                return "not tried: one device"
            mesh = jax.sharding.Mesh(devices, ("i",))
            split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
            args = jax.device_put((x, y), split)
            compiled = jax.jit(f).lower(*args).compile()
            out = compiled(*args)
            assert (self.value(out) == self.value(2 * x + y)).all(), "wrong values"
            is_split = out.sharding.is_equivalent_to(split, 1)
            return "yes" if is_split and "all-gather" not in compiled.as_text() else "gathered"

        def export() -> str:
            from jax import export as exporting

            jitted = jax.jit(f)
            targets = set(re.findall(r"custom_call @([\w.$]+)", jitted.lower(x, y).as_text()))
            checks = [exporting.DisabledSafetyCheck.custom_call(name) for name in targets]
            program = exporting.export(jitted, disabled_checks=checks)(x, y).serialize()
            ours = "xla_gpu" in self.road.name
            with tempfile.NamedTemporaryFile() as file:
                file.write(program)
                file.flush()
                load = (
                    "import sys, jax.numpy as jnp\n"
                    f"from {'xla_gpu.jax' if ours else 'jax.export'} import deserialize\n"
                    "program = deserialize(bytearray(open(sys.argv[1], 'rb').read()))\n"
                    f"x, y = jnp.arange({SMALL}.0) % 7, jnp.ones({SMALL})\n"
                    "assert (program.call(x, y) == 2 * x + y).all()\n"
                )
                ran = subprocess.run([sys.executable, "-c", load, file.name], capture_output=True)
            return "yes" if ran.returncode == 0 else "without the kernel"

        return {"vmap": vmap, "gradient": gradient, "sharding": sharding, "export": export}


class _Torch:
    def __init__(self, road: Road) -> None:
        import torch

        self.torch = torch
        self.device = "cuda" if road.platform == "GPU" else "cpu"
        (torch.ones(SMALL, device=self.device) + 1).cpu()

    def wait(self, out: Any) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def arrays(self, size: int) -> tuple[Any, Any]:
        x = self.torch.arange(float(size), device=self.device) % 7
        return x, self.torch.ones(size, device=self.device)

    def value(self, out: Any) -> Any:
        return out.detach().cpu().numpy()

    def times(self, f: Callable[..., Any]) -> dict[str, float]:
        small = self.arrays(SMALL)
        times = {"eager": _us(lambda: f(*small), self.wait)}
        for name, (x, y) in {"chain": small, "chain, large": self.arrays(LARGE)}.items():

            def chain(x: Any = x, y: Any = y) -> Any:
                for _ in range(CHAIN):
                    x = f(x, y)
                return x

            run = chain
            if self.device == "cuda":  # a graph of the launches, which is what there is to win
                graph = self.torch.cuda.CUDAGraph()
                with self.torch.cuda.graph(graph):
                    chain()
                run = graph.replay
            times[name] = _us(run, self.wait) / CHAIN
        return times

    def probes(self, f: Callable[..., Any]) -> dict[str, Callable[[], str]]:
        torch = self.torch
        x, y = self.arrays(SMALL)

        def vmap() -> str:
            stack = torch.stack([x, x + 1, x + 2])
            got = torch.vmap(f, (0, None))(stack, y)
            assert (got == 2 * stack + 1).all(), "wrong values"
            return "yes"

        def gradient() -> str:
            given = x.clone().requires_grad_()
            f(given, y).sum().backward()
            assert (given.grad == 2).all(), "wrong values"
            return "yes"

        def export() -> str:
            class Module(torch.nn.Module):
                def forward(self, x: Any, y: Any) -> Any:
                    return f(x, y)

            got = torch.export.export(Module(), (x, y)).module()(x, y)
            assert (got == 2 * x + y).all(), "wrong values"
            return "yes"

        return {"vmap": vmap, "gradient": gradient, "export": export}


def try_road(road: Road, stage: str) -> dict[str, Any]:
    """What one process finds out. Times are ms, but for those of `times`."""
    framework = (_Jax if road.framework == "jax" else _Torch)(road)
    x, y = framework.arrays(LARGE)
    expected = framework.value(2 * x + y)
    start = time.perf_counter()
    for package in road.packages:
        importlib.import_module(package)
    imported = time.perf_counter()
    f = road.make()
    out = f(x, y)
    framework.wait(out)
    done = time.perf_counter()
    assert (framework.value(out) == expected).all(), "wrong values"
    found: dict[str, Any] = {
        "import": 1e3 * (imported - start),
        "first": 1e3 * (done - imported),
        "versions": {
            name: getattr(sys.modules.get(name), "__version__", "")
            for name in {road.framework, *(p.split(".")[0] for p in road.packages)}
        },
    }
    if stage == "times":
        found["us"] = framework.times(f)
    if stage == "probes":
        found["can"] = {}
        for name, probe in framework.probes(f).items():
            try:
                found["can"][name] = probe()
            except Exception as error:  # whatever a road says to it
                said = (str(error).strip().splitlines() or [""])[0]
                found["can"][name] = f"no: {type(error).__name__}: {said[:160]}"
    return found
