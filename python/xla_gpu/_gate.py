"""Keeps XLA's threads, which may run calls until the process ends, out of an interpreter that ends.

A thread that enters Python then never comes back, and XLA waits for it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time


class _Gate(ctypes.Structure):
    """Gate, of src/ops/user_kernel/gate.h."""

    _fields_ = [("running", ctypes.c_int64), ("closed", ctypes.c_int64)]


_gate = _Gate()
GATE = ctypes.addressof(_gate)  # of every function that may be Python's


@atexit.register
def _close() -> None:
    _gate.closed = 1
    time.sleep(1e-3)  # a call that found it open is counted by then
    while _gate.running > 0:
        time.sleep(1e-3)


def _reopen() -> None:
    _gate.running = 0  # of a child, which has none of the threads that ran calls


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen)
