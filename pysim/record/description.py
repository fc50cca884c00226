# SPDX-License-Identifier: Apache-2.0
"""An explanation as a value, and how quantities are written in it."""

from typing import NamedTuple


class Section(NamedTuple):
    """A titled part of an explanation; its lines are printed indented."""

    title: str
    lines: tuple[str, ...]


class Description(NamedTuple):
    """A plan as its algorithm describes it: a one-line summary; the peak FLOP/s, counting the definition's FLOPs while the algorithm's
    actual multiply-adds keep their unit busy (0: not known); and sections: loop nest, tiles against levels, launch, passes."""

    summary: str
    sections: tuple[Section, ...]
    peak_flops: float = 0.0


def bytes_text(size: float) -> str:
    """3.4 MiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"


def seconds_text(seconds: float) -> str:
    """1.234 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e9:.1f} ns"
