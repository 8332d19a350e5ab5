"""Tiny random checkpoints, made on the spot, and what transformers itself generates with them."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from asked import adjusted
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = 256
FIRST_WORD = 3  # 0, 1, 2 begin, end and pad

# Logits that are nearer than this, of the deviation of a row's, are one to float32: the order of
# its sums decides which is greater. One token in some hundred thousand.
TIE = 8e-6

# hidden_size 256: with less, initializer_range 0.08 gives a model that repeats one token, whatever
# its attention computes.
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=512,
    initializer_range=0.08,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
)
KINDS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "llama3": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"num_hidden_layers": 3}),
    "llama64": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"head_dim": 64}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {}),
    "qwen3tied": (
        transformers.Qwen3Config,
        transformers.Qwen3ForCausalLM,
        {"tie_word_embeddings": True},
    ),
    "mistral": (
        transformers.MistralConfig,
        transformers.MistralForCausalLM,
        {"sliding_window": 24},
    ),
    # Windows in all layers but each sixth; norms of queries and keys; scaled embeddings.
    "gemma3": (
        transformers.Gemma3TextConfig,
        transformers.Gemma3ForCausalLM,
        {"sliding_window": 24, "query_pre_attn_scalar": 128, "num_hidden_layers": 6},
    ),
    # Soft caps of the attention's logits and the model's; windows in every other layer.
    "gemma2": (
        transformers.Gemma2Config,
        transformers.Gemma2ForCausalLM,
        {
            "sliding_window": 24,
            "query_pre_attn_scalar": 128,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
    ),
    # Two head dims, windows but in the sixth layer, experts beside a dense layer, with scales.
    "gemma4": (
        transformers.Gemma4TextConfig,
        transformers.Gemma4ForCausalLM,
        {
            "sliding_window": 24,
            "num_hidden_layers": 6,
            "head_dim": 256,
            "global_head_dim": 512,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 32,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 128,
        },
    ),
    # Mixtures of experts. Llama 4's weights its experts' input.
    "llama4": (
        transformers.Llama4TextConfig,
        transformers.Llama4ForCausalLM,
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 256,
            "num_hidden_layers": 4,
        },
    ),
    # A shared expert, sigmoids, scaled; a token's experts are of two groups of four.
    "glm4moe": (
        transformers.Glm4MoeConfig,
        transformers.Glm4MoeForCausalLM,
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "qwen3moe": (
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    ),
    "mixtral": (
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    # With sinks, windows in every other layer, and biases.
    "gptoss": (
        transformers.GptOssConfig,
        transformers.GptOssForCausalLM,
        {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64, "sliding_window": 24},
    ),
}
# What CI leaves out: `tests/gpu/vllm_suite.py http`.
WIDE = {"hidden_size": 512}  # where head_dim is hidden_size / num_attention_heads
FOUR_LAYERS = {"num_hidden_layers": 4}  # where each fourth differs
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.1,
}
FAMILIES = {
    "gemma1": (
        transformers.GemmaConfig,
        transformers.GemmaForCausalLM,
        {"tie_word_embeddings": True},
    ),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM, WIDE),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM, WIDE),
    "olmo3": (
        transformers.Olmo3Config,
        transformers.Olmo3ForCausalLM,
        WIDE | FOUR_LAYERS | {"sliding_window": 24},
    ),
    "glm4": (transformers.Glm4Config, transformers.Glm4ForCausalLM, {}),
    "granite": (transformers.GraniteConfig, transformers.GraniteForCausalLM, WIDE | MULTIPLIERS),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM, WIDE | FOUR_LAYERS),
    "exaone4": (
        transformers.Exaone4Config,
        transformers.Exaone4ForCausalLM,
        WIDE | FOUR_LAYERS | {"sliding_window": 24},
    ),
    "seed_oss": (transformers.SeedOssConfig, transformers.SeedOssForCausalLM, {}),
    "ernie4_5": (transformers.Ernie4_5Config, transformers.Ernie4_5ForCausalLM, {}),
    "starcoder2": (transformers.Starcoder2Config, transformers.Starcoder2ForCausalLM, WIDE),
    "stablelm": (transformers.StableLmConfig, transformers.StableLmForCausalLM, WIDE),
    "opt": (
        transformers.OPTConfig,
        transformers.OPTForCausalLM,
        WIDE | {"ffn_dim": 512, "word_embed_proj_dim": 512},
    ),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, WIDE),
    "olmoe": (
        transformers.OlmoeConfig,
        transformers.OlmoeForCausalLM,
        WIDE | {"num_experts": 8, "num_experts_per_tok": 2},
    ),
    "granitemoe": (
        transformers.GraniteMoeConfig,
        transformers.GraniteMoeForCausalLM,
        WIDE | MULTIPLIERS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen2moe": (
        transformers.Qwen2MoeConfig,
        transformers.Qwen2MoeForCausalLM,
        WIDE
        | {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
        },
    ),
}


def make(kind: str, folder: pathlib.Path, **sizes: int) -> pathlib.Path:
    """Writes a random checkpoint of the kind, float32, with a tokenizer of the words t0, t1, ..."""
    config, model, more = (KINDS | FAMILIES)[kind]
    sizes = SIZES | more | sizes
    torch.manual_seed(0)
    made = model(config(**sizes)).float()
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):  # which transformers leaves zero
            torch.nn.init.normal_(parameter, std=0.3)
        if name.endswith("per_expert_scale"):  # and these one
            torch.nn.init.uniform_(parameter, 0.2, 2)
        if kind in ("gemma1", "gemma2") and "embed" in name:  # tied, times sqrt(hidden_size): else
            torch.nn.init.normal_(parameter, std=0.01)  # the likeliest next token is the last one
    if kind == "qwen2":
        made.generation_config.repetition_penalty = 1.1  # as Qwen2.5's
    made.save_pretrained(folder)
    words = {f"t{i}": i for i in range(sizes["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="t0", eos_token="t1", pad_token="t2"
    ).save_pretrained(folder)
    return folder


def random_prompt(length: int, seed: int) -> list[int]:
    """`length` word numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD, VOCABULARY, (length,), generator=generator).tolist()


def ranks(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """For each token, how many of its logits [tokens, words] are greater than its own, by TIE."""
    own = logits.gather(1, torch.tensor(tokens)[:, None])
    deviation = logits.nan_to_num(neginf=0).std(-1, keepdim=True)
    return (logits > own + TIE * deviation).sum(-1)


class Reference:
    """transformers' own model of a checkpoint."""

    def __init__(self, folder: pathlib.Path):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
        if getattr(self.model.config, "attn_logit_softcapping", None):  # which its sdpa ignores
            self.model.set_attn_implementation("eager")

    def ranks(
        self, requests: list[tuple[list[int], list[int]]], asks: Sequence[dict[str, Any]] = ()
    ) -> list[torch.Tensor]:
        """As `ranks`, for each of the requests (prompt, tokens), whose logits are as they ask.

        One run over all of them, each token after those that the request has before it.
        """
        if penalty := self.model.generation_config.repetition_penalty:
            asks = [{"repetition_penalty": penalty} | ask for ask in asks or [{}]]
        found = []
        for start in range(0, len(requests), 32):
            some = requests[start : start + 32]
            rows = [torch.tensor(prompt + tokens[:-1]) for prompt, tokens in some]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # behind, so not seen
            with torch.inference_mode():
                logits = self.model(ids).logits
            for row, (prompt, tokens) in zip(logits, some, strict=True):
                row = row[len(prompt) - 1 : len(prompt) - 1 + len(tokens)]
                if asks and (ask := asks[len(found) % len(asks)]):
                    made = (adjusted(row[i], prompt, tokens[:i], ask) for i in range(len(row)))
                    row = torch.stack([*made])
                found.append(ranks(row, tokens))
        return found

    def first_differences(self, requests: list[tuple[list[int], list[int]]]) -> list[int | None]:
        """Of each prompt and the tokens after it: where these leave the greedy ones, or None.

        As long as the tokens before it are transformers' own, each must be what the model takes for
        the likeliest after them (or as likely, to within TIE).
        """
        places = [ranks.nonzero() for ranks in self.ranks(requests)]
        return [int(place[0]) if len(place) else None for place in places]
