# SPDX-License-Identifier: Apache-2.0
"""What an algorithm answers. An algorithm is a module with these names, or the value that a module calls ALGORITHM; whoever adds one writes
the module, its kernels and their rows.

refuses          can it compute this problem here at all, and if not, why
candidates       every legal schedule of its kernels, as arrays, and the kernels that cannot run, each with a reason
cost             seconds of every candidate, from the machine's numbers alone
prepare          what of the weights is made once, and its bytes
workspace_bytes  what a run needs beside its operands, the number that the native library asks for
largest_part     on a CPU: what the thread computes that has the most to do
tolerance        what a result may differ by and comes to, with its source, and whether operands are multiplied as they are
describe         the loop nest, tiles and terms of a plan, for people

An algorithm that takes long to predict may also have `least_cycles(request, best)`, a lower bound on the cycles of all its schedules: a
cheap one, and a tighter one where the cheap one is below `best`. The planner predicts algorithms in the order of their bounds, those marked
SELDOM_BEST last, and turns down whatever has a bound above the best so far. The bound is 0 where several threads divide the work: the best
plan of one thread is not that of all.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.costs import Costs
from pysim.cachemodel.cpu.threads import Part
from pysim.problem.text import Workload
from pysim.record.cost import Reason, Rejected
from pysim.record.description import Description
from pysim.record.plan import Layout, Plan, Request
from pysim.record.schedule import AnySchedule
from pysim.registry.cuda import Finite

Array = NDArray[np.float64]
Operands = Literal["plain", "transformed", "split"]  # as they are, sums of several, parts of each


class Candidates(Protocol):
    """Legal schedules of one algorithm as arrays, whatever its cost function reads.

    `limit`: cycles, or cycles of each kind; a schedule that was left out takes longer than this (infinity: none was left out). `rejected`:
    kernels that cannot run.
    """

    @property
    def limit(self) -> Array | float: ...
    @property
    def rejected(self) -> tuple[Rejected, ...]: ...


class Bound(NamedTuple):
    """|result - exact| <= gamma_k |A||B| x `growth`, k the length of the sums, or, where the operands are transformed, `rms` times the
    result's root mean square; `source` says whence. `finite`: what must be finite for that (`Plan.needs_finite`).

    That is what no right result exceeds. `error` is what one comes to: the largest error of its sums over the result's root mean square
    (`pysim.algorithms.accuracy`); None: a direct sum's, or what the bound allows beyond one. `multiplied`: what is; None: where operands
    must be finite they are transformed, else they are plain. `lean`: the mean of the error over the result, of sums that are cut and not
    rounded, or whose transforms' constants are: what later layers of a network add up, where errors of either sign average out.
    """

    growth: float
    rms: float
    source: str
    finite: Finite = "nothing"
    error: float | None = None
    multiplied: Operands | None = None
    lean: float = 0.0

    @property
    def operands(self) -> Operands:
        return self.multiplied or ("transformed" if self.finite == "operands" else "plain")


SUMS = Bound(1.0, 0.0, "Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1")  # of k products, in any order


def sums(problem: Workload, schedule: AnySchedule) -> Bound:
    """`tolerance` of algorithms that only add products up."""
    return SUMS


def least_cycles(algorithm: "Algorithm", request: Request, best: float = 0.0) -> float:
    """What an algorithm says of itself, 0 where it says nothing."""
    bound: Callable[[Request, float], float] = getattr(algorithm, "least_cycles", lambda request, best: 0.0)
    return bound(request, best)


def unprepared(problem: Workload, schedule: AnySchedule, layout: Layout) -> None:
    """`prepare` of algorithms that read weights as they are, or make what they need of them in each run."""


def of_planes(layout: Layout) -> Reason | None:
    """Why an algorithm whose input and output are planes takes no other layout."""
    return None if layout == "nchw" else Reason("shape", f"its input and output are NCHW, and {layout.upper()} was asked for")


class Prepared(NamedTuple):
    """What is made of the weights once: `what` ("packed filters", "transformed filters") and its bytes."""

    what: str
    size_bytes: int


class Algorithm(Protocol):
    """An algorithm: a module, or a module's ALGORITHM."""

    NAME: str  # as `--algorithm` takes it
    COMPUTES: type  # Conv or Gemm

    def refuses(self, problem: Any, machine: Any, layout: Layout) -> Reason | None:
        """Why it cannot compute the problem here whatever the kernel; None where it can."""

    def candidates(self, request: Request, limit: Array | float = 0.0) -> Candidates:
        """Every legal schedule that may take up to `limit` cycles (per kind, if an array), and some that take longer: the algorithm chooses
        how many, and its answer's own `limit` says up to where all are there."""

    def cost(self, machine: Any, candidates: Sequence[Any]) -> Sequence[Costs]:
        """The costs of several algorithms' candidates in one go: those that share this function are costed together. Where candidates have
        a limit, those may be missing that cannot be the best of their kind."""

    def prepare(self, problem: Any, schedule: Any, layout: Layout) -> Prepared | None:
        """What a run with fixed weights keeps of them; None where it reads them as they are."""

    def workspace_bytes(self, problem: Any, schedule: Any, layout: Layout) -> int:
        """What a run needs beside its operands."""

    def largest_part(self, problem: Any, schedule: Any, threads: int) -> Part:
        """What one of several threads computes, of a plan for a CPU: the one that is done last."""

    def tolerance(self, problem: Any, schedule: Any) -> Bound:
        """What a result may differ by, and what it comes to."""

    def describe(self, plan: Plan) -> Description:
        """The plan for people."""
