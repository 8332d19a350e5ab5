"""vLLM on XLA in one program: a random checkpoint made on the spot, a server, questions over HTTP.

    python examples/vllm_xla/serve_tiny.py

No download. The checkpoint is a Llama of two layers with 256 made-up words, so the answers are
nonsense; that they are the model's own is shown beside transformers' tokens.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 256


def make_checkpoint(folder: str) -> LlamaForCausalLM:
    """A random Llama and a tokenizer of the words t0 to t255, as files that vLLM loads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=512,
        initializer_range=0.08,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(WORDS)}, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="t0", eos_token="t1", pad_token="t2"
    ).save_pretrained(folder)
    return model


def ask(url: str, **question: object) -> urllib.request.Request:
    """A completion request of the OpenAI API."""
    body = json.dumps({"temperature": 0, "ignore_eos": True, **question}).encode()
    return urllib.request.Request(
        f"{url}/v1/completions", body, {"Content-Type": "application/json"}
    )


def main(folder: str) -> None:
    model = make_checkpoint(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"

    # Plain vLLM: the plugin is found by its entry point.
    script = pathlib.Path(sys.executable).parent / "vllm"
    vllm = [str(script)] if script.exists() else [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    command = [*vllm, "serve", folder, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--max-num-batched-tokens", "64"]
    command += ["--max-num-seqs", "8", "--num-gpu-blocks-override", "128"]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    exact = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # GPUs round float32 products otherwise
    log_file = pathlib.Path(folder) / "serve.log"
    with log_file.open("w") as log:
        server = subprocess.Popen(
            command,
            env={**os.environ, **offline, **exact},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health")
                break
            except urllib.error.URLError:
                if server.poll() is not None:
                    sys.exit(log_file.read_text()[-4000:])
                time.sleep(0.5)
        print(next(line for line in log_file.read_text().splitlines() if "vLLM on XLA" in line))

        prompt = [5, 9, 200, 31, 77]
        question = ask(url, prompt=prompt, max_tokens=16, return_token_ids=True)
        with urllib.request.urlopen(question) as answer:
            tokens = json.load(answer)["choices"][0]["token_ids"]
        own = model.generate(
            torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None
        )[0, len(prompt) :].tolist()
        print("vLLM        ", *tokens)
        print("transformers", *own)

        print("streamed    ", end="")
        with urllib.request.urlopen(ask(url, prompt="t8 t120 t3", max_tokens=16, stream=True)) as s:
            for line in s:
                if line.startswith(b"data: {"):
                    print(json.loads(line[6:])["choices"][0]["text"], end="", flush=True)
        print()
        assert tokens == own, "not transformers' tokens"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tiny-llama-", ignore_cleanup_errors=True) as folder:
        main(folder)
