# SPDX-License-Identifier: Apache-2.0
"""The interface of an algorithm: one way to compute a convolution or a matrix product on one kind of machine.

An algorithm is a module with the names of `Algorithm` below, or the value ALGORITHM of a module.

refuses          why it cannot compute a problem on a machine at all
candidates       all legal schedules of its kernels, as arrays, and the kernels that cannot run, with reasons
cost             the predicted cycles of every candidate
prepare          what is computed from fixed weights once, and its bytes
workspace_bytes  memory that a run needs besides its operands; the native library asks for the same number
largest_part     on a CPU: the share of the thread that has the most work
tolerance        how far a result may be off, and how far it is off in practice
describe         the loop nest, tiles and terms of a plan as text
nests            on a CPU: the loop nests of a plan's run, as data

A module may also have `least_cycles(request, best)`: a lower bound on the cycles of all its schedules. It returns a cheap bound if that is
already above `best`, else a tighter one. The planner costs algorithms in the order of their bounds and rejects an algorithm whose bound is
above the best plan so far. The bound must be 0 for several threads: the best plan for one thread need not be the best for all.

It may also have `contract`: the numeric contract of a schedule (`pysim.algorithms.reproducible`), of (problem, schedule) on a CPU and of
(problem, schedule, layout) on a GPU; without it none of its schedules keeps one.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu.reuse.loops import LoopNest
from pysim.cachemodel.cpu.threads import Part
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.accuracy import ErrorScale
from pysim.record.contract import GpuContract
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import AnySchedule, GpuSchedule, Schedule
from pysim.registry.cpu import cpu_kernel
from pysim.registry.cuda import ConvKernel, Finite, GemmKernel

Array = NDArray[np.float64]
Operands = Literal["plain", "transformed", "split"]


class Candidates(Protocol):
    """Legal schedules of one algorithm, as arrays that its own `cost` reads.

    `limit`: cycles (an array: per kind). All schedules that take no longer than this are included; infinity: all schedules. `rejected`:
    the kernels that cannot run.
    """

    @property
    def limit(self) -> Array | float: ...
    @property
    def rejected(self) -> tuple[Rejected, ...]: ...


class Bound(NamedTuple):
    """How far results are off.

    growth, rms   the bound that no right result exceeds: |result - exact| <= gamma_k |A||B| x `growth`, where k is the length of the sums,
                  or `rms` times the result's root mean square, whichever is larger
    source        where the bound comes from
    finite        which operands must be finite for it (`Plan.needs_finite`)
    operands      what is multiplied: the operands themselves, linear combinations of them (Winograd), or parts of each (3xTF32)
    error         the largest error seen in practice, over the result's root mean square (`pysim.algorithms.accuracy`); None: that of a
                  direct sum, or `rms` if that is larger
    mean_error    the systematic relative error of results, from accumulators that truncate or from constants of a transform that are
                  rounded. Errors of either sign average out over the layers of a network; this one adds up.
    scale         what the error of one result grows with, where operands differ much in size (`Plan.error_scale`)
    """

    growth: float
    rms: float
    source: str
    finite: Finite = "nothing"
    operands: Operands = "plain"
    error: float | None = None
    mean_error: float = 0.0
    scale: ErrorScale = "products"


DIRECT_SUM = Bound(1.0, 0.0, "Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1")  # of products in any order


def direct_sum(problem: Workload, schedule: AnySchedule) -> Bound:
    """`tolerance` of algorithms that only multiply and add."""
    row = cpu_kernel(schedule.kernel) if isinstance(schedule, Schedule) else None
    return _split_sum(problem) if row and row.split else DIRECT_SUM


def _split_sum(problem: Workload) -> Bound:
    """Of operands split in three bf16 (native/x86/amx), of which six products are added: a tile adds up to 16 products of the first parts,
    then two such sums, and six tiles are added for each 32 of k. The products left out and the roundings of small ones are below 8 more.
    From k = 32 on these are fewer than k roundings.

    Worked number: k = 16 has 16 + 9 + 6 = 31 roundings at most, a growth of 1.94.
    """
    k = problem.k if isinstance(problem, Gemm) else problem.group_channels * problem.taps
    growth = max(1.0, (min(k, 16) + 9 + 6 * -(-k // 32)) / k)
    return DIRECT_SUM._replace(growth=growth, source="native/x86/amx/kernels.c, a count of its roundings", operands="split")


def in_parts(row: GemmKernel | ConvKernel, sums: str, order: str, schedule: GpuSchedule) -> GpuContract | None:
    """The contract of a launch of a row; None if the launch decides where a sum begins (stream-K)."""
    if schedule.decomposition == "stream_k":
        return None
    contract = GpuContract(sums, order, last=row.adds_last(schedule.splits))
    return msgspec.structs.replace(contract, parts=schedule.splits, unit=row.block_k) if schedule.decomposition == "split_k" else contract


def least_cycles(algorithm: "Algorithm", request: Request, best: float = 0.0) -> float:
    """The lower bound of an algorithm; 0 if it has none."""
    bound: Callable[[Request, float], float] = getattr(algorithm, "least_cycles", lambda request, best: 0.0)
    return bound(request, best)


def nothing_prepared(problem: Workload, schedule: AnySchedule, layout: Layout) -> None:
    """`prepare` of algorithms that read weights in place or pack them in each run."""


def requires_nchw(layout: Layout) -> Reason | None:
    """The refusal of an algorithm for NCHW alone, in any other layout."""
    return None if layout == "nchw" else Reason("shape", f"it takes NCHW input and output, not {layout.upper()}")


class Prepared(NamedTuple):
    """What is computed from fixed weights once: `what` ("packed filters", "transformed filters") and its bytes."""

    what: str
    size_bytes: int


class Nests(NamedTuple):
    """The loop nests of one run on one thread, in their order, and a reader's `names` of dimensions and operands. Operands of the same name
    are one buffer. `sliced`: it is SConv's nest alone, so the native library itself can list its accesses."""

    loops: tuple[LoopNest, ...]
    names: Mapping[str, str] = MappingProxyType({})
    sliced: bool = False


class Algorithm(Protocol):
    """An algorithm: a module, or the ALGORITHM of a module."""

    NAME: str  # for `--algorithm`
    COMPUTES: type  # Conv or Gemm

    def refuses(self, problem: Any, machine: Any, layout: Layout) -> Reason | None:
        """Why no kernel of the algorithm can compute the problem here; None if one may."""

    def candidates(self, request: Request, limit: Array | float = 0.0) -> Candidates:
        """All legal schedules that may take up to `limit` cycles (an array: per kind). The algorithm may add slower ones; `limit` of the
        result says up to which cycles it has all of them."""

    def cost(self, machine: Any, candidates: Sequence[Any]) -> Sequence[Costs]:
        """The costs of candidates of all algorithms that share this function, in one call. Candidates that cannot be the best of their
        kind may be left out."""

    def prepare(self, problem: Any, schedule: Any, layout: Layout) -> Prepared | None:
        """What a run with fixed weights keeps of them; None if it reads them in place."""

    def workspace_bytes(self, problem: Any, schedule: Any, layout: Layout) -> int:
        """Bytes that a run needs besides its operands."""

    def largest_part(self, problem: Any, schedule: Any, threads: int) -> Part:
        """The work of the thread that finishes last; only for CPUs."""

    def tolerance(self, problem: Any, schedule: Any) -> Bound:
        """How far results may be off, and how far they are off in practice."""

    def describe(self, plan: Plan) -> Description:
        """The plan as text."""

    def nests(self, plan: Plan) -> Nests:
        """The loops of a plan; only for CPUs."""
