"""Forks while threads run ops, without JAX: every child must run them too, and none may hang.

Prints how many forks there were; ends with an error at the first child that fails.
"""

import os
import signal
import sys
import threading
import time

import numpy as np
from xla_gpu import _ops


class Call:
    """Eight sequences of one token, whose values are all 0.5."""

    def __init__(self) -> None:
        cache = np.random.default_rng(0).random((2, 4, 4, 8), np.float32)
        cache[:, :, 1::2] = 0.5
        self.args = [
            np.ones((8, 2, 8), np.float32),
            cache,
            np.full(8, 3, np.int32),
            np.zeros((8, 1), np.int32),
            np.arange(9, dtype=np.int32),
            np.array([8], np.int32),
        ]
        self.out = np.zeros((8, 2, 8), np.float32)

    def run(self, scale: float) -> None:
        def ref(array: np.ndarray) -> _ops.TensorRef:
            return _ops.TensorRef(_ops.spec_of(array), array.ctypes.data)

        self.out[:] = 0
        attrs = {"scale": scale}
        _ops.run("paged_attention", "Host", [ref(a) for a in self.args], [ref(self.out)], attrs)
        np.testing.assert_allclose(self.out, 0.5, rtol=1e-5)


def main(seconds: float) -> None:
    """Forks for so long."""
    stop = threading.Event()

    def work(thread: int) -> None:
        call, i = Call(), 0
        while not stop.is_set():
            # Known problems and new ones in turns: the cache of plans is read and written.
            call.run(1.0 if i % 2 else 2.0 + 4 * i + thread)
            i += 1

    Call().run(1.0)
    threads = [threading.Thread(target=work, args=(t,), daemon=True) for t in range(3)]
    for thread in threads:
        thread.start()
    forks, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try:
                call = Call()
                for _ in range(3):
                    call.run(1.0)
                call.run(0.5)
            except BaseException as e:
                print(f"in a child: {e!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        forks += 1
        if status != 0:
            sys.exit(f"child {forks} ended with status {status}")
    stop.set()
    for thread in threads:
        thread.join()
    print(forks)


if __name__ == "__main__":
    main(float(sys.argv[1]))
