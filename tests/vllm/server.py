"""`vllm serve` as a user starts it, in a process of its own, and requests to it over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import json
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
from collections.abc import AsyncIterator, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTENTIONS = ["xla_gpu", "jnp", "none"]  # ours, and those of tests/oracle/plain_attention.py
STEP = re.compile(r"jit_(run_model|step_fun)")  # the step's program: flax models, torchax models


OURS = """\
[vllm.platform_plugins]
xla_gpu = xla_gpu.vllm_xla:platform_plugin

[vllm.general_plugins]
xla_gpu = xla_gpu.vllm_xla:general_plugin
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


class Server:
    """A running `vllm serve`."""

    def __init__(self, model: pathlib.Path, folder: pathlib.Path, *options: str, **env: str):
        self.log_file = folder / "serve.log"
        self.dump = folder / "hlo"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        flags = (
            f"--xla_dump_to={self.dump} --xla_dump_hlo_as_text {os.environ.get('XLA_FLAGS', '')}"
        )
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
        """The optimized HLO of the model's step, one text a size."""
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

    # ---- Requests ------------------------------------------------------------------------------

    async def post(self, body: Any, path: str = "/v1/completions") -> tuple[int, Any]:
        """The status and the answer, of a body that is text as it is."""
        text = body if isinstance(body, str) else json.dumps(body)
        async with self._open(text, path) as (reader, status, headers):
            if "content-length" in headers:
                answer = await reader.readexactly(int(headers["content-length"]))
            else:
                answer = b"".join([chunk async for chunk in _chunks(reader)])
        try:
            return status, json.loads(answer)
        except ValueError:
            return status, answer.decode(errors="replace")

    async def tokens(self, prompt: list[int], count: int, **more: Any) -> list[int]:
        """Greedy tokens; AssertionError with the server's words if it refuses."""
        status, answer = await self.post(greedy(prompt, count, **more))
        assert status == 200, answer
        return answer["choices"][0]["token_ids"]

    async def stream(self, prompt: list[int], count: int, **more: Any) -> AsyncIterator[list[int]]:
        """As `tokens`, in the pieces in which the server sends them."""
        body = json.dumps(greedy(prompt, count, stream=True, **more))
        async with self._open(body, "/v1/completions") as (reader, status, _):
            assert status == 200
            rest = b""
            async for chunk in _chunks(reader):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        assert "choices" in event, f"{event}\n{self.log[-6000:]}"
                        for choice in event["choices"]:
                            if choice.get("token_ids"):
                                yield choice["token_ids"]

    @contextlib.asynccontextmanager
    async def _open(self, text: str, path: str) -> AsyncIterator[tuple]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            body = text.encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            status = int((await reader.readline()).split()[1])
            headers = {}
            while line := (await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            yield reader, status, headers
        finally:
            writer.close()


def greedy(prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
    """The body of a request whose answer holds the numbers of `count` greedy tokens."""
    wanted = dict(max_tokens=count, temperature=0, ignore_eos=True, return_token_ids=True)
    return dict(prompt=prompt) | wanted | more


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).strip() or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readline()


@contextlib.contextmanager
def serve(model: pathlib.Path, folder: pathlib.Path, *options: str, **env: str) -> Iterator[Server]:
    """A server, waited for with wait(), stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(model, folder, *options, **env)
    try:
        yield server
    finally:
        server.stop()
