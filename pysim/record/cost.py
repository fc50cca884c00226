# SPDX-License-Identifier: Apache-2.0
"""What a run is predicted to cost, and what was turned down, with the reason."""

from typing import Literal, NamedTuple

import msgspec

# slower: legal, and takes longer; type, shape: for other problems; machine: it lacks what the kernel needs; size: beyond what the kernel
# counts; memory: above the limit of workspace; accuracy: its error is above what was asked for; ablation: shows what it leaves out;
# replaced: another kernel always does better
Code = Literal["slower", "type", "shape", "machine", "size", "memory", "accuracy", "ablation", "replaced"]


class Cost(msgspec.Struct, frozen=True):
    """Predicted cost of one run of a plan (`pysim/cachemodel/cpu/cost.py` says how).

    `terms` are the cycles of each part of the work, compute first (kernel, call, store, pack), then one transfer term
    for each level that supplies data. `levels` says for each of those suppliers what crossed from it into the level
    above: "lines", "bytes" (also per operand: "input_bytes", "packed_bytes", "filters_bytes", "output_bytes"), and the
    "cycles" that it is charged. `hidden` says how many cycles of a term pass while another one is served: terms less hidden add up
    to `cycles`.
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
    (`pysim/cachemodel/cpu/csa.py`). The tile sizes were halved until they fit; `exact` has those of exact maxima and their cost.
    """

    cold: int
    extra: int
    l3: int
    l2: int
    cost: int
    exact: dict[str, int] | None = None


class Reason(NamedTuple):
    """Why not: a word for programs, a sentence for people."""

    code: Code
    sentence: str


class Rejected(msgspec.Struct, frozen=True):
    """A kernel or an algorithm that was not chosen, and why; `code` is the reason's kind."""

    what: str
    reason: str
    code: Code


class NoneLegal(NamedTuple):
    """The candidates of an algorithm of which no kernel can run, and why."""

    rejected: tuple[Rejected, ...]
