"""Kernels of the user's in exported programs."""

from __future__ import annotations

import re

import jax

from xla_gpu import _schema
from xla_gpu.jax import _registration

# The attribute of a custom call, as MLIR prints a string: \\ and two hexadecimal digits for what it
# does not show.
_DEFINITION = re.compile(r'\bdefinition = "((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(\\|[0-9A-Fa-f]{2})")


def register(exported: jax.export.Exported) -> None:
    """Defines and registers the kernels of a program, which its calls carry."""
    for text in dict.fromkeys(_DEFINITION.findall(exported.mlir_module())):
        op = _schema.define(_unescape(text), None)
        for platform in op.platforms:
            _registration.register_op(op.id, platform)


def _unescape(text: str) -> str:
    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return code if code == b"\\" else bytes([int(code, 16)])

    return _ESCAPE.sub(byte, text.encode()).decode()
