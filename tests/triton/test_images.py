"""Machine code that is kept on disk: what is taken again, and what is another kernel's."""

import pytest
import triton
import triton_kernels as kernels
from test_variants import add_kernel
from xla_gpu._ops import TensorSpec
from xla_gpu._triton import _disk, _images

X = TensorSpec("f32", (1000,))


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that Triton was asked for."""
    names, compile_image = [], _images.compile_image

    def counting(name, *rest):
        names.append(name)
        return compile_image(name, *rest)

    monkeypatch.setattr(_images, "compile_image", counting)
    return names


def called(n=1000, **changes):
    return add_kernel(**changes).variant(X, X, n=n)


def test_what_was_made_once_is_read(compiled):
    first, again = called(), called()
    assert compiled == ["add"]
    assert again.definition == first.definition and again.attributes == first.attributes


def test_another_kernel_is_not_taken(compiled, monkeypatch):
    called()
    called(n=1024)  # a multiple of 16
    called(arch="sm_80")
    called(num_warps=8)
    called(constexprs={"BLOCK": 512})
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    called()
    monkeypatch.setattr(_images, "_installation", lambda ptxas: "another Triton")
    called()
    assert len(compiled) == 7


def test_a_ptxas_of_the_users_is_another_compiler(tmp_path):
    path = tmp_path / "ptxas"
    path.write_text("one")
    mine = _images._installation(str(path))
    _images._installation.cache_clear()
    path.write_text("another")
    assert len({_images._installation(None), mine, _images._installation(str(path))}) == 3


def test_a_damaged_file_is_made_again(compiled, tmp_path):
    first = called()
    (file,) = tmp_path.glob("xla_gpu-*.kernel")
    assert file.stat().st_mode & 0o77 == 0
    kept = file.read_bytes()
    for damaged in (b"", kept[:-8], kept.replace(b"cubin", b"other")):
        file.write_bytes(damaged)
        assert called().definition == first.definition
        assert file.read_bytes() == kept
    assert compiled == ["add"] * 4


@pytest.mark.parametrize("change", [{"more": 1}, {"cubin": 3}, {"trailing": None}, None])
def test_what_another_version_kept_is_made_again(compiled, monkeypatch, change):
    first, read = called(), _disk.read
    monkeypatch.setattr(_disk, "read", lambda facts: change and read(facts) | change)
    assert called().definition == first.definition
    assert compiled == ["add", "add"]


@pytest.mark.parametrize("variable", ["TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_DUMP"])
def test_triton_is_asked_where_that_is_asked_for(compiled, monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TRITON_DUMP_DIR", str(tmp_path / "dump"))
    called()
    called()
    assert compiled == ["add", "add"]


def test_without_a_cache_on_disk(compiled, monkeypatch):
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", "")
    called()
    called()
    assert compiled == ["add", "add"]


def test_what_its_text_does_not_tell_is_not_kept(compiled, tmp_path):
    """A function as a constant: its text may change."""
    assert not _images._tells_all(kernels.add) and not _images._tells_all((1, object()))
    assert _images._tells_all((1, 2.0, "a", None, triton.language.bfloat16))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(compiled, monkeypatch):
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", "/proc/none")
    with pytest.warns(
        RuntimeWarning, match="code of Triton kernel add for sm_90 could not be kept"
    ):
        called()
    assert compiled == ["add"]
