"""The examples and the demo run, as a reader would run them."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

# The demo has a test of its own below, the server in test_serve_llama.py, what needs torch one in
# tests/torch.
ELSEWHERE = {"demo.py", "llama.py", "llama_engine.py", "serve_llama.py", "vllm_kernel.py"}
EXAMPLES = sorted((pathlib.Path(__file__).resolve().parents[2] / "examples" / "jax").glob("*.py"))


@pytest.mark.parametrize(
    "path", [p for p in EXAMPLES if p.name not in ELSEWHERE], ids=lambda path: path.name
)
def test_example(path):
    env = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8, 64)" in done.stdout


def test_demo(monkeypatch, capsys):
    """The demo's whole way with a small batch."""
    from xla_gpu.jax import demo

    small = dataclasses.replace(
        demo.CPU_BATCH, sequences=((20, 20), (1, 65), (5, 33)), q_heads=4, kv_heads=2, head_dim=32
    )
    monkeypatch.setattr(demo, "CPU_BATCH", small)
    monkeypatch.setattr(demo, "GPU_BATCH", small)
    assert demo.main() == 0
    said = capsys.readouterr().out
    for part in (
        'custom_call_target="xla_gpu_paged_attention"',
        "error against float64",
        "pure jnp gather",
        "the cache stayed in place",
        "ok after",
    ):
        assert part in said
