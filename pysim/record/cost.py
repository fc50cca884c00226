# SPDX-License-Identifier: Apache-2.0
"""The predicted cost of a run, and the rejected kernels with their reasons."""

from typing import Literal, NamedTuple

import msgspec

# slower: legal, but takes longer; type, shape: the kernel does not support them; machine: it lacks what the kernel needs; build: the
# library was built without it; size: sizes that the kernel cannot count; memory: workspace above the limit; accuracy: error above the
# requested limit; ablation: built only to measure what it leaves out; replaced: another kernel is always faster
Code = Literal["slower", "type", "shape", "machine", "build", "size", "memory", "accuracy", "ablation", "replaced"]


class Cost(msgspec.Struct, frozen=True):
    """Predicted cost of one run of a plan (`pysim/cachemodel/cpu/cost.py` says how).

    `terms`: cycles of each part of the work, compute first (kernel, call, store, pack), then one transfer term per level that supplies
    data. `levels`: for each supplier, the traffic into the level above: "lines", "bytes" (also per operand: "input_bytes",
    "packed_bytes", "filters_bytes", "output_bytes"), and the "cycles" charged for it. `hidden`: cycles of a term that overlap with other
    terms. Terms less hidden cycles add up to `cycles`.
    """

    cycles: float
    seconds: float
    bound_by: str
    levels: dict[str, dict[str, float]]
    terms: dict[str, float]
    hidden: dict[str, float] = {}

    @property
    def counted(self) -> dict[str, float]:
        """Cycles by which each term lengthens the run; they add up to `cycles`."""
        return {name: value - self.hidden.get(name, 0.0) for name, value in self.terms.items()}


class CsaCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost in SConv's slicing analysis: cache lines by the level that supplies them, and their latency in cycles.

    `cold` + `extra` lines come from memory, `l3` from L3, `l2` from L2; `cost` is equation 6
    (`pysim/cachemodel/cpu/csa.py`). Tile sizes were halved until they fit; `exact` has the exact maximum sizes and their cost.
    """

    cold: int
    extra: int
    l3: int
    l2: int
    cost: int
    exact: dict[str, int] | None = None


class Reason(msgspec.Struct, frozen=True):
    """Why a kernel was rejected: a code for programs, a sentence for people."""

    code: Code
    sentence: str


class Rejected(msgspec.Struct, frozen=True):
    """A kernel or algorithm that was not chosen, and the reason; `code` is its kind."""

    what: str
    reason: str
    code: Code


class NoneLegal(NamedTuple):
    """The candidates of an algorithm without a kernel that can run, and the reasons."""

    rejected: tuple[Rejected, ...]
