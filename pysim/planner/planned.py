# SPDX-License-Identifier: Apache-2.0
"""A plan as a value: what to run, what it is predicted to cost, what else was considered, and which numbers nobody measured."""

from functools import lru_cache
from typing import Any, Literal

import msgspec

from pysim.cachemodel.gpu.product import family_name
from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.planner import gpu_conv
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.cost import Cost, CsaCost, Rejected
from pysim.record.schedule import GpuConvSchedule, GpuSchedule, Schedule
from pysim.registry.rows import NEEDS_FINITE, conv_kernel, gemm_attributes, gemm_kernel, kernels

ModelName = Literal["full", "csa"]
State = Literal["hot", "cold"]
STATES = ("hot", "cold")
Layout = Literal["nchw", "nhwc"]
AnySchedule = Schedule | GpuSchedule | GpuConvSchedule
_GPU_TILE = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "thread_m", "thread_n", "stages", "cluster_m", "cluster_n")
_CONV_TILE = (
    "block_filters", "block_windows", "block_k", "warp_filters", "warp_windows", "thread_filters", "thread_windows", "stages", "outputs",
)  # fmt: skip


class Considered(msgspec.Struct, frozen=True):
    """The best schedule of one stationary kind, or on a GPU of one decomposition. Under CSA `exact` has the tile sizes of exact maxima
    beside those of halving."""

    schedule: AnySchedule
    cost: Cost | CsaCost
    exact: tuple[Schedule, CsaCost] | None = None

    def to_dict(self) -> dict[str, Any]:
        document = {"schedule": self.schedule.kind, "tile": tile_of(self.schedule), "cost": msgspec.to_builtins(self.cost)}
        if isinstance(self.schedule, GpuConvSchedule):
            document |= {"kernel": self.schedule.kernel, "gemm": self.schedule.gemm}
        if self.exact:
            document["exact"] = {"tile": tile_of(self.exact[0]), "cost": msgspec.to_builtins(self.exact[1])}
        return document


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and why: the schedule that the macro-kernel or the launch obeys, its predicted cost, and what was turned down.

    `considered` has the best schedule of each stationary kind (decomposition), the chosen one among them. `assumed` are the paths of the
    machine's numbers that the cost leaned on and nobody measured or published. `workspace_bytes` is what one thread (launch) needs. A GPU's
    convolution is of a `layout`, and may have had a limit of workspace.
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
    layout: Layout = "nchw"
    memory_limit: int | None = None

    @property
    def problem(self) -> str:
        return self.workload.text

    @property
    def machine(self) -> str:
        return self.on.name

    @property
    def kernel(self) -> str:
        return self.schedule.kernel

    @property
    def tile(self) -> dict[str, int]:
        return tile_of(self.schedule)

    @property
    def assumed(self) -> tuple[str, ...]:
        if isinstance(self.schedule, GpuConvSchedule) and isinstance(self.on, Gpu):
            product = self.schedule.gemm or gpu_conv.twin(self.kernel)
            lent = f"kernel_attributes.{product}" if not self.schedule.gemm else ""  # a row has its own
            of_product = (path for path in _assumed_of_gpu(self.on, product) if path != lent)
            return (*of_product, *gpu_conv.assumed(self.on, self.kernel))
        if isinstance(self.on, Gpu):
            return _assumed_of_gpu(self.on, self.kernel)
        return _assumed(self.on, self.model, self.kernel.rpartition("__")[2])

    @property
    def needs_finite(self) -> str:
        """What must be finite, an entry of NEEDS_FINITE: else a result may be NaN where the definition has a number."""
        row = conv_kernel(self.kernel) if isinstance(self.schedule, GpuConvSchedule) else None
        needs = NEEDS_FINITE[row.finite] if row else "nothing"
        padded = isinstance(self.workload, Conv) and self.workload.padded
        return needs if padded or needs != "filters" else "nothing"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of a plan: bytes, cycles and seconds under the names that `docs` promises."""
        return {
            "problem": self.problem,
            "machine": self.machine,
            "model": self.model,
            "state": self.state,
            "algorithm": self.algorithm,
            "kernel": self.kernel,
            "schedule": self.schedule.kind,
            **({"pack": self.schedule.pack} if isinstance(self.schedule, Schedule) else {}),
            **({"layout": self.layout, "gemm": self.schedule.gemm} if isinstance(self.schedule, GpuConvSchedule) else {}),
            **({"memory_limit_bytes": self.memory_limit} if self.memory_limit is not None else {}),
            "tile": self.tile,
            "workspace_bytes": self.workspace_bytes,
            "needs_finite": self.needs_finite,
            "cost": msgspec.to_builtins(self.cost),
            "assumed": list(self.assumed),
            "rejected": [msgspec.to_builtins(item) for item in self.rejected],
            "considered": [item.to_dict() for item in self.considered],
        }

    def explain(self) -> str:
        """The loop nest, its tiles against each cache, and why the others lost, as text; on a GPU the hierarchy of tiles."""
        from pysim.explain.cpu import explain
        from pysim.explain.gpu_conv import explain as explain_gpu_conv
        from pysim.explain.gpu_product import explain as explain_gpu

        if isinstance(self.schedule, GpuConvSchedule):
            return explain_gpu_conv(self)
        return explain_gpu(self) if isinstance(self.on, Gpu) else explain(self)

    def run(self, x: Any, w: Any, bias: Any = None, activation: str | None = None, threads: int = 1) -> Any:
        """Runs this very schedule on input x and filters w (or A and B of a matrix product) and returns the output array.

        The plan of a machine whose instructions this CPU lacks runs in an emulator, if there is one (docs/power10.md). Raises
        PlanError where the plan names no micro-kernel, MissingError where no emulator is installed, and whatever `pysim.runtime.cpu`
        (`pysim.runtime.cuda`) raises for operands.
        """
        if isinstance(self.schedule, GpuConvSchedule):
            from pysim.runtime.cuda_conv import run_plan

            assert isinstance(self.workload, Conv)
            return run_plan(self.workload, self.schedule, self.layout, x, w, bias, activation)
        if isinstance(self.schedule, GpuSchedule):
            from pysim.runtime import cuda

            mine, schedule = self.workload, self.schedule
            assert isinstance(mine, Gemm)
            transposed = {"trans_a": mine.trans_a, "trans_b": mine.trans_b}
            return cuda.gemm(x, w, cuda.Fixed(schedule), bias=bias, activation=activation, dtype=mine.dtype, **transposed)
        assert isinstance(self.schedule, Schedule)
        if all(row.name != self.kernel for row in kernels()):
            raise PlanError(f"{self.kernel} is no row of the registry, so this plan can be costed but not run")
        from pysim.runtime import cpu as runtime
        from pysim.runtime.emulated import executor_for

        run: Any = runtime.run_conv if isinstance(self.workload, Conv) else runtime.run_gemm
        return run(self.workload, self.schedule, x, w, bias, activation, threads, executor_for(self.on))


def tile_of(schedule: AnySchedule) -> dict[str, int]:
    if isinstance(schedule, Schedule):
        return {name: getattr(schedule, name) for name in ("windows", "filters", "channels", "k2", "k3")}
    if isinstance(schedule, GpuConvSchedule) and not schedule.gemm:
        found = conv_kernel(schedule.kernel)
        sizes = {name: getattr(found, name) for name in _CONV_TILE} if found else {}
    else:
        row = gemm_kernel(schedule.gemm or "" if isinstance(schedule, GpuConvSchedule) else schedule.kernel)
        sizes = {name: getattr(row, name) for name in _GPU_TILE} if row else {}
    return {**sizes, "splits": schedule.splits, "along_n": int(schedule.along_n), "group": schedule.group}


def on_cpu(plan: Plan) -> tuple[Schedule, Machine]:
    """The schedule and machine of a plan for a CPU; PlanError for one of a GPU."""
    if isinstance(plan.schedule, Schedule) and isinstance(plan.on, Machine):
        return plan.schedule, plan.on
    raise PlanError(f"the plan of {plan.problem} is for {plan.machine}, a GPU; a CPU's is needed here")


@lru_cache(maxsize=64)
def _assumed(machine: Machine, model: str, target: str) -> tuple[str, ...]:
    """Paths of assumed numbers that the model reads; the full model knows no latency but that of a multiply-add."""
    if model == "csa":
        return tuple(path for path in machine.assumed() if path.startswith("csa"))
    others = tuple(f"core.units.{unit.target}" for unit in machine.core.units if unit.target != target)
    return tuple(path for path in machine.assumed() if not path.startswith(("csa", *others)) and not path.endswith(".latency_cycles"))


@lru_cache(maxsize=64)
def _assumed_of_gpu(machine: Gpu, kernel: str) -> tuple[str, ...]:
    """Paths of assumed numbers that the GPU model reads for a kernel: of its own pipe and family; and the kernel, if its registers and
    shared memory were not read from the compiler."""
    row = gemm_kernel(kernel)
    family = f"model.families.{family_name(machine, row)}." if row else ""
    own = {f"fma_per_cycle.{row.pipe}", f"sustained_hz.{row.pipe}"} if row else set()
    own |= {path for path in machine.assumed() if family and path.startswith(family)}
    tables = ("model.families.", "fma_per_cycle.", "sustained_hz.")
    known = kernel in gemm_attributes(machine.capability_number)
    paths = tuple(path for path in machine.assumed() if path in own or not path.startswith(tables))
    return paths if known else (*paths, f"kernel_attributes.{kernel}")
