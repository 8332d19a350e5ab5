"""Random signatures and values: what Triton compiles is what the library is told."""

import importlib
import random
import re

import pytest
import xla_gpu
from test_variants import told, trailing
from xla_gpu._ops import TensorSpec
from xla_gpu._triton import _cubin

DTYPES = ["f32", "f16", "bf16", "i32", "i64", "u8", "i8", "f64"]
INTS = [0, 1, 2, 16, 17, -1, -16, 2**31 - 1, 2**31, -(2**31) - 1, 2**62, 160]


def random_kernel(rng):
    """(parameters, values): a few of each kind, in any order; the outputs are f32."""
    kinds = rng.choices(
        ["tensor", "int", "float", "bool", "none", "constexpr"], k=rng.randint(1, 9)
    )
    kinds += ["out"] * rng.randint(1, 2)
    rng.shuffle(kinds)
    values = {}
    for i, kind in enumerate(kinds):
        values[f"{kind}_{i}"] = {
            "tensor": lambda: TensorSpec(rng.choice(DTYPES), (rng.randint(1, 40),)),
            "int": lambda: rng.choice(INTS),
            "float": lambda: rng.choice([0.0, 1.0, -2.5, 1e30]),
            "bool": lambda: rng.random() < 0.5,
            "none": lambda: None,
            "constexpr": lambda: rng.choice([1, 3, True, None, 0.5, "text", (1, 2)]),
            "out": lambda: ((rng.randint(1, 40),), "f32"),
        }[kind]()
    return values


def source(values):
    declared = [n + (": tl.constexpr" if n.startswith("constexpr") else "") for n in values]
    lines = [f"def kernel({', '.join(declared)}):", "    total = tl.program_id(0).to(tl.float32)"]
    for name in values:
        kind = name.partition("_")[0]
        if kind == "tensor":
            lines.append(f"    total += tl.load({name}).to(tl.float32)")
        elif kind in ("int", "float"):
            lines.append(f"    total += {name}")
        elif kind == "bool":
            lines.append(f"    if {name}:\n        total += 1.0")
        elif kind == "none":
            lines.append(f"    if {name} is not None:\n        total += tl.load({name})")
    lines += [f"    tl.store({name}, total)" for name in values if name.startswith("out")]
    return "import triton\nimport triton.language as tl\n\n\n@triton.jit\n" + "\n".join(lines)


def expected(values):
    """The parameters and the scalars' types, by Triton's rules."""
    takes, types = [], {}
    for name, value in values.items():
        kind = name.partition("_")[0]
        if kind in ("tensor", "out", "int", "float", "bool"):
            takes.append(name)
        if kind == "int":
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value == 1:
                takes.remove(name)
        elif kind in ("float", "bool"):
            types[name] = "f32" if kind == "float" else "pred"
    return takes + trailing(), types


@pytest.mark.parametrize("seed", range(30))
def test_random_signatures(seed, tmp_path, monkeypatch):
    rng = random.Random(seed)
    values = random_kernel(rng)
    (tmp_path / f"random_kernel_{seed}.py").write_text(source(values))
    monkeypatch.syspath_prepend(tmp_path)
    outputs = {n: v for n, v in values.items() if n.startswith("out")}
    kernel = xla_gpu.triton_kernel(
        importlib.import_module(f"random_kernel_{seed}").kernel,
        grid=(rng.randint(1, 5), rng.randint(1, 3)),
        outputs=outputs,
        arch=rng.choice([80, 90]),
        num_warps=rng.choice([None, 1, 8]),
    )
    given = {n: v for n, v in values.items() if n not in outputs}
    variant = kernel.variant(**given)
    takes, types = expected(values)
    assert told(variant)["parameters"] == takes
    assert {s["name"]: s["type"] for s in variant.definition["scalars"]} == types
    assert all(variant.attributes[name] == values[name] for name in types)
    assert [a["name"] for a in variant.definition["arguments"]] == [
        n for n in values if n.startswith("tensor")
    ]
    divisible = [
        n for n in types if f"{n}: {types[n]}, divisible by 16" in variant.definition["doc"]
    ]
    ints = [n for n in types if n.startswith("int")]
    assert divisible == [n for n in types if n in ints and values[n] % 16 == 0]


def cubin():
    import triton_kernels as kernels

    kernel = xla_gpu.triton_kernel(
        kernels.convert, grid=1, outputs={"out": "x"}, constexprs={"BLOCK": 64}, arch=90
    )
    kernel.variant(TensorSpec("f32", (64,)))
    ((image, _),) = kernel._function._images.values()
    return image.cubin


def test_damaged_cubins_are_errors():
    good = cubin()
    info = _cubin.kernel_info(good, "convert")
    assert info.parameters[:2] == (8, 8) and info.threads == 128
    with pytest.raises(xla_gpu.InvalidArgumentError, match="has no kernel named 'other'"):
        _cubin.kernel_info(good, "other")
    with pytest.raises(xla_gpu.InvalidArgumentError, match="not those of an ELF64 file"):
        _cubin.kernel_info(b"PTX", "convert")
    rng = random.Random(0)
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            at = rng.choice([rng.randrange(len(bad)), rng.randrange(64), 0x28, 0x3A, 0x3C, 0x3E])
            bad[at] = rng.randrange(256)
        bad = bytes(bad[: rng.choice([len(bad), rng.randrange(len(bad))])])
        try:
            _cubin.kernel_info(bad, "convert")
        except xla_gpu.InvalidArgumentError as e:
            assert re.match("the cubin has no kernel|not a cubin", str(e))
