"""The device that PyTorch/XLA takes, chosen before it is imported: it asks only then."""

from __future__ import annotations

import os

# The value of PJRT_DEVICE that stands for the compatibility plugin.
DEVICE = "XLA_GPU"

os.environ.setdefault("PJRT_DEVICE", DEVICE)
