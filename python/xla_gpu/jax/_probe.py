"""The JAX part of `xla-gpu probe`: `python -m xla_gpu.jax._probe BACKEND FIRST`.

Tries each platform name and custom-call API version in JAX's own runtime (cpu) or its plugin
(cuda), in the order of src/cli/probe_cell.cc, from cell FIRST on. Writes a JSON line when a cell
begins and one with its outcome, so that the program sees which cell killed this process.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

_PLATFORMS = ("CUDA", "cuda", "GPU", "gpu", "Host", "cpu")
_CELLS = list(itertools.product(_PLATFORMS, range(5)))
_OP = "simple_add"


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def _try_cell(platform: str, api_version: int) -> tuple[str, str]:
    """The result of one cell ("ok", or where it ended) and the error's text."""
    import jax
    import numpy as np
    from jaxlib import xla_client

    from xla_gpu import _lib, _ops
    from xla_gpu.jax import _compat

    a = np.arange(8, dtype=np.float32)
    b = 100 - a
    side = "Host" if platform in ("Host", "cpu") else "CUDA"
    typed = api_version == 4
    version = api_version or 1  # unspecified is called as the original one
    target = f"XlaGpuProbe_{platform}_{api_version}"
    stage = "not registered"
    try:
        opaque = _ops.opaque(_OP, side, [_ops.spec_of(a), _ops.spec_of(b)], {})
        if side == "Host" and version < 3:  # their calls carry no opaque text
            address = _lib.handler_address(_OP, side, version, opaque)
        else:
            address = _lib.handler_address(_OP, side, version)
        capsule = _lib.capsule_of(address)
        handler = {"instantiate": capsule, "execute": capsule} if typed else capsule
        xla_client.register_custom_call_target(
            target, handler, platform=platform, api_version=1 if typed else 0
        )
        stage = "compile"
        call = _compat.ffi.ffi_call(
            target,
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            custom_call_api_version=api_version,
            legacy_backend_config=None if typed else opaque,
        )
        compiled = jax.jit(lambda x, y: call(x, y)).lower(a, b).compile()
        stage = "run"
        result = np.asarray(compiled(a, b))
    except Exception as e:  # each error is this cell's answer
        return stage, f"{type(e).__name__}: {e}"
    if not np.array_equal(result, a + b):
        return "wrong result", f"{result.tolist()} should be {(a + b).tolist()}"
    return "ok", ""


def main(backend: str, first: int) -> int:
    """Probes the cells from `first` on; the exit code."""
    try:
        import jax

        jax.config.update("jax_platforms", backend)
        from xla_gpu.jax import _registration

        runtime, ffi = _registration.runtime_ffi_version()
        device = jax.devices()[0]
    except Exception as e:  # no jax, no such backend, no library: the reason is the answer
        _say(unusable=f"{type(e).__name__}: {e}")
        return 1
    facts = {
        "version": f"jax {jax.__version__}, {runtime}",
        "platform": device.platform,
        "device": device.device_kind,
        "ffi": ".".join(map(str, ffi)),
    }
    _say(runtime=facts)
    for i, (platform, api_version) in enumerate(_CELLS):
        if i < first:
            continue
        _say(begin=i)
        result, message = _try_cell(platform, api_version)
        _say(cell=i, ok=result == "ok", result=result, message=message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
