"""Tiny random Llama and Qwen3 checkpoints, what they compute in float64, and the example's server.

numpy alone: no framework is needed. tests/vllm holds the same server to transformers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from completions import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/jax"
VOCABULARY = 256
TIE = 1e-5  # logits that are nearer than this are one to float32

SIZES = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=VOCABULARY,
    hidden_size=256,  # with less the model repeats one token, whatever its attention computes
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    torch_dtype="float32",
    eos_token_id=1,
)
# Rotations of two turns and more in 64 tokens are kept, those of half a turn and less are slowed.
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=0.5,
    high_freq_factor=2.0,
    original_max_position_embeddings=64,
)
KINDS = {
    "llama": {},
    "llama3": {"rope_scaling": LLAMA3, "tie_word_embeddings": True, "files": 3},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 96},
}


def write(folder: pathlib.Path, files: int = 1, **config: Any) -> pathlib.Path:
    """Writes a random float32 checkpoint of SIZES and `config`, its tensors in so many files."""
    config = SIZES | config
    c = config
    rng = np.random.default_rng(0)
    q, kv = (c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    hidden, mlp = c["hidden_size"], c["intermediate_size"]
    of_layer = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if c["architectures"] == ["Qwen3ForCausalLM"]:
        of_layer |= {"self_attn.q_norm": (c["head_dim"],), "self_attn.k_norm": (c["head_dim"],)}
    shapes = {"model.embed_tokens": (c["vocab_size"], hidden), "model.norm": (hidden,)}
    for i in range(c["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in of_layer.items()}
    if not c["tie_word_embeddings"]:
        shapes["lm_head"] = (c["vocab_size"], hidden)
    tensors = {
        f"{name}.weight": (0.08 * rng.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"model-{part + 1:05}-of-{files:05}.safetensors" for part in range(files)]
    names = names if files > 1 else ["model.safetensors"]
    for part, name in enumerate(names):
        save_safetensors(folder / name, dict(list(tensors.items())[part::files]))
    if files > 1:
        places = {name: names[i % files] for i, name in enumerate(tensors)}
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def save_safetensors(file: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        place = [at, at + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": place}
        at += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in tensors.values())
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Reference:
    """The model of a checkpoint that `write` has written: whole sequences, no cache, float64."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors: dict[str, np.ndarray] = {}
        for file in folder.glob("*.safetensors"):
            data = file.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            for name, info in json.loads(data[8:start]).items():
                if name != "__metadata__":
                    begin, end = info["data_offsets"]
                    array = np.frombuffer(data[start + begin : start + end], np.float32)
                    self.tensors[name] = array.reshape(info["shape"]).astype(np.float64)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.tensors[f"{name}.weight"]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T

    def _frequency(self, i: int) -> float:
        """Of the i-th pair, in radians a token; llama3's scaling is told by wavelengths."""
        frequency = self.config["rope_theta"] ** (-2 * i / self.config["head_dim"])
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return frequency
        wavelength = 2 * math.pi / frequency
        context = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wavelength < context / high:
            return frequency
        if wavelength > context / low:
            return frequency / scaling["factor"]
        part = (context / wavelength - low) / (high - low)
        return (1 - part) * frequency / scaling["factor"] + part * frequency

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """[sequences, tokens, heads, head_dim]: pairs of the two halves as complex numbers."""
        half = self.config["head_dim"] // 2
        angles = np.outer(np.arange(x.shape[1]), [self._frequency(i) for i in range(half)])
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
        return np.concatenate([turned.real, turned.imag], -1)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """[sequences, tokens, vocabulary] of [sequences, tokens]."""
        c = self.config
        x = self.tensors["model.embed_tokens.weight"][ids]
        hidden = np.triu(np.full((ids.shape[1],) * 2, -np.inf), 1)
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            y = self._norm(x, f"{layer}.input_layernorm")
            q, k, v = (
                self._linear(y, f"{layer}.self_attn.{n}_proj").reshape(
                    *ids.shape, -1, c["head_dim"]
                )
                for n in "qkv"
            )
            if f"{layer}.self_attn.q_norm.weight" in self.tensors:
                q = self._norm(q, f"{layer}.self_attn.q_norm")
                k = self._norm(k, f"{layer}.self_attn.k_norm")
            group = q.shape[2] // k.shape[2]
            q, k, v = self._rotate(q), self._rotate(k).repeat(group, 2), v.repeat(group, 2)
            scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(c["head_dim"]) + hidden
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out = np.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*ids.shape, -1)
            x = x + self._linear(out, f"{layer}.self_attn.o_proj")
            y = self._norm(x, f"{layer}.post_attention_layernorm")
            gate = self._linear(y, f"{layer}.mlp.gate_proj")
            gated = gate / (1 + np.exp(-gate)) * self._linear(y, f"{layer}.mlp.up_proj")
            x = x + self._linear(gated, f"{layer}.mlp.down_proj")
        head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
        return self._linear(self._norm(x, "model.norm"), head)

    def wrong(self, requests: list[Request], answers: list[list[int]]) -> list[str]:
        """A line for each (prompt, number of tokens) whose answer is not the greedy one."""
        lines = []
        for i, ((prompt, count), tokens) in enumerate(zip(requests, answers, strict=True)):
            if len(tokens) != count:
                lines.append(f"request {i}: {len(tokens)} tokens, {count} were asked for")
                continue
            logits = self.logits(np.array([prompt + tokens[:-1]]))[0, len(prompt) - 1 :]
            less = logits.max(-1) - logits[np.arange(count), tokens]
            if (less > TIE).any():
                at = np.argmax(less > TIE)
                lines.append(f"request {i}: token {at} of {count} after {len(prompt)} differs")
        return lines


Request = tuple[list[int], int]


def random_requests(number: int, seed: int, longest: int, most: int) -> list[Request]:
    """Prompts of up to `longest` tokens, for up to `most` tokens each."""
    choose = random.Random(seed)
    return [
        (
            choose.choices(range(3, VOCABULARY), k=choose.randint(1, longest)),
            choose.randint(1, most),
        )
        for _ in range(number)
    ]


class ExampleServer(Client):
    """A running examples/jax/serve_llama.py."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, *options: str) -> None:
        self._log = log
        path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        exact = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # GPUs round float32 products otherwise
        with log.open("w") as opened:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLES / "serve_llama.py", model, "--port", "0", *options],
                env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
                | dict(os.environ)
                | {"PYTHONPATH": path}
                | exact,
                stdout=opened,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self, seconds: float = 120) -> None:
        """Returns when the server answers; AssertionError with its log if it does not."""
        end = time.monotonic() + seconds
        while not (found := re.search(r" on http://[\d.]+:(\d+)", self.log)):
            assert self.process.poll() is None, f"the server ended:\n{self.log[-6000:]}"
            assert time.monotonic() < end, f"the server does not answer:\n{self.log[-6000:]}"
            time.sleep(0.05)
        self.port = int(found[1])


@contextlib.contextmanager
def serve(model: pathlib.Path, log: pathlib.Path, *options: str) -> Iterator[ExampleServer]:
    """A server that answers, stopped at the end."""
    server = ExampleServer(model, log, *options)
    try:
        server.wait()
        yield server
    finally:
        server.process.terminate()
        try:
            server.process.wait(20)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
