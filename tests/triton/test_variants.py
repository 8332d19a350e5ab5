"""What the library is told of Triton's kernels, by every kind of argument."""

import json

import pytest
import triton
import triton_kernels as kernels
import xla_gpu
from xla_gpu import _lib, _ops
from xla_gpu._ops import TensorSpec
from xla_gpu._triton._compile import version

F32, F16, BF16 = (lambda *s, d=d: TensorSpec(d, s) for d in ("f32", "f16", "bf16"))


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def add_kernel(**changes):
    given = {"grid": blocks, "outputs": {"out": "x"}, "constexprs": {"BLOCK": 1024}}
    return xla_gpu.triton_kernel(kernels.add, **{"arch": "sm_90", **given, **changes})


def told(variant):
    """The implementation, after the library has taken the definition and such a call of it."""
    text = json.dumps(variant.definition).encode()
    op = json.loads(_lib.text_of(_lib.load().xla_gpu_define_kernel, text, len(text)))
    attributes = {**variant.attributes, "kernel": op["key"]}
    results = _ops.infer(op["key"], "CUDA", list(variant.arguments.values()), attributes)
    assert [r.spec for r in results if r.kind != "scratch"] == list(variant.results.values())
    return variant.definition["implementations"]["CUDA"]


def trailing():
    return [None] * sum(version() >= since for since in ((3, 3), (3, 5)))


@pytest.mark.parametrize("arch, made", [("sm_80", "sm_80"), (89, "sm_89"), ("sm_90a", "sm_90a")])
def test_elementwise(arch, made):
    add = add_kernel(arch=arch)
    variant = add.variant(F32(1000), F32(1000), n=1000)
    cuda = told(variant)
    assert (cuda["kind"], cuda["arch"]) == ("cuda_image", made)
    assert cuda["parameters"] == ["x", "y", "out", "n", *trailing()]
    assert variant.attributes == {
        "n": 1000,
        "grid": (1, 1, 1),
        "block": (128, 1, 1),
        "result_types": (11, 1, 1000),
    }
    assert add.variant(F32(5000), F32(5000), n=5000).attributes["grid"] == (5, 1, 1)
    assert add.__doc__ == "Adds two tensors."


def test_what_it_takes_can_be_read():
    derived = add_kernel(scalars={"n": lambda x, y: x.size}, constexprs={"BLOCK": blocks})
    assert repr(add_kernel(scalars={"n": 5})).endswith("kernel add(x, y, n=5, *, BLOCK)>")
    assert "add(x, y, n=<function of x, y>" in repr(derived)
    assert "n=<function of arguments>" in repr(add_kernel(scalars={"n": max}))
    assert "lambda" not in repr(derived) and "0x" not in repr(derived)


@pytest.mark.parametrize("dtype", _ops.DTYPES)
def test_dtypes(dtype):
    convert = xla_gpu.triton_kernel(
        kernels.convert, grid=1, outputs={"out": ((64,), "f32")}, constexprs={"BLOCK": 64}, arch=90
    )
    variant = convert.variant(TensorSpec(dtype, (64,)))
    assert told(variant)["parameters"][:2] == ["x", "out"]
    assert variant.definition["arguments"] == [{"name": "x", "dtypes": [dtype]}]


def test_scalars_are_specialised_as_triton_does():
    fill = xla_gpu.triton_kernel(
        kernels.fill,
        grid=1,
        outputs={"out": "like"},
        constexprs={"BLOCK": 8},
        arch=90,
    )

    def scalar(value):
        variant = fill.variant(F32(8), value, 8)
        takes = told(variant)["parameters"][2]
        kinds = {s["name"]: s["type"] for s in variant.definition["scalars"]}
        is_divisible = "value: i32, divisible by 16" in variant.definition["doc"]
        return takes, kinds["value"], is_divisible

    assert scalar(7) == ("value", "i32", False)
    assert scalar(32) == ("value", "i32", True)
    assert scalar(0) == ("value", "i32", True)
    assert scalar(-32) == ("value", "i32", True)
    assert scalar(1) == ("n", "i32", False)  # it vanishes, but calls still have it
    assert scalar(2**31) == ("value", "i64", False)
    assert scalar(-(2**31)) == ("value", "i32", True)
    assert scalar(-(2**40) + 1) == ("value", "i64", False)
    assert scalar(True) == ("value", "pred", False)
    assert scalar(0.5) == ("value", "f32", False)
    assert scalar(1.0) == ("value", "f32", False)


def test_do_not_specialize():
    fill = xla_gpu.triton_kernel(
        kernels.fill_any,
        grid=1,
        outputs={"out": "like"},
        constexprs={"BLOCK": 8},
        arch=90,
    )
    texts = {json.dumps(fill.variant(F32(8), value, 8).definition) for value in (1, 2, 16)}
    assert len(texts) == 1


def test_annotations_say_types():
    kernel = xla_gpu.triton_kernel(kernels.typed, grid=1, outputs={"out": "x"}, arch=90)
    variant = kernel.variant(F32(16), 1, True)
    assert told(variant)["parameters"][:4] == ["x", "out", "wide", "flag"]
    assert [s["type"] for s in variant.definition["scalars"]] == ["i64", "pred"]


def test_none_and_bias():
    softmax = xla_gpu.triton_kernel(
        kernels.softmax,
        grid=lambda x: x.shape[0],
        outputs={"out": "x"},
        constexprs=lambda x: {"BLOCK": triton.next_power_of_2(x.shape[1])},
        scalars={
            "x_stride": lambda x: x.stride(0),
            "out_stride": lambda x: x.stride()[0],
            "cols": lambda x: x.shape[1],
            "scale": 1.0,
            "bias": None,
        },
        arch=90,
    )
    variant = softmax.variant(F32(513, 1000))
    assert "bias" not in told(variant)["parameters"]
    assert variant.attributes["grid"] == (513, 1, 1)
    assert variant.attributes["x_stride"] == variant.attributes["out_stride"] == 1000
    assert variant.attributes["scale"] == 1.0
    assert "BLOCK = 1024" in variant.definition["doc"]
    derived = {s["name"]: s["derived"] for s in variant.definition["scalars"]}
    assert derived == {"scale": False, "x_stride": True, "out_stride": True, "cols": True}

    variant = softmax.variant(BF16(513, 1000), bias=F32(1000), scale=0.5)
    assert told(variant)["parameters"][-1 - len(trailing())] == "bias"
    assert list(variant.arguments) == ["x", "bias"]
    assert variant.results == {"out": BF16(513, 1000)}


def test_shared_memory_and_clusters():
    def variant(**options):
        matmul = xla_gpu.triton_kernel(
            kernels.matmul,
            grid=(3, 2),
            outputs={"c": ((128, 128), "f32")},
            constexprs={"B": 128},
            num_warps=8,
            arch="sm_90",
            **options,
        )
        return matmul.variant(F16(128, 512), F16(512, 128), 512)

    one = variant(num_stages=2)
    assert told(one)["cluster"] == [1, 1, 1]
    assert one.attributes["shared_memory"] >= 128 << 10
    assert one.attributes["block"] == (256, 1, 1)
    two = variant(num_ctas=2)
    cluster = told(two)["cluster"]
    assert cluster in ([2, 1, 1], [1, 2, 1])  # since Triton 3.3 the first
    assert two.attributes["grid"] == (3 * cluster[0], 2 * cluster[1], 1)


def test_launch_options():
    known = {"launch_cooperative_grid": (3, 3), "launch_pdl": (3, 4)}
    members = {"launch_cooperative_grid": "cooperative", "launch_pdl": "programmatic"}
    for option, since in known.items():
        if version() < since:
            continue
        variant = add_kernel(options={option: True}).variant(F32(8), F32(8), n=8)
        assert told(variant)[members[option]] is True


@pytest.mark.skipif(version() < (3, 4), reason="tl.make_tensor_descriptor is of Triton 3.4")
def test_descriptors_made_on_the_device_need_a_workspace():
    copy = xla_gpu.triton_kernel(
        kernels.copy_by_descriptor,
        grid=lambda m, n, B: (m // B, n // B),
        outputs={"y": "x"},
        constexprs={"B": 64},
        arch=90,
    )
    variant = copy.variant(F16(256, 512), 256, 512)
    assert (
        told(variant)["parameters"]
        == ["x", "y", "m", "n", "workspace", None][: 4 + len(trailing())]
    )
    assert variant.definition["workspace"] is True
    assert variant.attributes["workspace_bytes"] % 32 == 0
    assert variant.attributes["workspace_bytes"] > 0


@pytest.mark.skipif(version() < (3, 4), reason="tl.make_tensor_descriptor is of Triton 3.4")
def test_warp_specialisation_adds_threads():
    matmul = xla_gpu.triton_kernel(
        kernels.specialized_matmul,
        grid=lambda M, N, B: (M // B, N // B),
        outputs={"c": "a"},
        constexprs={"B": 128, "STEP": 64},
        num_warps=4,
        arch=90,
    )
    variant = matmul.variant(F16(512, 512), F16(512, 512), 512, 512, 512)
    told(variant)
    assert variant.attributes["block"] == (384, 1, 1)
    assert variant.attributes["workspace_bytes"] % 16 == 0


def test_in_place():
    accumulate = xla_gpu.triton_kernel(
        kernels.accumulate, grid=blocks, in_place=["total"], constexprs={"BLOCK": 64}, arch=90
    )
    variant = accumulate.variant(F32(100), F32(100), 100)
    told(variant)
    assert variant.definition["results"] == [{"name": "total", "alias_of": "total"}]
    assert list(variant.results) == ["total"]


def test_outputs_by_every_form():
    class Type:
        shape, dtype = (7,), "float32"

    forms = ["x", ((7,), "f32"), Type(), TensorSpec("f32", (7,)), lambda x, n: (n, x.dtype)]
    for form in forms:
        variant = add_kernel(outputs={"out": form}).variant(F32(7), F32(7), n=7)
        assert variant.results == {"out": F32(7)}


def test_names_that_calls_use_themselves():
    kernel = xla_gpu.triton_kernel(
        kernels.crowded, grid=1, outputs={"out": "workspace"}, constexprs={"BLOCK": 16}, arch=90
    )
    variant = kernel.variant(F32(16), F32(16), 2.0, 16)
    takes = told(variant)["parameters"]
    assert takes[:5] == ["out", "workspace_", "stream_", "grid_", "n"]
    assert variant.attributes["grid_"] == 2.0
    assert variant.attributes["grid"] == (1, 1, 1)


def test_unaligned_tensors_are_another_variant():
    class Slice:
        """As a torch tensor at an odd address."""

        shape, dtype = (64,), "torch.float32"

        def data_ptr(self):
            return 0x1004

        def storage_offset(self):
            return 1

    add = add_kernel()
    aligned = add.variant(F32(64), F32(64), n=64)
    mixed = add.variant(Slice(), F32(64), n=64)
    assert "x: *f32, unaligned; y: *f32;" in mixed.definition["doc"]
    assert told(aligned)["aligned"] == ["x", "y", "out"]
    assert told(mixed)["aligned"] == ["y", "out"]
    images = [told(v)["image"] for v in (aligned, mixed)]
    assert images[0] != images[1]


def test_a_variant_is_compiled_once(monkeypatch):
    compiled = []
    compile_ = triton.compile
    monkeypatch.setattr(triton, "compile", lambda *a, **k: compiled.append(1) or compile_(*a, **k))
    add = add_kernel()
    for n in (100, 101, 102, 100, 16, 32):  # of two kinds: divisible by 16 or not
        add.variant(F32(n), F32(n), n=n)
    add.variant(F32(1, 100), F32(1, 100), n=100)
    assert len(compiled) == 2
    add.variant(BF16(100), BF16(100), n=100)
    add.variant(F32(100), F32(100), n=100, BLOCK=64)
    assert len(compiled) == 4


def test_constants_of_a_call_win():
    add = add_kernel()
    assert add.variant(F32(100), F32(100), n=100, BLOCK=32).attributes["grid"] == (4, 1, 1)


def test_heuristics():
    kernel = xla_gpu.triton_kernel(kernels.by_size, grid=blocks, outputs={"out": "x"}, arch=90)
    assert "BLOCK = 128" in kernel.variant(F32(100), F32(100), 100).definition["doc"]
    assert "BLOCK = 512" in kernel.variant(F32(300), F32(300), 300).definition["doc"]
    assert (kernel.name, kernel.__doc__) == ("add", "Adds two tensors.")
    kernel = xla_gpu.triton_kernel(kernels.by_type, grid=blocks, outputs={"out": "x"}, arch=90)
    assert "BLOCK = 64" in kernel.variant(BF16(9), BF16(9), 9).definition["doc"]
    assert "BLOCK = 32" in kernel.variant(F32(9), F32(9), 9).definition["doc"]


def test_many_numbers_become_constants(tmp_path, monkeypatch):
    count = 40
    names = [f"n{i}" for i in range(count)]
    (tmp_path / "many_numbers.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\n"
        f"def many(out, {', '.join(names)}):\n"
        f"    tl.store(out, {' + '.join(names)})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import many_numbers

    kernel = xla_gpu.triton_kernel(
        many_numbers.many, grid=1, outputs={"out": ((1,), "f32")}, arch=90
    )
    values = [2.5 if i % 7 == 0 else i + 2 for i in range(count)]
    takes = told(kernel.variant(*values))["parameters"]
    assert takes[1] == "n0"
    assert {"value": 41, "type": "i32"} in takes
    given = [
        v["value"] if isinstance(v, dict) else values[int(v[1:])] for v in takes[1 : count + 1]
    ]
    assert given == values


def test_the_choice_between_functions_by_their_parameters():
    for grid in (
        lambda meta: (triton.cdiv(meta["x"].numel(), meta["BLOCK"]),),
        lambda x, BLOCK: triton.cdiv(x.size, BLOCK),
        lambda **everything: everything["n"] // 20,
        (5,),
        5,
    ):
        variant = add_kernel(grid=grid, constexprs={"BLOCK": 16}).variant(F32(80), F32(80), 100)
        assert variant.attributes["grid"] == (5, 1, 1)


def test_functions_see_dtypes_by_any_name():
    seen = []

    def grid(x):
        names = ("bf16", "bfloat16", "torch.bfloat16", triton.language.bfloat16)
        seen.append([x.dtype == name for name in names] + [x.dtype != "f32", x.dtype == "f16"])
        return 1

    add_kernel(grid=grid).variant(BF16(8), BF16(8), 8)
    assert seen == [[True] * 5 + [False]]
