"""What `xla-gpu new-kernel` writes passes its own test at once, through real JAX."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif("XLA_GPU_PROGRAM" not in os.environ, reason="XLA_GPU_PROGRAM names xla-gpu")
def test_a_new_kernel_passes_its_test(tmp_path):
    made = subprocess.run(
        [os.environ["XLA_GPU_PROGRAM"], "new-kernel", "my_kernel", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "10 passed" in run.stdout
