"""The device XLA_GPU: PyTorch/XLA over a stock PJRT plugin, through libxla_gpu_pjrt.so.

Each environment is tried in a process of its own, because torch_xla has one client a process.
"""

import copy
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("needs torch_xla (make test-torch)", allow_module_level=True)
import xla_gpu.torch_xla as xla_gpu_torch_xla  # before torch_xla: it chooses the device

# isort: split
import torch
import torch.nn.functional as F  # noqa: N812
import torch_xla
import torch_xla.backends
import torch_xla.runtime as xr
from torch import nn
from xla_gpu import _lib, torch_xla_plugin

NEEDS_CPU_PLUGIN = pytest.mark.skipif(
    importlib.util.find_spec("xla_plugins") is None, reason="needs xla-cpu-pjrt"
)
SHIM = str(pathlib.Path(_lib.library_path()).with_name("libxla_gpu_pjrt.so"))


def run(program, timeout=120, **env):
    """Runs Python source in a process of its own; its stdout, and its stderr."""
    full = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XLA_GPU_LIBRARY": _lib.library_path(),
        **env,
    }
    full = {name: value for name, value in full.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=full,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def device():
    if xr.device_type() != "XLA":
        pytest.skip(f"torch_xla was started on {xr.device_type()} before this module")
    # torch_xla knows its devices to autograd only after their first use; a backward pass on the CPU
    # before that would leave it without.
    torch.ones(1, device="xla").cpu()
    torch_xla.backends.set_mat_mul_precision("highest")  # f32 products are TF32 on a GPU otherwise
    return torch_xla.device()


def test_the_device_is_ours(device):
    assert torch_xla._XLAC._xla_real_devices([str(device)]) == ["XLAGPU:0"]
    info = xla_gpu_torch_xla.plugin_info()
    assert sorted(info) == ["path", "pjrt", "platform", "problem"]
    assert info["problem"] == ""
    assert pathlib.Path(info["path"]).is_file()
    assert pathlib.Path(info["path"]).name != "libxla_gpu_pjrt.so"


OPS = {
    "add": lambda x, y: x + y,
    "matmul": lambda x, y: x @ y.T,
    "softmax": lambda x, y: (x * y).softmax(-1),
    "sort": lambda x, y: torch.sort(x + y, -1)[0],
    "argmax": lambda x, y: (x * y).argmax(-1),
    "gather": lambda x, y: x[:, torch.tensor([3, 0, 3], device=x.device)],
    "cumsum": lambda x, y: torch.cumsum(x, 0),
    "conv": lambda x, y: F.conv2d(x[None, None], y[None, None, :3, :3], padding=1),
    "norm": lambda x, y: F.layer_norm(x, (x.shape[-1],), y[0], y[1]),
    # No floor division: PyTorch/XLA does it in f32, and XLA's on a GPU is not exact.
    "int": lambda x, y: (x * 100).to(torch.int32) * 7 ^ 5,
    "reduce": lambda x, y: torch.stack([x.sum(), x.max(), y.std()]),
}


@pytest.mark.parametrize("name", OPS)
def test_ops_equal_the_cpu(device, name):
    generator = torch.Generator().manual_seed(7)
    x, y = (torch.randn(8, 16, generator=generator) for _ in range(2))
    expected = OPS[name](x, y)
    torch.testing.assert_close(
        OPS[name](x.to(device), y.to(device)).cpu(), expected, rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 1, 4, 1)], ids=str)
def test_tensors_go_there_and_back(device, shape, dtype):
    values = torch.randint(0, 2, shape).to(dtype)
    back = values.to(device).clone().cpu()
    assert back.dtype == dtype and torch.equal(back, values)


class Block(nn.Module):
    """A Llama block: RMS norms, causal attention by ordinary operations, a gated MLP."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            y.reshape(batch, tokens, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        logits = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        future = torch.ones(tokens, tokens, device=x.device, dtype=torch.bool).triu(1)
        attended = logits.masked_fill(future, float("-inf")).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(40, 32), Block(), Block(), nn.RMSNorm(32), nn.Linear(32, 40, bias=False)
    )
    tokens = torch.randint(0, 40, (2, 13))
    return model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(llama, device, steps):
    """The losses of AdamW steps, and the parameters after them."""
    model, inputs, targets = llama
    model = copy.deepcopy(model).to(device)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return np.array(losses), [p.detach().cpu() for p in model.parameters()]


def test_training_equals_the_cpu(device, llama):
    steps = 20
    expected, expected_parameters = train(llama, "cpu", steps)
    losses, parameters = train(llama, device, steps)
    assert expected[-1] < 0.5 * expected[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    for ours, theirs in zip(parameters, expected_parameters):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


def test_autocast(device, llama):
    model, inputs, _ = llama
    expected = model(inputs)
    with torch.autocast("xla", dtype=torch.bfloat16):
        result = copy.deepcopy(model).to(device)(inputs.to(device))
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float().cpu(), expected, rtol=0.1, atol=0.05)


def test_openxla(device, llama):
    model, inputs, _ = llama
    compiled = torch.compile(copy.deepcopy(model).to(device).eval(), backend="openxla")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(
                compiled(inputs.to(device)).cpu(), model(inputs), rtol=1e-4, atol=1e-4
            )


def test_the_ops_are_in_the_wrapped_plugin_and_errors_keep_their_text():
    """In a process of its own, because PyTorch/XLA raises an error again at the next operation."""
    out, _ = run(
        """
        import os
        import xla_gpu.torch_xla
        import torch
        call = xla_gpu.torch_xla._custom_call._xla_custom_call  # PyTorch/XLA's own, unchecked
        x = torch.arange(3.0, device="xla")
        print(call([x, x], "XlaGpuSimpleAdd", [[3]], [torch.float32], False, "", 4, {})[0].cpu())
        y = torch.arange(5.0, device="xla")
        for target in ("no_such_target", "XlaGpuSimpleAdd"):
            try:
                call([y, y], target, [[4]], [torch.float32], False, "", 4, {})[0].cpu()
            except RuntimeError as e:
                print(e, flush=True)
        os._exit(0)
        """
    )
    assert "tensor([0., 2., 4.])" in out
    assert "No FFI handler registered for no_such_target on a platform" in out
    assert "simple_add: result 0 is f32[4] but must be f32[5]" in out


# ---- Finding the plugin ----

SHOW = """
    import json, os
    import xla_gpu.torch_xla as m
    import torch
    try:
        on_device = (torch.ones(3, device="xla") * 2).cpu().tolist()
        print(json.dumps([on_device, os.environ["PJRT_DEVICE"]]))
    except RuntimeError as e:
        print(json.dumps(str(e)))
"""
NEEDS_CPU_PLUGIN = pytest.mark.skipif(
    importlib.util.find_spec("xla_plugins") is None, reason="xla-cpu-pjrt is not installed"
)
STOCK = {"PJRT_DEVICE": None, "XLA_GPU_PJRT_PLUGIN": None}


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
@NEEDS_CPU_PLUGIN
def test_without_a_gpu_the_device_is_the_cpu_with_one_warning():
    out, err = run(SHOW, **STOCK)
    assert json.loads(out.splitlines()[-1]) == [[2.0, 2.0, 2.0], "XLA_GPU"]
    assert err.count("xla_gpu: ") == 1
    assert "there is no NVIDIA GPU: the device XLA_GPU is the CPU" in err
    assert "Defaulting to PJRT_DEVICE" not in err


def test_a_missing_plugin_is_an_error_of_pytorch_xla():
    out, _ = run(SHOW, **{**STOCK, "XLA_GPU_PJRT_PLUGIN": "/no/such/plugin.so"})
    assert "PJRT plugin '/no/such/plugin.so' is no file" in json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        ("/bin/sh", "cannot be loaded"),
        (_lib.library_path(), "is no PJRT plugin: it exports no GetPjrtApi"),
        (SHIM, "the compatibility plugin itself; it must name the stock plugin"),
        ("tpu", "XLA_GPU_PJRT_PLUGIN is 'tpu': plugin 'tpu' is neither a path"),
        ("cuda99", "no cuda99 PJRT plugin was found"),
        pytest.param("cpu", None, marks=NEEDS_CPU_PLUGIN),
    ],
)
def test_what_the_environment_may_name(plugin, says):
    """Without PyTorch, which takes ten seconds to import."""
    out, err = run(
        """
        import ctypes
        from xla_gpu import _lib
        text = ctypes.c_void_p()
        info = _lib.load().xla_gpu_pjrt_compat_info
        info.restype = ctypes.c_void_p
        try:
            _lib.check(info(ctypes.byref(text)))
        except Exception as e:
            print(e)
        """,
        XLA_GPU_PJRT_PLUGIN=plugin,
        VIRTUAL_ENV=sys.prefix,
    )
    assert (says is None) == (out == "") and (says or "") in out
    assert "xla_gpu: " not in err  # what is asked for is no news


def test_another_device_of_the_users_stays():
    out, _ = run(
        """
        import warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import xla_gpu.torch_xla
        import torch, torch_xla
        print(torch_xla._XLAC._xla_real_devices([str(torch_xla.device())]))
        print([str(w.message) for w in seen if "PJRT_DEVICE" in str(w.message)])
        """,
        PJRT_DEVICE="CPU",
    )
    assert "['CPU:0']" in out
    assert "PJRT_DEVICE=XLA_GPU" in out


TAKEN = "torch_xla has taken the device CPU already"
CANNOT = "PyTorch/XLA runs on PJRT_DEVICE=CPU, whose client this library can register no handlers"


@pytest.mark.parametrize("chosen", [None, "CPU"])
def test_an_import_after_torch_xla_has_taken_the_cpu_is_refused(chosen):
    out, err = run(
        """
        import os, torch, torch_xla
        x = torch.ones(3, device="xla")
        for attempt in range(2):
            try:
                import xla_gpu.torch_xla
            except RuntimeError as e:
                print("no error of the library", e)
            except Exception as e:
                print(type(e).__name__, e)
        print(os.environ["PJRT_DEVICE"], (x + 1).cpu().tolist())
        """,
        PJRT_DEVICE=chosen,
    )
    *refusals, last = out.splitlines()
    assert len(refusals) == 2 and all(f"XlaGpuError {TAKEN}" in line for line in refusals), out
    assert "before the first use of a device" in refusals[0]
    assert last == "CPU [2.0, 2.0, 2.0]" and "the device XLA_GPU is" not in err


def test_a_device_that_is_named_too_late_is_not_believed():
    out, _ = run(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        import xla_gpu.torch_xla
        import torch
        x = torch.ones(3, device="xla").cpu().to("xla")
        os.environ["PJRT_DEVICE"] = "XLA_GPU"
        try:
            torch.ops.xla_gpu.simple_add(x, x).cpu()
        except Exception as e:
            print(e)
        """,
        PJRT_DEVICE="CPU",
    )
    assert CANNOT in out


def test_the_entry_point_alone_is_enough(tmp_path):
    """As after `pip install`: no import of this package, in whatever order."""
    info = tmp_path / "xla_gpu-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xla-gpu\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[torch_xla.plugins]\nXLA_GPU = xla_gpu.torch_xla_plugin:XlaGpuPlugin\n"
    )
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    out, _ = run(
        """
        import torch, torch_xla, torch_xla.runtime as xr
        print((torch.ones(3, device="xla") * 2).cpu().tolist())
        print(torch_xla._XLAC._xla_real_devices(["xla:0"]), xr.host_index())
        """,
        PYTHONPATH=path,
        PJRT_DEVICE="XLA_GPU",
    )
    assert out.splitlines()[-2:] == ["[2.0, 2.0, 2.0]", "['XLAGPU:0'] 0"]
    # A later import of the package makes the device the default, where torch_xla itself chose.
    out, _ = run(
        """
        import os, torch, torch_xla
        assert os.environ["PJRT_DEVICE"] == "CPU"
        import xla_gpu.torch_xla
        real = torch_xla._XLAC._xla_real_devices([str(torch_xla.device())])
        print(os.environ["PJRT_DEVICE"], real)
        """,
        PYTHONPATH=path,
        PJRT_DEVICE=None,
    )
    assert out.splitlines()[-1] == "XLA_GPU ['XLAGPU:0']"


def test_user_registrations_reach_the_wrapped_plugin():
    """Without JAX and without naming a plugin: the one that PyTorch/XLA runs on."""
    out, _ = run(
        """
        import importlib.util
        real = importlib.util.find_spec  # of a machine without JAX
        importlib.util.find_spec = lambda name, *a: None if name == "jax" else real(name, *a)
        import xla_gpu, xla_gpu.torch_xla
        import torch, torch_xla
        platform = xla_gpu.torch_xla.plugin_info()["platform"]
        handler = xla_gpu.handler("simple_add", platform=platform)
        xla_gpu.register("mine", handler, platform=platform)
        x = torch.ones(3, device="xla")
        call = xla_gpu.torch_xla._custom_call._xla_custom_call
        print(call([x, x], "mine", [[3]], [torch.float32], False, "", 4, {})[0].cpu().tolist())
        """,
        XLA_GPU_PJRT_PLUGIN=xla_gpu_torch_xla.plugin_info()["path"],
    )
    assert out.splitlines()[-1] == "[2.0, 2.0, 2.0]"


def test_a_forked_child_gets_an_error():
    out, _ = run(
        """
        import os
        import xla_gpu.torch_xla
        import torch
        x = torch.ones(3, device="xla")
        x.cpu()
        child = os.fork()
        if child == 0:
            try:
                x.cpu()
            except RuntimeError as e:
                print(e, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert "this process was forked" in out and "spawn" in out


def test_spawned_processes_have_devices_of_their_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import xla_gpu.torch_xla
            import torch
            import torch_xla

            def work(index, queue=None):
                print((torch.ones(3, device="xla") + index).cpu().tolist(), flush=True)

            if __name__ == "__main__":
                torch_xla.launch(work)
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[1.0, 1.0, 1.0]" in done.stdout


def test_the_plugin_class():
    plugin = torch_xla_plugin.XlaGpuPlugin()
    assert plugin.library_path() == SHIM
    assert plugin.physical_chip_count() == 1
    assert not plugin.requires_xla_coordinator()
    plugin.configure_single_process()


def test_memory_by_the_variables_of_jax(monkeypatch):
    plugin = torch_xla_plugin.XlaGpuPlugin()
    for name in ("PREALLOCATE", "MEM_FRACTION", "ALLOCATOR"):
        monkeypatch.delenv(f"XLA_PYTHON_CLIENT_{name}", raising=False)
    monkeypatch.setattr(torch_xla_plugin, "plugin_info", lambda: {"platform": "CUDA"})
    assert plugin.client_create_options() == {}
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "False")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc")
    assert plugin.client_create_options() == {
        "preallocate": False,
        "memory_fraction": 0.5,
        "allocator": "bfc",
    }
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "maybe")
    with pytest.raises(ValueError, match="PREALLOCATE is 'maybe'; allowed are true, false"):
        plugin.client_create_options()
    monkeypatch.setattr(torch_xla_plugin, "plugin_info", lambda: {"platform": "Host"})
    assert plugin.client_create_options() == {}
