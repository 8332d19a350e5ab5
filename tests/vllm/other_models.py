"""Checkpoints made of tiny random ones: with quantized weights, and draft models."""

from __future__ import annotations

import json
import pathlib
import shutil

import safetensors.torch
import torch

BLOCK = 128
FP8 = torch.float8_e4m3fn


def _compressed(type_: str, format_: str) -> dict:
    """compressed-tensors: a scale for each output channel, activations quantized for each token."""
    eight = {"num_bits": 8, "type": type_, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": eight | {"strategy": "channel", "dynamic": False},
        "input_activations": eight | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


# name: the quantization_config of config.json
PLAIN = ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(9))]
FP8_CONFIG = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "modules_to_not_convert": PLAIN,
}
SCHEMES = {
    "fp8": FP8_CONFIG,
    "fp8 blocks": FP8_CONFIG | {"weight_block_size": [BLOCK, BLOCK]},
    "compressed fp8": _compressed("float", "float-quantized"),
    "compressed int8": _compressed("int", "int-quantized"),
}


def _rounded(tiles: torch.Tensor, scheme: str, axes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The quantized values with one scale along the axes, and the scales."""
    most, dtype = (127.0, torch.int8) if "int8" in scheme else (448.0, FP8)
    scale = tiles.abs().amax(axes, keepdim=True) / most
    scaled = torch.where(scale > 0, tiles / scale, 0).clamp(-most, most)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scale


def _quantize(weight: torch.Tensor, scheme: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantized weight and its scale."""
    out, inner = weight.shape
    blocks = {"fp8": (out, inner), "fp8 blocks": (BLOCK, BLOCK)}.get(scheme, (1, inner))
    tiles = weight.reshape(out // blocks[0], blocks[0], inner // blocks[1], blocks[1])
    values, scale = _rounded(tiles, scheme, (1, 3))
    return values.reshape(out, inner), scale[:, 0, :, 0]


def as_served(weight: torch.Tensor, scale: torch.Tensor, name: str, scheme: str) -> torch.Tensor:
    """The floats that a quantized weight stands for in tpu-inference.

    Blocks, and experts with one scale, are quantized a second time: one scale for each channel.
    """
    (out, inner), (rows, columns) = weight.shape, scale.shape
    tiles = weight.float().reshape(rows, out // rows, columns, inner // columns)
    floats = (tiles * scale[:, None, :, None]).reshape(out, inner)
    if scheme == "fp8 blocks" or ".experts." in name:
        values, scale = _rounded(floats, scheme, (1,))
        floats = values.float() * scale
    return floats


def round_activations(model: torch.nn.Module, scheme: str) -> None:
    """Makes transformers' model round what enters its quantized layers, as tpu-inference does.

    Each token has its scale. What enters experts is not rounded.
    """

    def rounded(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        values, scale = _rounded(inputs[0], scheme, (-1,))
        return (values.float() * scale,)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "proj" in name:
            module.register_forward_pre_hook(rounded)


def floats(folder: pathlib.Path) -> pathlib.Path:
    """Beside a checkpoint with quantized weights: the same in the floats that they stand for."""
    return folder.with_name(folder.name + " floats")


def make(plain: pathlib.Path, folder: pathlib.Path, form: str) -> None:
    """Writes to `folder` what the form makes of the checkpoint `plain`, and its floats."""
    if form in SCHEMES:
        _make_of_8_bits(plain, folder, form)
    else:
        MAKERS[form](plain, folder)


def _make_of_8_bits(plain: pathlib.Path, folder: pathlib.Path, scheme: str) -> None:
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    quantized, as_floats = dict(tensors), dict(tensors)
    for name in [name for name in tensors if "proj" in name]:
        values, scale = _quantize(tensors[name].float(), scheme)
        quantized[name], as_floats[name] = values, as_served(values, scale, name, scheme)
        suffix = "_scale_inv" if scheme == "fp8 blocks" else "_scale"
        quantized[name + suffix] = scale.reshape(()) if scheme == "fp8" else scale.contiguous()
    _write_both(plain, folder, quantized, as_floats, SCHEMES[scheme])


def _layer(
    name: str,
    hidden: int,
    attention: dict[str, tuple[int, ...]],
    norms: tuple[str, ...],
    size: float,
) -> dict[str, torch.Tensor]:
    """Random weights, about so large, of a draft's layer with these parts; the seed is set."""
    shapes = {f"self_attn.{part}": shape for part, shape in attention.items()}
    shapes |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), (hidden, hidden))
    shapes |= dict.fromkeys(norms, (hidden,))
    torch.manual_seed(1)
    return {f"{name}.{part}.weight": torch.randn(shape) * size for part, shape in shapes.items()}


def _make_eagle3(plain: pathlib.Path, folder: pathlib.Path) -> None:
    """An eagle3 model that drafts for `plain`: every other word, from three layers."""
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    words, hidden = tensors["lm_head.weight"].shape
    attention = dict.fromkeys(("q_proj", "k_proj", "v_proj"), (hidden, 2 * hidden))
    attention["o_proj"] = (hidden, hidden)
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    draft = _layer("midlayer", hidden, attention, norms, 0.08)
    draft |= {
        "fc.weight": torch.randn(hidden, 3 * hidden) * 0.08,
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": tensors["lm_head.weight"][::2].clone(),
        "embed_tokens.weight": tensors["model.embed_tokens.weight"],
        "d2t": torch.arange(words // 2),
    }
    more = {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "draft_vocab_size": words // 2,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    }
    _write(plain, folder, draft, more)


def _make_dflash(plain: pathlib.Path, folder: pathlib.Path) -> None:
    """A dflash model that drafts for `plain`, from two layers.

    Its layer adds little to its mask's embedding, so it drafts that word, which is often right.
    """
    hidden, size = 256, 128
    attention = {
        "q_proj": (2 * size, hidden),
        "k_proj": (size, hidden),
        "v_proj": (size, hidden),
        "o_proj": (hidden, 2 * size),
        "q_norm": (size,),
        "k_norm": (size,),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    draft = _layer("layers.0", hidden, attention, norms, 0.03)
    draft |= {
        "fc.weight": torch.randn(hidden, 2 * hidden) * 0.08,
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }
    more = {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "block_size": 3,
        "dflash_config": {"mask_token_id": 17, "target_layer_ids": [0, 1]},
    }
    _write(plain, folder, draft, more)


def _make_mtp(plain: pathlib.Path, folder: pathlib.Path) -> None:
    """`plain` with a layer more, a copy of its last, that drafts the word after the next.

    As it is trained: from the next word and the last layer's hidden state, in parts alike.
    """
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    last, draft = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    parts = [name.removeprefix(last) for name in tensors if name.startswith(last)]
    tensors |= {draft + part: tensors[last + part].clone() for part in parts}
    tensors |= {
        f"{draft}{norm}.weight": torch.ones(hidden)
        for norm in ("enorm", "hnorm", "shared_head.norm")
    }
    tensors[f"{draft}eh_proj.weight"] = torch.eye(hidden).repeat(1, 2) / 2
    tensors[f"{draft}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    tensors[f"{draft}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    _write(plain, folder, tensors, {"num_nextn_predict_layers": 1})


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4_floats(packed: torch.Tensor, powers: torch.Tensor) -> torch.Tensor:
    """What mxfp4 weights stand for: f32[..., inner] of u8[..., inner / 2], u8[..., inner / 32]."""
    values = torch.cat([_E2M1, -_E2M1])[torch.stack([packed & 15, packed >> 4], -1).long()]
    scale = torch.ldexp(torch.ones(powers.shape), powers.int() - 127)
    return (values.reshape(*powers.shape, 32) * scale[..., None]).flatten(-2)


def _make_mxfp4(plain: pathlib.Path, folder: pathlib.Path) -> None:
    """A gpt-oss as it is published.

    Every nibble as likely, the powers of two of neighbouring blocks 2 apart at most; the first
    column's are far from each other.
    """
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    generator = torch.Generator().manual_seed(2)

    def random(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(most, shape, generator=generator, dtype=torch.uint8)

    for name in [name for name in tensors if name.endswith("bias") and ".experts." in name]:
        tensors[name] = tensors[name].bfloat16().float()
    quantized, as_floats = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name]:
        experts, inner, columns = tensors[name].shape
        packed = random(256, experts, columns, inner // 2)
        powers = 127 - 6 + random(3, experts, columns, inner // 32)
        powers[:, 0, 0], powers[:, 0, 1] = 127 - 24, 127 - 6
        del quantized[name]
        quantized[name + "_blocks"] = packed.reshape(experts, columns, inner // 32, 16)
        quantized[name + "_scales"] = powers
        as_floats[name] = mxfp4_floats(packed, powers).mT.contiguous()
    config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    _write_both(plain, folder, quantized, as_floats, config)


AWQ_BLOCK = 32
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of eight neighbouring columns in a word


def _make_awq(plain: pathlib.Path, folder: pathlib.Path) -> None:
    """In AWQ's 4 bits."""
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    quantized, as_floats = dict(tensors), dict(tensors)

    def pack(bits: torch.Tensor) -> torch.Tensor:
        shifts = 4 * torch.tensor(AWQ_PLACES)
        words = (bits.reshape(len(bits), -1, 8).long() << shifts).sum(-1)
        return words.to(torch.int32)  # wraps

    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float().mT  # [inner, columns]
        tiles = weight.reshape(-1, AWQ_BLOCK, weight.shape[1])
        least, most = tiles.amin(1, keepdim=True), tiles.amax(1, keepdim=True)
        scale = ((most - least) / 15).half().float()
        zero = (-least / scale).round().clamp(0, 15)
        bits = (tiles / scale + zero).round().clamp(0, 15)
        as_floats[name] = ((bits - zero) * scale).reshape(weight.shape).mT.contiguous()
        start = name.removesuffix("weight")
        del quantized[name]
        quantized[start + "qweight"] = pack(bits.reshape(weight.shape))
        quantized[start + "qzeros"] = pack(zero[:, 0])
        quantized[start + "scales"] = scale[:, 0].half()
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": AWQ_BLOCK,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": PLAIN,
    }
    _write_both(plain, folder, quantized, as_floats, config)


MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def _make_nvfp4(plain: pathlib.Path, folder: pathlib.Path) -> None:
    """In NVFP4, as ModelOpt writes it.

    Blocks of 16 have a scale of e4m3 times one that merged projections share.
    """
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    quantized, as_floats = dict(tensors), dict(tensors)

    def scale_of(name: str) -> torch.Tensor:
        own = name.split(".")[-2]
        names = next((names for names in MERGED if own in names), (own,))
        most = [tensors[name.replace(own, other)].abs().max() for other in names]
        return torch.stack(most).max().float() / 6 / 448

    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight, all_blocks = tensors[name].float(), scale_of(name)
        tiles = weight.reshape(len(weight), -1, 16)
        scale = (tiles.abs().amax(-1, keepdim=True) / 6 / all_blocks).to(FP8)
        step = scale.float() * all_blocks
        nearest = ((tiles / step).abs()[..., None] - _E2M1).abs().argmin(-1)
        as_floats[name] = (_E2M1[nearest] * tiles.sign() * step).reshape(weight.shape)
        bits = (nearest + 8 * (tiles < 0)).to(torch.uint8).reshape(weight.shape)
        start = name.removesuffix("weight")
        quantized[name] = bits[:, ::2] | bits[:, 1::2] << 4
        quantized[start + "weight_scale"] = scale[..., 0].contiguous()
        quantized[start + "weight_scale_2"] = all_blocks
        quantized[start + "input_scale"] = torch.tensor(1.0)
    config = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        # Others would match parts of names: ".gate_proj" has ".gate".
        "ignore": [name for name in PLAIN if name + ".weight" in tensors],
    }
    _write_both(plain, folder, quantized, as_floats, config)


def _write_both(
    plain: pathlib.Path, folder: pathlib.Path, quantized: dict, as_floats: dict, config: dict
) -> None:
    _write(plain, folder, quantized, {"quantization_config": config})
    _write(plain, floats(folder), as_floats, {})


def _write(plain: pathlib.Path, folder: pathlib.Path, tensors: dict, more: dict) -> None:
    shutil.copytree(plain, folder)
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


MAKERS = {
    "eagle3": _make_eagle3,
    "dflash": _make_dflash,
    "mtp": _make_mtp,
    "mxfp4": _make_mxfp4,
    "awq": _make_awq,
    "nvfp4": _make_nvfp4,
}
