"""Tiny random models that see images, requests with images, and transformers' own answers."""

from __future__ import annotations

import asyncio
import base64
import io
import pathlib
from typing import Any

import numpy as np
import tiny_models
import torch
import transformers
from completions import Client, greedy
from PIL import Image
from tiny_models import SIZES, VOCABULARY, WIDE
from tokenizers import Tokenizer, models, pre_tokenizers

TOKENS = 12  # of each answer
FIRST, LAST = 30, 100  # words in whose text no special one is found, as t1 is in t17
START, END, IMAGE, VIDEO = range(VOCABULARY - 4, VOCABULARY)
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|> <|image_pad|> <|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{{ ' ' }}{% endfor %}{% endfor %}"
)
TEXT = SIZES | WIDE
VISION = dict(
    depth=4,
    hidden_size=128,
    intermediate_size=256,
    num_heads=2,
    out_hidden_size=512,
    spatial_merge_size=2,
    temporal_patch_size=2,
    initializer_range=0.1,
)
# Windows but in the second layer; and layers whose results are added in the text's first layers.
KINDS = {
    "qwen2_5_vl": dict(
        name="Qwen2_5_VL",
        patch=14,
        text={"rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        vision={"window_size": 56, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": dict(
        name="Qwen3VL",
        patch=16,
        text={"rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
        vision={"deepstack_visual_indexes": [1, 2], "num_position_embeddings": 64},
    ),
}


def make(kind: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes a random checkpoint of the kind, float32, and its processor."""
    name, patch, text, vision = KINDS[kind].values()
    rope = {"rope_type": "default", "type": "default", **text}
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXT | {"rope_parameters": rope},
        vision_config=VISION | vision | {"patch_size": patch},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).float()
    for parameter, value in model.named_parameters():
        if parameter.endswith("bias"):
            torch.nn.init.normal_(value, std=0.1)
    with torch.no_grad():  # an image that the model itself names would have no pixels
        model.lm_head.weight[START:] = 0
    model.save_pretrained(folder)
    words = {f"t{i}": i for i in range(START)} | {s: START + i for i, s in enumerate(SPECIAL)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = ("vision_bos_token", "vision_eos_token", "image_token", "video_token")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="t0",
        eos_token="t1",
        pad_token="t2",
        extra_special_tokens=dict(zip(roles, SPECIAL, strict=True)),
    )
    sizes = dict(patch_size=patch, merge_size=2, temporal_patch_size=2)
    images = transformers.Qwen2VLImageProcessor(
        **sizes, min_pixels=16 * patch**2, max_pixels=64 * patch**2
    )
    video = "Qwen2VL" if kind == "qwen2_5_vl" else "Qwen3VL"
    videos = getattr(transformers, f"{video}VideoProcessor")(**sizes)
    processor = getattr(transformers, f"{name}Processor")(
        images, tokenizer, videos, chat_template=TEMPLATE
    )
    processor.save_pretrained(folder)
    return folder


def make_gemma3_config(folder: pathlib.Path) -> None:
    """Of a model whose words of an image see each other; no weights."""
    vision = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    transformers.Gemma3Config(
        text_config=TEXT,
        vision_config=vision | {"image_size": 56, "patch_size": 14},
        mm_tokens_per_image=4,
        architectures=["Gemma3ForConditionalGeneration"],
    ).save_pretrained(folder)


Prompt = tuple[list[int], list[Image.Image]]  # a word stands for each image
Request = tuple[Prompt, int]  # and the tokens wanted


def requests(number: int, sizes: int = 2) -> list[Request]:
    """Prompts with none, one and two images of so many sizes."""
    rng = np.random.default_rng(0)

    def words(count: int) -> list[int]:
        return rng.integers(FIRST, LAST, count).tolist()

    found = []
    for i in range(number):
        prompt, images = words(5 + i % 6), []
        for j in range(i % 3):
            size = ((64, 120), (112, 90))[(i + j) % sizes]
            pixels = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
            images.append(Image.fromarray(pixels))
            prompt += [START, IMAGE, END, *words(3)]
        found.append(((prompt, images), TOKENS))
    return found


async def answers(server: Client, requests: list[Request]) -> list[list[int]]:
    """The greedy tokens of all requests, sent together as chats."""
    return await asyncio.gather(*(_answer(server, *request) for request in requests))


async def _answer(server: Client, prompt: Prompt, count: int) -> list[int]:
    left, content, words = iter(prompt[1]), [], []

    def say() -> None:
        if words:
            content.append({"type": "text", "text": " ".join(words)})
            words.clear()

    for word in prompt[0]:
        if word == IMAGE:
            say()
            png = io.BytesIO()
            next(left).save(png, "PNG")
            url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        elif word not in (START, END):  # which the template puts around an image
            words.append(f"t{word}")
    say()
    body = greedy([], count) | {"messages": [{"role": "user", "content": content}]}
    del body["prompt"]
    status, answered = await server.post(body, "/v1/chat/completions")
    assert status == 200, answered
    return answered["choices"][0]["token_ids"]


class Reference(tiny_models.Reference):
    """transformers' own model of a checkpoint, for prompts with images."""

    def __init__(self, folder: pathlib.Path):
        auto = transformers.AutoModelForImageTextToText
        self.model = auto.from_pretrained(folder).float().eval()
        self.images = transformers.AutoImageProcessor.from_pretrained(folder)

    def ranks(self, requests: list[tuple[Prompt, list[int]]]) -> list[torch.Tensor]:
        """As for words alone."""
        return [self._ranks(*prompt, tokens) for prompt, tokens in requests]

    def _ranks(
        self, prompt: list[int], images: list[Image.Image], tokens: list[int]
    ) -> torch.Tensor:
        seen: dict[str, Any] = {}
        counts = iter(())
        if images:
            seen = dict(self.images(images=images, return_tensors="pt"))
            counts = iter((seen["image_grid_thw"].prod(1) // 4).tolist())
        ids = [i for word in prompt for i in [word] * (next(counts) if word == IMAGE else 1)]
        ids = torch.tensor([ids + tokens[:-1]])
        if images:
            seen["mm_token_type_ids"] = (ids == IMAGE).int()
        with torch.inference_mode():
            mask = torch.ones_like(ids)
            logits = self.model(input_ids=ids, attention_mask=mask, **seen).logits[0]
        return tiny_models.ranks(logits[-len(tokens) :], tokens)
