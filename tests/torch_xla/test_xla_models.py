"""A small Llama on XLA tensors: served with paged attention inside, trained with ordinary one."""

import pytest

pytest.importorskip("torch_xla", reason="PyTorch/XLA is not installed")

import small_llama
import torch
import torch_xla
import torch_xla.backends
import xla_gpu.torch_xla

torch_xla.device()  # before the first backward pass: autograd then knows of it
if xla_gpu.torch_xla.platform() == "CUDA":  # XLA's f32 products are TF32 there
    torch_xla.backends.set_mat_mul_precision("highest")

how = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])


@how
def test_a_transformer_with_paged_attention_inside(compiled):
    got = small_llama.serve(torch_xla.device(), 4, torch_xla.sync, compiled)
    want = small_llama.serve("cpu", 4)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_paged_serving_is_what_the_model_computes():
    """The reference above is itself right: paged logits equal those of the whole sequence."""
    model, pages = small_llama.make(), small_llama.serving_pages(0)
    c = model.config
    caches = [torch.zeros(9, 8, 2 * c.kv_heads, c.head_dim) for _ in range(c.layers)]
    ids = torch.randint(0, c.vocab, pages.positions.shape)
    with torch.no_grad():
        paged = model.paged(ids, caches, pages)
        whole = torch.cat([model(part[None])[0] for part in ids.split([5, 9, 1])])
    torch.testing.assert_close(paged, whole, rtol=1e-5, atol=1e-5)


@how
def test_training_equals_the_cpus(compiled):
    got = small_llama.train(torch_xla.device(), 3, torch_xla.sync, compiled)
    want = small_llama.train("cpu", 3)
    assert got == pytest.approx(want, rel=1e-4)
    assert want[-1] < want[0]


def test_the_gradient_through_paged_attention_is_refused():
    model = small_llama.make().to(torch_xla.device())
    c = model.config
    pages = small_llama.serving_pages(0).to(torch_xla.device())
    caches = [torch.zeros(9, 8, 2 * c.kv_heads, c.head_dim).to("xla") for _ in range(c.layers)]
    ids = torch.zeros(pages.positions.shape, dtype=torch.int64).to("xla")
    with pytest.raises(NotImplementedError, match=r"has no gradient.*torch\.no_grad\(\)"):
        model.paged(ids, caches, pages).sum().backward()
    assert xla_gpu.torch_xla.platform() in ("CUDA", "Host")
