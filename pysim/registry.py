# SPDX-License-Identifier: Apache-2.0
"""The kernel registry as Python sees it: the lines of `native/kernels.inc`, read, never copied.

The native library expands the same lines, so row i here is row i there (a test compares them).
"""

import re
from functools import cache
from pathlib import Path

import msgspec

_HERE = Path(__file__).parent
_LINE = re.compile(r"^PYSIM_KERNEL\(([^)]*)\)", re.MULTILINE)


class Kernel(msgspec.Struct, frozen=True):
    """One micro-kernel: `windows` x `filters` outputs a call, `lane_windows` x `lane_filters` a multiply-add."""

    index: int
    target: str
    dtype: str
    form: str
    windows: int
    filters: int
    lane_windows: int
    lane_filters: int

    @property
    def name(self) -> str:
        return f"{self.dtype}_{self.form}_{self.windows}x{self.filters}__{self.target}"

    def instructions(self, windows: int, filters: int) -> int:
        """Multiply-adds of one k step on a tile of `windows` x `filters` (edges fill whole lanes)."""
        return -(-windows // self.lane_windows) * -(-filters // self.lane_filters)


def native_file(name: str) -> Path:
    """A file of `native/`: shipped beside this module, or in the source tree of a checkout."""
    shipped = _HERE / "native" / name
    return shipped if shipped.exists() else _HERE.parent / "native" / name


@cache
def kernels() -> tuple[Kernel, ...]:
    """Every row, in the order of the file."""
    rows = []
    for index, match in enumerate(_LINE.finditer(native_file("kernels.inc").read_text())):
        target, dtype, form, *numbers = (word.strip() for word in match.group(1).split(","))
        rows.append(Kernel(index, target, dtype, form, *map(int, numbers)))
    return tuple(rows)
