"""A custom op called from PyTorch on XLA tensors: a custom call in the HLO, never folded away."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("PyTorch/XLA is not installed (make test-torch)", True)

HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()

import xla_gpu.torch_xla  # before torch_xla: it chooses the device

# isort: split
import torch
import torch_xla
import xla_gpu

PLATFORM = xla_gpu.torch_xla.platform()
F32 = [torch.float32]


def tensors():
    device = torch_xla.device()
    return torch.tensor([1.0, 2.0, 3.0], device=device), torch.full((3,), 10.0, device=device)


def hlo(tensor):
    return torch_xla._XLAC._get_xla_tensors_hlo([tensor])


def test_runs_on_the_gpu_if_there_is_one():
    assert ("CUDA" if HAS_GPU else "Host") == PLATFORM


def test_simple_add_is_a_custom_call():
    a, b = tensors()
    result = torch.ops.xla_gpu.simple_add(a, b)
    assert 'custom_call_target="XlaGpuSimpleAdd"' in hlo(result)
    torch_xla.sync()
    assert result.cpu().tolist() == [11, 12, 13]


def test_constants_are_not_folded():
    """Its arguments are constants of the program, and still XLA makes the call."""
    device = torch_xla.device()
    ones = torch.ones(3, device=device)  # no data yet: a constant in the graph
    result = torch.ops.xla_gpu.simple_add(ones, ones)
    text = hlo(result)
    assert "constant(1)" in text and 'custom_call_target="XlaGpuSimpleAdd"' in text
    assert result.cpu().tolist() == [2, 2, 2]


def test_by_name_as_in_the_recipes():
    """Registration and call through torch_xla._XLAC, with the typed handler of this library."""
    handler = xla_gpu.handler("simple_add", platform=PLATFORM)
    torch_xla._XLAC._xla_register_custom_call_target("TestCustomOp", handler, PLATFORM, 4)
    a, b = tensors()
    (result,) = torch_xla._XLAC._xla_custom_call(
        [a, b], "TestCustomOp", [[3]], F32, False, "", 4, {}
    )
    assert 'custom_call_target="TestCustomOp"' in hlo(result)
    assert result.cpu().tolist() == [11, 12, 13]


def test_in_a_graph_with_others():
    a, b = tensors()
    result = torch.ops.xla_gpu.simple_add(a * 2, torch.ops.xla_gpu.simple_add(a, b)) - 1
    text = hlo(result)
    assert text.count('custom_call_target="XlaGpuSimpleAdd"') in (1, 2)  # equal ones may be shared
    assert result.cpu().tolist() == [12, 15, 18]


def test_compiled():
    step = torch.compile(
        lambda a, b: torch.ops.xla_gpu.simple_add(a, b).relu(), backend="openxla", fullgraph=True
    )
    a, b = tensors()
    for _ in range(2):
        assert step(a, b).cpu().tolist() == [11, 12, 13]
    assert step(a, b - 20).cpu().tolist() == [0, 0, 0]


DUMPED = """
    import torch, torch_xla, xla_gpu.torch_xla
    a = torch.ones(3, device=torch_xla.device())
    print(torch.ops.xla_gpu.simple_add(a, a).cpu().tolist())
"""


def test_the_optimised_program_has_the_call(tmp_path):
    """What XLA dumps after its optimisations."""
    package = str(pathlib.Path(xla_gpu.__file__).parents[1])
    env = dict(
        os.environ,
        XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        PYTHONPATH=os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]),
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DUMPED)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[2.0, 2.0, 2.0]"
    optimised = [p.read_text() for p in tmp_path.glob("*after_optimizations.txt")]
    calls = [text for text in optimised if 'custom_call_target="XlaGpuSimpleAdd"' in text]
    assert calls, [p.name for p in tmp_path.iterdir()]
    assert "API_VERSION_TYPED_FFI" in calls[0]
