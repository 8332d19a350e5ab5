"""A step's inputs as we write them, held against those of tpu-inference."""

from __future__ import annotations

import jax
import numpy as np
from xla_gpu.vllm_xla import _inputs


def check(inputs, runner, scheduler_output):
    """Inputs.next has written what _prepare_inputs makes of the same step."""
    original = type(runner)._prepare_inputs.__wrapped__
    prepared, substitution = _inputs.on_the_host(original, runner, scheduler_output)
    # Behind a step's positions it leaves those of steps before.
    prepared[1][scheduler_output.total_num_scheduled_tokens :] = 0
    want = _inputs.Packed([prepared[i] for i in _inputs.STEP])
    want.take(*substitution)
    np.testing.assert_array_equal(inputs.packed.words, want.words)
    assert inputs.packed.form is want.form
    assert inputs.packed.last is want.last
    rest = set(range(len(prepared))) - {*_inputs.STEP, *_inputs.BATCH}
    assert all(inputs.prepared[i] == prepared[i] for i in rest)
    kept, wanted = ([x[i] for i in _inputs.BATCH] for x in (inputs.prepared, prepared))
    jax.tree.map(np.testing.assert_array_equal, kept, wanted)
