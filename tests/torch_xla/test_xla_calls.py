"""What custom calls mean on XLA tensors: configuration, memory, errors."""

import pytest

pytest.importorskip("torch_xla", reason="PyTorch/XLA is not installed")

import torch
import torch_xla
import xla_gpu
import xla_gpu.torch_xla
from xla_gpu import _ops
from xla_gpu.torch import _schema
from xla_gpu.torch_xla import _hlo, custom_call, register_custom_call_target

PLATFORM = xla_gpu.torch_xla.platform()
ops = torch.ops.xla_gpu
F32 = torch.float32


def device():
    return torch_xla.device()


def pointer(tensor):
    return torch_xla._XLAC._unsafe_buffer_pointer(tensor)


def hlo(*tensors):
    return torch_xla._XLAC._get_xla_tensors_hlo(list(tensors))


def attention_args(to="cpu"):
    generator = torch.Generator().manual_seed(3)
    args = (
        torch.randn(2, 4, 16, generator=generator),
        torch.randn(6, 8, 4, 16, generator=generator),
        torch.tensor([20, 9], dtype=torch.int32),
        torch.tensor([[1, 3, 5], [0, 2, 4]], dtype=torch.int32),
        torch.tensor([0, 1, 2], dtype=torch.int32),
        torch.tensor([2], dtype=torch.int32),
    )
    return [arg.to(to) for arg in args]


def update_args(to="cpu", value=1.0):
    key = torch.full((3, 2, 16), value)
    slots = torch.tensor([0, 9, -1], dtype=torch.int32)
    return key.to(to), (key + 1).to(to), slots.to(to)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="openxla", fullgraph=True)


# ---- Configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [lambda f: f, compiled], ids=["eager", "openxla"])
def test_calls_that_differ_in_scale_only(how):
    on_xla, on_cpu = attention_args("xla"), attention_args()
    for scale in (0.25, 0.5, 0.25):
        got = how(lambda *args, scale=scale: ops.paged_attention(*args, scale))(*on_xla)
        want = ops.paged_attention(*on_cpu, scale)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
    outs = [ops.paged_attention(*on_xla, scale) for scale in (0.25, 0.5)]  # in one program
    torch_xla.sync()
    assert (outs[0].cpu() - outs[1].cpu()).abs().max() > 1e-2


def test_attributes_are_in_the_hlo():
    text = hlo(ops.paged_attention(*attention_args("xla"), 0.25, 7, 30.0, causal=False))
    assert "scale = 2.5" in text.replace("0.25", "2.5") and "sliding_window = 7 : i64" in text
    assert "soft_cap = 30.0 : f32" in text and "causal = false" in text


def attention_by_name(args, **changes):
    attrs = {"scale": 0.25, "causal": True, **changes.pop("attributes", {})}
    shapes, dtypes = [[2, 4, 16]], [F32]
    if PLATFORM == "CUDA":  # the library's own work space
        specs = [_schema.spec_of("paged_attention", "argument", arg) for arg in args]
        shapes.append(_ops.infer("paged_attention", "CUDA", specs, attrs)[-1].spec.shape)
        dtypes.append(torch.uint8)
    return custom_call("xla_gpu_paged_attention", args, shapes, dtypes, attributes=attrs, **changes)


def test_custom_call_with_attributes():
    on_cpu = attention_args()
    for scale in (0.25, 0.5):
        got = attention_by_name(attention_args("xla"), attributes={"scale": scale})[0]
        want = ops.paged_attention(*on_cpu, scale)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_side_effect_and_frontend_attributes_are_kept():
    a = torch.ones(3, device=device())
    (result,) = custom_call(
        "XlaGpuSimpleAdd",
        [a, a],
        [[3]],
        [F32],
        has_side_effect=True,
        frontend_attributes={"why": "a test"},
    )
    text = hlo(result)
    assert "custom_call_has_side_effect=true" in text
    assert 'frontend_attributes={why="a test"}' in text.replace('"why"', "why")
    assert result.cpu().tolist() == [2, 2, 2]


def test_xlas_own_targets_go_the_old_way():
    a = torch.ones(3, device=device())
    (result,) = torch_xla._XLAC._xla_custom_call(
        [a], "annotate_device_placement", [[3]], [F32], True, "", 1, {}
    )
    text = hlo(result)
    assert 'custom_call_target="annotate_device_placement"' in text and "to_apply" not in text


def test_eager_mode():
    """torch_xla's own eager mode: each op is a program."""
    with torch_xla.experimental.eager_mode_context(True):
        a = torch.ones(3, device=device())
        assert ops.simple_add(a, a).cpu().tolist() == [2, 2, 2]
        cache = torch.zeros(6, 8, 4, 16, device=device())
        key, value, slots = update_args("xla")
        ops.update_kv_cache_(key, value, cache, slots)
        assert torch.equal(cache.cpu(), expected_cache([1.0]))


def test_registering_again_replaces():
    add = xla_gpu.handler("simple_add", platform=PLATFORM)
    attend = xla_gpu.handler("paged_attention", platform=PLATFORM)
    a = torch.ones(3, device=device())
    register_custom_call_target("replaced", attend, PLATFORM, 4)
    register_custom_call_target("replaced", add, PLATFORM, 4)
    (result,) = custom_call("replaced", [a, a], [[3]], [F32])
    assert 'custom_call_target="replaced.2"' in hlo(result)
    assert result.cpu().tolist() == [2, 2, 2]


def test_installing_again_changes_nothing():
    xlac = torch_xla._XLAC
    before = xlac._xla_custom_call, xlac._xla_register_custom_call_target
    xla_gpu.torch_xla.install()
    assert before == (xlac._xla_custom_call, xlac._xla_register_custom_call_target)
    assert before[1] is register_custom_call_target


# ---- Memory --------------------------------------------------------------------------------------


def expected_cache(steps):
    cache = torch.zeros(6, 8, 4, 16)
    for value in steps:
        key, new_value, slots = update_args(value=value)
        ops.update_kv_cache_(key, new_value, cache, slots)
    return cache


def test_the_functional_update_leaves_its_argument():
    cache = torch.zeros(6, 8, 4, 16, device=device())
    key, value, slots = update_args("xla")
    new = ops.update_kv_cache(key, value, cache, slots)
    assert torch.equal(new.cpu(), expected_cache([1.0]))
    assert cache.cpu().abs().max() == 0


def test_updates_in_place_keep_the_memory():
    cache = torch.zeros(6, 8, 4, 16, device=device())
    torch_xla.sync(wait=True)
    before = pointer(cache)
    for step in range(3):
        key, value, slots = update_args("xla", float(step))
        ops.update_kv_cache_(key, value, cache, slots)
        torch_xla.sync(wait=True)
        assert pointer(cache) == before
        assert torch.equal(cache.cpu(), expected_cache([float(step)]))


def test_two_updates_and_reads_between_them_in_one_program():
    cache = torch.zeros(6, 8, 4, 16, device=device())
    torch_xla.sync(wait=True)
    sums = []
    for step in range(3):
        sums.append(cache.sum())
        key, value, slots = update_args("xla", float(step))
        ops.update_kv_cache_(key, value, cache, slots)
    torch_xla.sync(wait=True)
    wanted = [0.0, *(expected_cache([float(step)]).sum().item() for step in range(2))]
    assert [s.item() for s in sums] == wanted
    assert torch.equal(cache.cpu(), expected_cache([2.0]))


def test_a_copy_made_before_an_update_stays():
    cache = torch.zeros(6, 8, 4, 16, device=device())
    torch_xla.sync(wait=True)
    copy = cache.clone()
    key, value, slots = update_args("xla")
    ops.update_kv_cache_(key, value, cache, slots)
    torch_xla.sync(wait=True)
    assert copy.cpu().abs().max() == 0
    assert torch.equal(cache.cpu(), expected_cache([1.0]))


def test_a_pair_in_place():
    k, v = (torch.zeros(6, 8, 2, 16, device=device()) for _ in range(2))
    torch_xla.sync(wait=True)
    before = pointer(k), pointer(v)
    key, value, slots = update_args("xla")
    ops.update_kv_cache_(key, value, k, slots, v_cache=v)
    torch_xla.sync(wait=True)
    assert (pointer(k), pointer(v)) == before
    want = expected_cache([1.0])
    assert torch.equal(k.cpu(), want[:, :, 0::2]) and torch.equal(v.cpu(), want[:, :, 1::2])


def test_one_layer_of_a_stack_of_caches():
    """In place on a view: the other layers stay."""
    caches = torch.zeros(3, 6, 8, 4, 16, device=device())
    key, value, slots = update_args("xla")
    ops.update_kv_cache_(key, value, caches[1], slots)
    torch_xla.sync(wait=True)
    got = caches.cpu()
    assert torch.equal(got[1], expected_cache([1.0]))
    assert got[0].abs().max() == 0 and got[2].abs().max() == 0


@pytest.mark.parametrize("donate", [False, True])
def test_compiled_updates_in_place(donate):
    def step(key, value, cache, slots):
        if donate:
            torch.ops.xla.dynamo_set_buffer_donor_(cache, True)
        ops.update_kv_cache_(key, value, cache, slots)
        return cache.sum()

    run = compiled(step)
    cache = torch.zeros(6, 8, 4, 16, device=device())
    torch_xla.sync(wait=True)
    before = pointer(cache)
    for i in range(4):
        key, value, slots = update_args("xla", float(i))
        torch_xla.sync(wait=True)
        total = run(key, value, cache, slots)
        want = expected_cache([float(i)])
        assert total.item() == want.sum().item()
        torch_xla.sync(wait=True)
        assert torch.equal(cache.cpu(), want)
        assert not donate or pointer(cache) == before


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("compile_it", [False, True])
def test_the_caches_of_many_layers_keep_their_memory(compile_it, pair):
    """XLA pairs donated buffers with results by their order; a wrong pair would cost a copy."""
    layers = 4

    def step(donate, key, value, slots, *caches):
        total = key.sum()
        for layer in range(layers):
            mine = caches[layer * len(caches) // layers :][: len(caches) // layers]
            if donate:
                for cache in mine:
                    torch.ops.xla.dynamo_set_buffer_donor_(cache, True)
            key = key + total
            v_cache = mine[1] if pair else None
            ops.update_kv_cache_(key, value, mine[0], slots, v_cache=v_cache)
            total = total + sum(cache.sum() for cache in mine) * 1e-6
        return total

    heads = 2 if pair else 4
    make = lambda to: [torch.zeros(6, 8, heads, 16, device=to) for _ in range(layers * (1 + pair))]  # noqa: E731
    caches, on_cpu = make(device()), make("cpu")
    torch_xla.sync(wait=True)
    before = list(map(pointer, caches))
    run = compiled(step) if compile_it else step
    for i in range(3):
        on_xla = update_args("xla", float(i))
        torch_xla.sync(wait=True)
        total = run(compile_it, *on_xla, *caches)
        torch_xla.sync(wait=True)
        assert list(map(pointer, caches)) == before
        key, value, slots = update_args(value=float(i))
        torch.testing.assert_close(total.cpu(), step(False, key, value, slots, *on_cpu))
    for cache, want in zip(caches, on_cpu):
        torch.testing.assert_close(cache.cpu(), want)


def test_aliases_of_custom_call():
    cache = torch.zeros(6, 8, 4, 16, device=device())
    key, value, slots = update_args("xla")
    inputs = [key, value, cache, slots]
    (new,) = custom_call(
        "xla_gpu_update_kv_cache",
        inputs,
        [cache.shape],
        [F32],
        output_operand_aliases={0: 2},
    )
    assert "output_to_operand_aliasing={{}: (2, {})}" in hlo(new)
    assert torch.equal(new.cpu(), expected_cache([1.0]))
    for aliases, message in [
        ({1: 2}, "there are 1 results and 4 inputs"),
        ({0: 4}, "there are 1 results and 4 inputs"),
        ({0: 1}, r"result 0 is f32\[6,8,4,16\] but input 1, whose buffer it shares, is f32\[3"),
    ]:
        with pytest.raises(ValueError, match=message):
            custom_call(
                "xla_gpu_update_kv_cache",
                inputs,
                [cache.shape],
                [F32],
                output_operand_aliases=aliases,
            )


# ---- Errors --------------------------------------------------------------------------------------


def settle(message):
    """The CPU plugin tells an error once more, at the next operation; then all must be well."""
    a = torch.ones(3, device=device())
    for _ in range(3):
        try:
            assert ops.simple_add(a, a).cpu().tolist() == [2, 2, 2]
            return
        except RuntimeError as e:
            assert message in str(e)
    pytest.fail("the error stays")


def test_an_error_in_a_handler_reaches_python():
    a = torch.ones(3, device=device())
    (result,) = custom_call("XlaGpuSimpleAdd", [a, a], [[3]], [F32], attributes={"nonsense": 1})
    with pytest.raises(RuntimeError, match="simple_add: unknown attribute 'nonsense'"):
        result.cpu()
    settle("unknown attribute 'nonsense'")


def test_the_ops_have_no_gradient():
    a = torch.ones(3, device=device(), requires_grad=True)
    with pytest.raises(NotImplementedError, match="simple_add has no gradient"):
        ops.simple_add(a, a).sum().backward()
    args = attention_args("xla")
    args[0].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"paged_attention has no gradient.*no_grad"):
        ops.paged_attention(*args, 0.25).sum().backward()
    key, value, slots = update_args("xla")
    with pytest.raises(NotImplementedError, match="update_kv_cache_ has no gradient"):
        ops.update_kv_cache_(key.requires_grad_(), value, args[1], slots)


def test_one_tensor_as_both_caches():
    key = torch.ones(1, 2, 64, device=device())
    cache, slots = torch.zeros(2, 16, 2, 64, device=device()), torch.tensor([3], device=device())
    with pytest.raises(ValueError, match="kv_cache and v_cache are one tensor; each is written"):
        ops.update_kv_cache_(key, key, cache, slots, v_cache=cache)


def test_wrong_calls_of_the_ops():
    args = attention_args("xla")
    with pytest.raises(ValueError, match="context_lens i32.* is on cpu but query is on xla:0"):
        ops.paged_attention(*args[:2], args[2].cpu(), *args[3:], 0.25)
    with pytest.raises(ValueError, match="query is f64"):
        ops.paged_attention(args[0].double(), *args[1:], 0.25)
    with pytest.raises(ValueError, match="head_dim is 8 in query"):
        ops.paged_attention(args[0][:, :, :8], *args[1:], 0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": []}, "no inputs; at least one is needed"),
        ({"inputs": [torch.ones(3)]}, r"input 0 is f32\[3\] on cpu; it must be an XLA tensor"),
        ({"inputs": [1.0]}, "input 0 is float; it must be an XLA tensor"),
        ({"inputs": None}, "inputs is NoneType; it must be a list of XLA tensors"),
        ({"inputs": torch.ones(3)}, "inputs is Tensor; it must be a list of XLA tensors"),
        ({"output_shapes": [3]}, "an output shape is 3; it must be a list of ints"),
        ({"output_shapes": [[-3]]}, r"an output shape is \[-3\]; it must be a list of ints, none"),
        ({"output_shapes": [[3.5]]}, r"an output shape is \[3.5\]; it must be a list of ints"),
        ({"output_shapes": [["3"]]}, "an output shape is"),
        ({"output_shapes": [[2**63]]}, "an output shape is"),
        ({"output_shapes": None}, "output_shapes is None; it must be a list"),
        ({"output_dtypes": None}, "output_dtypes is None; it must be a list"),
        ({"output_operand_aliases": {"a": 0}}, "output_operand_aliases is {'a': 0}; it must be"),
        ({"output_operand_aliases": [0]}, r"output_operand_aliases is \[0\]; it must be a dict"),
        ({"attributes": {"x": 2**70}}, "attribute 'x' has an int of 71 bits; allowed are"),
        ({"attributes": {"x": [2**70]}}, "attribute 'x' has an int of 71 bits; allowed are"),
        ({"attributes": {"x y": 2}}, "attribute 'x y': a name must be a str of letters"),
        ({"attributes": {1: 2}}, "attribute 1: a name must be"),
        ({"attributes": [1]}, "attributes is list; it must be a dict"),
        ({"output_shapes": []}, "0 output shapes and 1 output dtypes"),
        ({"output_dtypes": [torch.complex64]}, "complex64 has no counterpart"),
        ({"backend_config": "scale=2"}, "a typed call takes its attributes as MLIR writes them"),
        ({"backend_config": "{}", "attributes": {}}, "attributes are for typed calls"),
        ({"attributes": {"x": None}}, "attribute 'x' is NoneType None; allowed are bool"),
        ({"api_version": 0}, "api_version is 0; allowed are 1, 2, 3"),
        ({"target": "nobody"}, "no handler is registered under this name"),
    ],
    ids=str,
)
def test_wrong_custom_calls(changes, message):
    a = torch.ones(3, device=device())
    call = {
        "target": "XlaGpuSimpleAdd",
        "inputs": [a, a],
        "output_shapes": [[3]],
        "output_dtypes": [F32],
        **changes,
    }
    with pytest.raises(xla_gpu.XlaGpuError, match=message):
        custom_call(**call)


# ---- Attributes as text --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3 : i64"),
        (2.0, "2.0 : f32"),
        (0.1, "0.10000000149011612 : f32"),
        (1e-5, "9.999999747378752e-06 : f32"),
        (1e20, "1.0000000200408773e+20 : f32"),
        (float("inf"), "0x7f800000 : f32"),
        (-1e300, "0xff800000 : f32"),
        ('a"b\\c\n', '"a\\22b\\5Cc\\0A"'),
        ([1, -2], "array<i64: 1, -2>"),
        ([], "array<i64>"),
    ],
    ids=str,
)
def test_attribute_texts(value, text):
    assert _hlo.attributes_text({"x": value}) == f"{{x = {text}}}"


def test_xla_reads_the_attribute_texts():
    """Every kind at once, through XLA, back in the handler's message about the first."""
    a = torch.ones(3, device=device())
    attributes = {"s": 'q"\\ü\n', "f": 1e-5, "b": True, "i": -3, "n": [1, 2], "e": []}
    (result,) = custom_call("XlaGpuSimpleAdd", [a, a], [[3]], [F32], attributes=attributes)
    with pytest.raises(RuntimeError, match="simple_add: unknown attribute"):
        result.cpu()
    settle("unknown attribute")
