# SPDX-License-Identifier: Apache-2.0
"""A plan as a value: schedule, predicted cost, alternatives, and the assumed numbers behind the cost."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy, ErrorScale
from pysim.record.contract import Contract, GpuContract
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
# CPU only: channels in blocks, [N][C/c][H][W][c], of input and output or of the output alone.
BLOCKED: tuple[Layout, ...] = ("nchw4c", "nchw8c", "nchw16c", "nchw-nchw4c", "nchw-nchw8c", "nchw-nchw16c")


@cache
def blocks_of(layout: Layout) -> tuple[int, int]:
    """Channels per block of the input and of the output; 1 under nchw and nhwc, whose blocks are those of `native_blocks`."""
    first, _, second = layout.partition("-")
    return _block(first), _block(second or first)


def _block(layout: str) -> int:
    return int(layout[4:-1]) if layout[4:] else 1


def blocked_shape(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """The shape of [N][C][H][W] with channels in blocks."""
    return shape if block == 1 else (shape[0], shape[1] // block, *shape[2:], block)


def native_blocks(w: Conv, layout: Layout) -> tuple[int, int]:
    """`blocks_of`, where channels last are one block of all of them."""
    return (w.channels, w.filters) if layout == "nhwc" else blocks_of(layout)


def lying(shape: tuple[int, ...], layout: Layout, block: int) -> tuple[int, ...]:
    """The shape of [N][C][H][W] as a CPU's layout has it."""
    return (shape[0], *shape[2:], shape[1]) if layout == "nhwc" else blocked_shape(shape, block)


MicroKernel = str | tuple[int, int] | None  # a kernel's name, or windows x filters (on a GPU a block's rows x columns)


def named(micro_kernel: MicroKernel) -> str:
    """Its text, such as 4x16."""
    return "x".join(map(str, micro_kernel)) if isinstance(micro_kernel, tuple) else str(micro_kernel)


class Request(msgspec.Struct, frozen=True, cache_hash=True):
    """A request for a plan: everything that the choice depends on, from the API and the commands down to the algorithms.

    layout           of a convolution's input and output
    state            of the caches at the start, for the full model only
    micro_kernel     restricts the full model to kernels of this tile ("4x16", windows x filters; on a GPU "128x128", the tile of a block)
                     or of this name; under CSA it replaces the machine's tile
    schedule         only this schedule
    input_footprint  "packed" or "raw", for CSA (`pysim/cachemodel/cpu/csa.py`) only
    accuracy         "standard": any plan; "strict": plans whose stated error is at most that of a direct sum of the type; "ieee": plans
                     that multiply and add in the type itself (`pysim.algorithms.accuracy`); "reproducible": plans that keep the layer's
                     numeric contract (`pysim.algorithms.reproducible`)
    error_limit      the largest error over the result's root mean square that a plan may state
    threads          threads of a CPU that share the run; the plan is the best for that many (`pysim.planner.threads`)
    prepared         whether B of a product is prepared once, as the weights of a convolution always are; the cost leaves that out
    quantised        whether operands or results have scales or zero points, which the run applies (`pysim.record.integers`)
    to_bytes         whether sums of bytes are rescaled to bytes where they are stored, which takes whole sums
    prologue         whether a GPU scales, shifts and bounds a convolution's input as it reads it (`pysim_cuda_prologue`)
    algorithm        only this algorithm
    memory_limit     the most bytes of workspace
    contract         that plans must keep; None: any
    parts            on a GPU: the only numbers of parts of k that are candidates; none: those that may be fast
    most             None for the best schedule of each kind; cycles, if only the best of all is needed, and that within so many
    bounded          whether nearly all weights of bytes fit products added in 16 bits; rows of form bounded are candidates only then
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
    quantised: bool = False
    to_bytes: bool = False
    prologue: bool = False
    algorithm: str | None = None
    memory_limit: int | None = None
    contract: Contract | GpuContract | None = None
    parts: tuple[int, ...] = ()
    most: float | None = None
    bounded: bool = False

    @property
    def cpu(self) -> Machine:
        """The machine, for algorithms of CPUs."""
        assert isinstance(self.machine, Machine)
        return self.machine

    @property
    def gpu(self) -> Gpu:
        """The machine, for algorithms of GPUs."""
        assert isinstance(self.machine, Gpu)
        return self.machine

    @property
    def conv(self) -> Conv:
        """The problem, for algorithms of convolutions."""
        assert isinstance(self.problem, Conv)
        return self.problem

    @property
    def caches(self) -> State:
        """The state by the operands of the problem's loop nest."""
        if isinstance(self.problem, Conv) or self.state not in ("chained", "first in turns"):
            return self.state
        if self.state == "first in turns":
            return "first in turns matrix"
        return "chained matrix" if self.prepared else "chained values"

    @property
    def reproducible(self) -> bool:
        """Whether only plans that keep the layer's contract are asked for (`pysim.algorithms.reproducible`)."""
        return self.accuracy == "reproducible"

    @property
    def any_error(self) -> bool:
        """Whether all algorithms are accurate enough."""
        return self.accuracy == "standard" and self.error_limit is None


def _product_of(schedule: AnySchedule) -> dict[str, str | None]:
    """The document's entry for the GEMM row that a GPU convolution uses, if any."""
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
    """What to run and why: the schedule of the macro-kernel or launch, its predicted cost, and the rejected kernels.

    `considered`: the best schedule of each kind, including the chosen one. It and `rejected` may be computed when they are first read
    (`pysim.record.later`). `assumed`: paths of the machine's numbers behind the cost that
    were neither measured nor published. `workspace_bytes`: per thread (per launch on a GPU). `layout`: of a convolution's input and output.
    `memory_limit`: allowed bytes of workspace. `needs_finite`: the operands that must be finite for the result of the definition (otherwise
    it may be NaN), an entry of NEEDS_FINITE ("filters": only if the problem is padded). `error`: the algorithm's stated largest error over
    the result's root mean square, against float64, for operands in [-1, 1); one random draw in a hundred may exceed it
    (`pysim.algorithms.accuracy`). `error_scale`: where operands differ much in size, the error of a result is relative to its products, to
    the largest input of its window, or to that of its tile. `contract`: plans of a layer with the same one give the same
    bits; None if they depend on more than the layer. `accuracy` and `error_limit` are the request's. The cost is for `threads`
    threads of a CPU.
    """

    workload: Workload
    on: Machine | Gpu
    model: ModelName
    state: State
    algorithm: str
    schedule: AnySchedule
    workspace_bytes: int
    cost: Cost | CsaCost
    considered: Sequence[Considered]
    rejected: Sequence[Rejected]
    assumed: tuple[str, ...] = ()
    layout: Layout = "nchw"
    memory_limit: int | None = None
    needs_finite: Finite = "nothing"
    error: float = 0.0
    error_scale: ErrorScale = "products"
    contract: Contract | GpuContract | None = None
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
        """The problem of a convolution's plan."""
        assert isinstance(self.workload, Conv)
        return self.workload

    @property
    def launch(self) -> GpuSchedule:
        """The schedule of a GPU's plan."""
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
        """The plan as one word; `pysim run PROBLEM --plan NAME` and `pysim.plan(problem, name=NAME)` recreate the plan from it."""
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
            "error_scale": self.error_scale,
            **({"contract": str(self.contract)} if self.contract else {}),
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
