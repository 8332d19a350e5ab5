"""What a cubin says of a kernel in it: the sizes of its parameters and its threads a block.

A cubin is an ELF file; section .nv.info.KERNEL is a list of attributes of that kernel.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

from xla_gpu._errors import InvalidArgumentError

# Attributes (EIATTR_*): the most threads of a block in x, y, z; a parameter; the exact threads.
_MAX_THREADS, _REQUIRED_THREADS, _PARAMETER = 0x05, 0x10, 0x17
_SIZED = 4  # the form of attributes whose 16 bits are the number of bytes that follow


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """A kernel of a cubin.

    Attributes:
      parameters: their sizes in bytes, in order.
      threads: of a block, as its source declared them; None where it did not.
    """

    parameters: tuple[int, ...]
    threads: int | None


def kernel_info(cubin: bytes, entry: str) -> KernelInfo:
    """What the cubin says of kernel `entry`; InvalidArgumentError where it is none or lacks it."""
    try:
        section = _section(cubin, f".nv.info.{entry}")
        if section is None:
            raise InvalidArgumentError(f"the cubin has no kernel named '{entry}'")
        sizes: dict[int, int] = {}
        threads = None
        for attribute, value in _attributes(section):
            if attribute == _PARAMETER:
                _, ordinal, _, packed = struct.unpack_from("<IHHI", value)
                sizes[ordinal] = packed >> 18
            elif attribute in (_MAX_THREADS, _REQUIRED_THREADS):
                x, y, z = struct.unpack_from("<III", value)
                threads = x * y * z
    except InvalidArgumentError:
        raise
    except (struct.error, ArithmeticError, IndexError, ValueError) as e:
        raise InvalidArgumentError(f"not a cubin, or a damaged one: {e}") from None
    return KernelInfo(tuple(sizes[i] for i in sorted(sizes)), threads)


def _section(elf: bytes, name: str) -> bytes | None:
    """The bytes of a section of a little-endian ELF64 file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("its first bytes are not those of an ELF64 file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    sections = []
    for i in range(count):
        name_offset, *_, start, length = struct.unpack_from("<IIQQQQ", elf, table + i * size)
        sections.append((name_offset, elf[start : start + length]))
    names = sections[names_at][1]
    for offset, content in sections:
        if names[offset : names.index(b"\0", offset)] == name.encode():
            return content
    return None


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            yield attribute, section[at : at + value]
            at += value
