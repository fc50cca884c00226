# SPDX-License-Identifier: Apache-2.0
"""A plan as a value: what to run, what it is predicted to cost, what else was considered, and which numbers nobody measured."""

from typing import Any, Literal, NamedTuple

import msgspec

from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy
from pysim.record.cost import Cost, CsaCost, Rejected
from pysim.record.schedule import AnySchedule, GpuSchedule, Schedule, name_of
from pysim.record.state import State
from pysim.registry.cuda import Finite

ModelName = Literal["full", "csa"]
Layout = Literal["nchw", "nhwc", "nchw4c", "nchw8c", "nchw16c", "nchw-nchw4c", "nchw-nchw8c", "nchw-nchw16c"]
Footprint = Literal["packed", "raw"]
MODELS: tuple[ModelName, ...] = ("full", "csa")
FOOTPRINTS: tuple[Footprint, ...] = ("packed", "raw")
LAYOUTS: tuple[Layout, ...] = ("nchw", "nhwc")  # of a convolution's input and output; pysim_layout, in its order
# On a CPU channels may lie in blocks: [N][C/c][H][W][c], of input and output or of the output alone.
BLOCKED: tuple[Layout, ...] = ("nchw4c", "nchw8c", "nchw16c", "nchw-nchw4c", "nchw-nchw8c", "nchw-nchw16c")


def blocks_of(layout: Layout) -> tuple[int, int]:
    """Channels in a block of the input and of the output; 1 where they are planes, or last."""
    first, _, second = layout.partition("-")
    return _block(first), _block(second or first)


def _block(layout: str) -> int:
    return int(layout[4:-1]) if layout[4:] else 1


def blocked_shape(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """[N][C][H][W] as it lies with channels in blocks."""
    return shape if block == 1 else (shape[0], shape[1] // block, *shape[2:], block)


MicroKernel = str | tuple[int, int] | None  # a kernel's name, or windows x filters (on a GPU a block's rows x columns)


def named(micro_kernel: MicroKernel) -> str:
    """As it is written: 4x16."""
    return "x".join(map(str, micro_kernel)) if isinstance(micro_kernel, tuple) else str(micro_kernel)


class Request(NamedTuple):
    """What a plan is asked for.

    `state`: of the caches; `micro_kernel`: only kernels of this name or tile; `schedule`: only this
    one; `input_footprint` is the slicing analysis' (`pysim/cachemodel/cpu/csa.py`); `accuracy`, and `error_limit`, the largest error over
    the result's root mean square: see `pysim.algorithms.accuracy`. `prepared`: B of a product is prepared once for many runs, as weights
    of a convolution always are. `prologue`: on a GPU a convolution's input is scaled, shifted and bounded as it is read.
    """

    problem: Workload
    machine: Machine | Gpu
    layout: Layout = "nchw"
    state: State = "hot"
    model: ModelName = "full"
    micro_kernel: MicroKernel = None
    schedule: AnySchedule | None = None
    input_footprint: Footprint = "packed"
    accuracy: Accuracy = "standard"
    error_limit: float | None = None
    threads: int = 1
    prepared: bool = False
    prologue: bool = False

    @property
    def cpu(self) -> Machine:
        """The machine, which is a CPU where an algorithm of CPUs is asked."""
        assert isinstance(self.machine, Machine)
        return self.machine

    @property
    def gpu(self) -> Gpu:
        """The machine, which is a GPU where an algorithm of GPUs is asked."""
        assert isinstance(self.machine, Gpu)
        return self.machine

    @property
    def conv(self) -> Conv:
        """The problem, which is a convolution where an algorithm of those is asked."""
        assert isinstance(self.problem, Conv)
        return self.problem

    @property
    def any_error(self) -> bool:
        """Whether all algorithms are accurate enough."""
        return self.accuracy == "standard" and self.error_limit is None


def _product_of(schedule: AnySchedule) -> dict[str, str | None]:
    """What a document says beside a kernel that a GPU runs: the row that multiplies, where that is another."""
    return {"gemm": schedule.gemm} if isinstance(schedule, GpuSchedule) and schedule.gemm else {}


class Considered(msgspec.Struct, frozen=True):
    """The best schedule of one kind: of one stationary operand, of one decomposition, or of one algorithm."""

    algorithm: str
    schedule: AnySchedule
    cost: Cost | CsaCost

    def to_dict(self) -> dict[str, Any]:
        schedule = {"algorithm": self.algorithm, "schedule": self.schedule.kind, "kernel": self.schedule.kernel, "tile": self.schedule.tile}
        document = schedule | {"cost": msgspec.to_builtins(self.cost)}
        return document | _product_of(self.schedule)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and why: the schedule that the macro-kernel or the launch obeys, its predicted cost, and what was turned down.

    `considered` has the best schedule of each kind, the chosen one among them. `assumed` are the paths of the machine's numbers that the
    cost leaned on and nobody measured or published. `workspace_bytes` is what one thread (launch) needs. `layout` is that of a
    convolution's input and output, `memory_limit` the bytes of workspace that were allowed. `needs_finite` says what must be finite, lest
    the result is NaN where the definition has a number: an entry of NEEDS_FINITE ("filters": where the problem is padded). `error` is what
    the algorithm states: its largest error over the result's root mean square, against float64, where operands are in [-1, 1); one draw of
    those in a hundred may have a larger one (`pysim.algorithms.accuracy`). `accuracy` and `error_limit` are what was asked for. The
    cost is that of a run on so many `threads` of a CPU.
    """

    workload: Workload
    on: Machine | Gpu
    model: ModelName
    state: State
    algorithm: str
    schedule: AnySchedule
    workspace_bytes: int
    cost: Cost | CsaCost
    considered: tuple[Considered, ...]
    rejected: tuple[Rejected, ...]
    assumed: tuple[str, ...] = ()
    layout: Layout = "nchw"
    memory_limit: int | None = None
    needs_finite: Finite = "nothing"
    error: float = 0.0
    accuracy: Accuracy = "standard"
    error_limit: float | None = None
    threads: int = 1

    @property
    def problem(self) -> str:
        return self.workload.text

    @property
    def machine(self) -> str:
        return self.on.name

    @property
    def conv(self) -> Conv:
        """The problem, which is a convolution where an algorithm of those describes its plan."""
        assert isinstance(self.workload, Conv)
        return self.workload

    @property
    def launch(self) -> GpuSchedule:
        """The schedule, which is a launch where an algorithm of GPUs describes its plan."""
        assert isinstance(self.schedule, GpuSchedule)
        return self.schedule

    @property
    def kernel(self) -> str:
        return self.schedule.kernel

    @property
    def tile(self) -> dict[str, int]:
        return self.schedule.tile

    @property
    def name(self) -> str:
        """The plan as one word, which `pysim run PROBLEM --plan NAME` and `pysim.plan(problem, name=NAME)` make this plan of again."""
        return name_of(self.algorithm, self.schedule)

    @property
    def seconds(self) -> float | None:
        """Predicted seconds; the slicing analysis has none."""
        return self.cost.seconds if isinstance(self.cost, Cost) else None

    def __repr__(self) -> str:
        predicted = f"{self.seconds:.3g} s" if self.seconds is not None else "slicing analysis"
        return f"<Plan of {self.problem} on {self.machine}: {self.name}, {predicted}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of a plan: bytes, cycles and seconds under the names that `docs` promises."""
        return {
            "name": self.name,
            "problem": self.problem,
            "machine": self.machine,
            "model": self.model,
            "state": self.state,
            "algorithm": self.algorithm,
            "kernel": self.kernel,
            "schedule": self.schedule.kind,
            **({"pack": self.schedule.pack} if isinstance(self.schedule, Schedule) else {}),
            **_product_of(self.schedule),
            "threads": self.threads,
            "layout": self.layout,
            **({"memory_limit_bytes": self.memory_limit} if self.memory_limit is not None else {}),
            "tile": self.tile,
            "workspace_bytes": self.workspace_bytes,
            "needs_finite": self.needs_finite,
            "accuracy": self.accuracy,
            **({"error_limit": self.error_limit} if self.error_limit is not None else {}),
            "error": self.error,
            "cost": msgspec.to_builtins(self.cost),
            "assumed": list(self.assumed),
            "rejected": [msgspec.to_builtins(item) for item in self.rejected],
            "considered": [item.to_dict() for item in self.considered],
        }


def on_cpu(plan: Plan) -> tuple[Schedule, Machine]:
    """The schedule and machine of a plan for a CPU; PlanError for one of a GPU."""
    if isinstance(plan.schedule, Schedule) and isinstance(plan.on, Machine):
        return plan.schedule, plan.on
    raise PlanError(f"the plan of {plan.problem} is for {plan.machine}, a GPU; a CPU's is needed here")
