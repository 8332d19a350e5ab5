"""`vllm serve` as a user starts it, in a process of its own, and requests to it over HTTP."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator

from completions import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTENTIONS = ["xla_gpu", "jnp", "none"]  # ours, and those of tests/oracle/plain_attention.py
STEP = re.compile(r"jit_(step|run_model)")  # the step's program; a flax model's over sequences
GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
# XLA's: on a CPU programs that run for moments are not worth LLVM's passes.
QUICK = "" if GPUS else "--xla_backend_optimization_level=0"

OURS = """\
[vllm.platform_plugins]
xla_gpu = xla_gpu.vllm_xla:platform_plugin

[vllm.general_plugins]
xla_gpu = xla_gpu.vllm_xla:general_plugin
xla_gpu_cuda = xla_gpu.vllm_cuda:register
"""
OTHER_ATTENTION = """\
[vllm.general_plugins]
other_attention = plain_attention:plugin
"""


@functools.cache
def entry_points_folder(name: str, text: str) -> str:
    """A folder by which vLLM finds these entry points, as it would those of a package."""
    folder = tempfile.mkdtemp(prefix="xla-gpu-entry-points-")
    info = pathlib.Path(folder) / f"{name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(text)
    return folder


def environment(**more: str) -> dict[str, str]:
    """Offline, and with the package of this tree; OTHER_ATTENTION: see plain_attention.py."""
    folders = [str(ROOT / "python"), str(ROOT / "tests/oracle")]
    installed = importlib.metadata.entry_points(group="vllm.platform_plugins")
    if not any(point.name == "xla_gpu" for point in installed):
        folders.append(entry_points_folder("xla_gpu_source_tree", OURS))
    if "OTHER_ATTENTION" in more:
        folders.append(entry_points_folder("other_attention", OTHER_ATTENTION))
    if outer := os.environ.get("PYTHONPATH"):
        folders.append(outer)
    path = os.pathsep.join(folders)
    offline = dict(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    library = dict(XLA_GPU_LIBRARY=str(ROOT / "build/release/libxla_gpu.so"))
    # A pool for the test process's own JAX would be missing in the server's.
    gpu = dict(XLA_PYTHON_CLIENT_PREALLOCATE="false")
    return library | gpu | dict(os.environ) | offline | dict(PYTHONPATH=path) | more


def with_attention(name: str) -> dict[str, str]:
    """The variables of a process with one of ATTENTIONS."""
    return {} if name == "xla_gpu" else {"OTHER_ATTENTION": name}


def vllm_command() -> list[str]:
    """The `vllm` program of this Python, also where the package has no script (a copied one)."""
    script = pathlib.Path(sys.executable).parent / "vllm"
    return [str(script)] if script.exists() else [sys.executable, "-m", "vllm.entrypoints.cli.main"]


def run(
    *command: str | os.PathLike, seconds: float = 300, **env: str
) -> subprocess.CompletedProcess[str]:
    """A process that ends by itself, and what it printed."""
    return subprocess.run(
        command,
        env=environment(**env),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


class Server(Client):
    """A running `vllm serve`."""

    def __init__(self, model: pathlib.Path, folder: pathlib.Path, *options: str, **env: str):
        self.log_file = folder / "serve.log"
        self.dump = folder / "hlo"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        flags = f"--xla_dump_to={self.dump} --xla_dump_hlo_as_text {QUICK}"
        flags += f" {os.environ.get('XLA_FLAGS', '')}"
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), *options]
        self.started = time.monotonic()
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                [*vllm_command(), "serve", str(model), *arguments],
                env=environment(**{"XLA_FLAGS": flags} | env),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def device(self) -> str:
        """The device that the log names, of a server that is up."""
        lines = [line for line in self.log.splitlines() if "vLLM on XLA" in line]
        return lines[-1].split(":")[-1].strip()

    def wait(self, seconds: float = 300) -> None:
        """Returns when the server answers; AssertionError with its log if it does not."""
        while time.monotonic() - self.started < seconds:
            assert self.process.poll() is None, f"vllm serve ended:\n{self.log[-6000:]}"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
                return
            time.sleep(0.5)
        raise AssertionError(f"vllm serve does not answer:\n{self.log[-6000:]}")

    def stop(self) -> None:
        """Ends the server and its engine, which form one process group."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)

    def step_programs(self) -> list[str]:
        """The optimized HLO of the model's step, one text a size, and one for each promise.

        See step_program.py.
        """
        files = sorted(self.dump.glob("*after_optimizations.txt"))
        return [file.read_text() for file in files if STEP.search(file.name)]

    def metrics(self) -> dict[str, float]:
        """Prometheus' counters and gauges, summed over labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as page:
            text = page.read().decode()
        totals: dict[str, float] = {}
        for name, value in re.findall(r"^(vllm:\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            totals[name] = totals.get(name, 0) + float(value)
        return totals

    def memory(self) -> int:
        """Bytes resident in the server and its engine together."""
        pages = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid:  # the process group
                    pages += int((stat.parent / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def serve(model: pathlib.Path, folder: pathlib.Path, *options: str, **env: str) -> Iterator[Server]:
    """A server, waited for with wait(), stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(model, folder, *options, **env)
    try:
        yield server
    finally:
        server.stop()
