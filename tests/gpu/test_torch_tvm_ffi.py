"""The library's own ops as TVM-FFI functions on torch tensors: its streams, its allocator."""

import pytest

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
torch = pytest.importorskip("torch")

import xla_gpu
import xla_gpu.torch


def batch():
    generator = torch.Generator("cuda").manual_seed(0)
    normal = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    ints = {"device": "cuda", "dtype": torch.int32}
    return (
        torch.randn(8, 16, 128, **normal),
        torch.randn(64, 16, 8, 128, **normal),
        torch.tensor([100, 33, 64, 200, 7, 9, 11, 128], **ints),
        torch.arange(64 * 2, **ints).reshape(8, 16) % 64,
        torch.arange(9, **ints),
        torch.tensor([8], **ints),
    )


def attend(ops, args, out):
    # v_cache, sinks, k_scale, v_scale; out; lse; scale
    ops.paged_attention(*args, None, None, None, None, out, None, 0.09)


def test_attention_with_scratch_of_torch():
    ops = tvm_ffi.load_module(xla_gpu.library_path())
    args = batch()
    wanted = xla_gpu.torch.paged_attention(*args[:5], scale=0.09)
    out = torch.empty_like(args[0])
    attend(ops, args, out)
    assert torch.equal(out, wanted)

    # On a stream of the caller's, and in a graph.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        later = torch.empty_like(out)
        attend(ops, args, later)
    stream.synchronize()
    assert torch.equal(later, wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(ops, args, later)
    args[0].mul_(0.5)
    graph.replay()
    assert torch.equal(later, xla_gpu.torch.paged_attention(*args[:5], scale=0.09))


def test_errors():
    ops = tvm_ffi.load_module(xla_gpu.library_path())
    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="simple_add: b is on device 1:0 but what comes before"):
        ops.simple_add(x, x.cpu(), x.clone())
    ops.simple_add(x, x, out := torch.empty_like(x))
    assert out.tolist() == [2.0] * 4
