"""scripts/check_layers.py finds each kind of breach, and none in what is allowed."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_layers.py"
spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)


def problems(tmp_path, name, text):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return check_layers.check(tmp_path, [name])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("src/core/a.h", '#include "src/cuda/device.h"\n', "src/core may not include src/cuda"),
        ("src/cuda/a.cc", '#include "src/ops/x/x.h"\n', "src/cuda may not include src/ops"),
        ("src/ops/x/x.cc", '#include "src/xla/handlers.h"\n', "src/ops may not include src/xla"),
        ("src/xla/a.cc", '#include "src/ops/x/x.h"\n', "src/xla may not include src/ops"),
        ("src/xla/a.cc", '#include "src/cuda/device.h"\n', "src/xla may not include src/cuda"),
        ("src/ops/x/cpu/x.cc", '#include "src/ops/y/y.h"\n', "src/ops/x may not include src/ops/y"),
        (
            "src/ops/paged_attention/random_case.h",
            '#include "src/ops/update_kv_cache/update_kv_cache.h"\n',
            "src/ops/paged_attention may not include src/ops/update_kv_cache",
        ),
        (
            "src/ops/paged_cache/cache_shape.h",
            '#include "src/ops/paged_attention/problem.h"\n',
            "src/ops/paged_cache may not include src/ops/paged_attention",
        ),
        (
            "src/xla/registration.cc",
            '#include "src/xla/compat/compat_plugin.h"\n',
            "may not include src/xla/compat",
        ),
        ("src/ops/x/x.cc", '#include "xla/ffi/api/c_api.h"\n', "only src/xla may include"),
        ("src/cli/a.cc", '#include "pjrt_c_api.h"\n', "only src/xla may include"),
        ("src/ops/x/x.cu", "#include <cuda.h>\n", "only src/cuda may include"),
        ("src/capi/c.cc", "#  include <nvrtc.h>\n", "only src/cuda may include"),
        ("src/other/a.h", "\n", "src/other is no layer"),
        ("python/xla_gpu/kernel.py", "import jax.numpy as jnp\n", "may not import jax"),
        ("python/xla_gpu/jax.py", "def f():\n    from torch import nn\n", "may not import torch"),
        ("python/xla_gpu/torch.py", "import vllm\n", "may not import vllm"),
        ("python/xla_gpu/torch/a.py", "from torchax import interop\n", "may not import torchax"),
        ("python/xla_gpu/torch_xla/a.py", "import jax\n", "may not import jax"),
        (
            "python/xla_gpu/torch/a.py",
            "from xla_gpu import _ops, jax\n",
            "xla_gpu.torch may not import xla_gpu.jax",
        ),
        (
            "python/xla_gpu/jax/a.py",
            "import xla_gpu.torch._schema\n",
            "xla_gpu.jax may not import xla_gpu.torch",
        ),
        ("src/core/long.cc", "\n" * 600, "601 lines"),
        ("docs/a.md", "see /root/x\n", "of one machine"),
        ("scripts/a.sh", "pip install --index-url x\n", "of one machine"),
        ("docs/a.md", "`pip install 'xla-gpu[torch-xla]'`\n", "not registered"),
        ("docs/a.md", "pip install xla_gpu\n", "not registered"),
        ("docs/a.md", "python -m pip install -U jax \\\n  xla-gpu==0.1\n", "not registered"),
        ("src/cli/a.cc", 'Warn("reinstall xla-gpu, or set");\n', "not registered"),
        ("src/cli/a.cc", 'Warn("pip install "\n     "xla-gpu");\n', "not registered"),
        ("python/xla_gpu/a.py", 'f"pip install "\nf"xla-gpu[{x}]"\n', "not registered"),
    ],
)
def test_breach_is_found(tmp_path, name, text, expected):
    found = problems(tmp_path, name, text)
    assert len(found) == 1, found
    assert expected in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/ops/x/x.cc", '#include "src/core/op.h"\n#include "src/cuda/kernel.h"\n'),
        ("src/ops/x/cpu/x.cc", '#include "src/ops/x/x.h"\n'),
        ("src/ops/x/x_test.cc", '#include "src/ops/y/y.h"\n'),
        (
            "src/ops/ragged_paged_attention_v3/cuda/plan.cc",
            '#include "src/ops/update_kv_cache/cuda/config.h"\n'
            '#include "src/ops/paged_attention/cuda/launch.h"\n',
        ),
        (
            "src/xla/compat/a.cc",
            '#include "src/xla/compat/b.h"\n#include "src/xla/registration.h"\n',
        ),
        ("src/xla/a.cc", '#include "xla/ffi/api/c_api.h"\n#include "pjrt_c_api.h"\n'),
        ("src/core/plan_test.cc", '#include "src/ops/x/x.h"\n#include <xla/ffi/api/c_api.h>\n'),
        ("src/cli/a.cc", '#include "src/cuda/device.h"\n#include "src/xla/plugin.h"\n'),
        ("python/xla_gpu/jax.py", "import jax\nimport numpy\n"),
        ("python/xla_gpu/torch_xla.py", "import torch\nimport torch_xla\n"),
        ("python/xla_gpu/torch_xla/a.py", "from xla_gpu.torch import _schema\n"),
        ("python/xla_gpu/torchax/a.py", "import jax, torch, torchax, xla_gpu.jax, xla_gpu.torch\n"),
        ("tests/jax/test_x.py", "import jax, torch\n"),
        ("docs/a.md", "/usr/lib, $HOME/root/x, build/work/y\n"),
        ("docs/benchmarks/table.md", "\n" * 900),
        ("docs/a.md", "pip install '.[torch-xla]'; pip install dist/xla_gpu-0.1.0-x.whl\n"),
        ("docs/a.md", "xla-gpu is not installed; `pip install jax`, then `xla-gpu doctor`\n"),
        ("CMakeLists.txt", "install(TARGETS xla-gpu RUNTIME)\n"),
    ],
)
def test_allowed(tmp_path, name, text):
    assert problems(tmp_path, name, text) == []


def test_this_repository_is_clean():
    assert check_layers.main() == 0
