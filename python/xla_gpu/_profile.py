"""`xla_gpu.profile`: how long kernels and ops take, whatever framework calls them."""

from __future__ import annotations

import dataclasses
import json
from types import TracebackType

from xla_gpu import _lib
from xla_gpu._errors import XlaGpuError


@dataclasses.dataclass(frozen=True)
class KernelTimes:
    """What the calls of one kernel or op took on one platform, in microseconds.

    On CUDA it is the time between two events in the call's stream: all that the call launched, with
    the gaps between its launches. On the Host it is the clock's.

    Attributes:
      name: the kernel's, or the op's ("paged_attention").
      key: tells kernels of one name apart ("saxpy@6b3c0e9ad1f24711").
      platform: "Host" or "CUDA".
      calls: how many were made and did not fail.
      timed: of how many the time is known. Not of those that were captured into a CUDA graph (an
        XLA command buffer, torch.cuda.graph), whose replays are not seen at all, and not of those
        on CUDA after the first 65,536.
      total_us, min_us, max_us: of the timed calls; 0 if there are none.
    """

    name: str
    key: str
    platform: str
    calls: int
    timed: int
    total_us: float
    min_us: float
    max_us: float

    @property
    def mean_us(self) -> float:
        return self.total_us / self.timed if self.timed else 0.0


class Profile:
    """What `profile` gives: a table as text, once its block has ended.

    Attributes:
      kernels: the longest total first; empty while the block runs.
    """

    def __init__(self) -> None:
        self.kernels: tuple[KernelTimes, ...] = ()

    def __enter__(self) -> Profile:
        _lib.check(_lib.load().xla_gpu_profile_start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            told = _lib.text_of(_lib.load().xla_gpu_profile_stop)
        except XlaGpuError:
            if error is None:  # else a kernel's fault, which the block's error tells of
                raise
            return
        self.kernels = tuple(KernelTimes(**times) for times in json.loads(told))

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("kernel", "platform", "calls", "total us", "mean us", "min us", "max us")
        ]
        for k in self.kernels:
            times = (k.total_us, k.mean_us, k.min_us, k.max_us) if k.timed else ()
            shown = [*(f"{us:.1f}" for us in times), "-", "-", "-", "-"][:4]
            rows.append((k.name, k.platform, str(k.calls), *shown))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                text.ljust(width) if i < 2 else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        untimed = sum(k.calls - k.timed for k in self.kernels)
        if untimed:
            lines.append(f"not timed: {untimed} calls, captured into CUDA graphs or too many")
        return "\n".join(lines)


def profile() -> Profile:
    """Times the kernels and ops that are called in a block, in all threads and by all frameworks.

        with xla_gpu.profile() as p:
            jax.block_until_ready(step(x))
        print(p)

    What frameworks compute asynchronously must have been made to end in the block
    (jax.block_until_ready, torch.cuda.synchronize): a call that XLA has not made by then is not
    seen. Kernels that XLA replays from command buffers are not either; they are called one by one
    under XLA_FLAGS=--xla_gpu_enable_command_buffer= (nothing behind the =).

    Raises:
      XlaGpuError (FAILED_PRECONDITION): where a profile is on already; at the end of the block,
        the error of a GPU whose work failed.
    """
    return Profile()
