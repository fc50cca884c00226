# SPDX-License-Identifier: Apache-2.0
"""The bench that a plan is measured on: operands in memory, our calls on them, and the clock; CPU and GPU differ only here."""

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from pysim.check.bounds import bound_of
from pysim.check.fills import Array, held, unwritten
from pysim.check.reference import Pair, Trial, everywhere, shapes, trial
from pysim.errors import NativeError, OperandError, PlanError
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.measure.clock import Clock, CpuClock, pinned
from pysim.measure.events import Events
from pysim.peers.peer import Operands, Ready, Scratch
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.plan import Layout, Plan
from pysim.record.schedule import GpuSchedule, Schedule
from pysim.registry.cuda import conv_kernels, gemm_kernels
from pysim.runtime import cpu, cpu_launch, cuda
from pysim.runtime.arrays import channels_second, permuted

PROFILED_CALLS = 5


class Bench(Protocol):
    """The operands of one problem, for our plan and for every peer."""

    trial: Trial
    last_level_bytes: int

    def operands(self, exact: bool) -> Operands:
        """The operands of a fill."""

    def copy(self) -> Operands:
        """A copy of the random operands elsewhere in memory."""

    def make(self, plan: Plan, operands: Operands) -> Ready:
        """Prepares a plan as a user would: weights packed once, workspace and output allocated before the first call."""

    def result(self, ready: Ready, operands: Operands) -> Array:
        """The result of a call into an unwritten output, as [N][M][P][Q]."""

    def everywhere(self) -> Pair | None:
        """(A B, |A||B|) of the random fill at every element; None where it is not computed."""

    def clock(self) -> Clock: ...
    def profile(self, plan: Plan) -> dict[str, float]:
        """Seconds of one call by part: packing and micro-kernels."""


def bench_of(plan: Plan, machine: Machine | Gpu, threads: int, seed: int) -> Bench:
    """The bench for a machine's plans; PlanError for a plan of another kind of machine."""
    if isinstance(machine, Gpu) and isinstance(plan.schedule, GpuSchedule):
        if threads != 1:
            raise OperandError(f"threads is {threads}; {machine.name} is a GPU, whose launches one thread makes")
        return GpuBench(plan.workload, machine.l2_bytes.value, plan.layout, seed)
    if not isinstance(machine, Gpu) and isinstance(plan.schedule, Schedule):
        return CpuBench(plan.workload, machine, threads, seed)
    raise PlanError(f"the plan of {plan.problem} is for {plan.machine}; it cannot be measured on {machine.name}")


class CpuBench:
    """A bench with NumPy arrays. Emulated plans are only checked."""

    def __init__(self, workload: Workload, machine: Machine, threads: int, seed: int) -> None:
        if workload.dtype not in cpu.RESULT_DTYPES:
            raise OperandError(f"the CPU kernels compute {', '.join(cpu.RESULT_DTYPES)}, not {workload.dtype}")
        self.last_level_bytes, self._threads = machine.levels[-1].size_bytes, threads
        result: Any = cpu.RESULT_DTYPES[workload.dtype]
        self.trial = trial(workload, result, seed=seed)
        self._out = self._empty()

    def _empty(self) -> Array:
        return unwritten(shapes(self.trial.workload).out, self.trial.sums.result)

    def operands(self, exact: bool) -> Operands:
        return Operands(*(self.trial.exact if exact else self.trial.random), self._out)

    def copy(self) -> Operands:
        def elsewhere(array: Array) -> Array:
            other = cpu.aligned(array.shape, array.dtype)
            other[...] = array
            return other

        x, w = map(elsewhere, self.trial.random)
        return Operands(x, w, self._empty())

    def make(self, plan: Plan, operands: Operands) -> Ready:
        """Bound to its arrays, as peers are; lab/benchmarks/call_overhead.py measures the overhead of Python calls."""
        launch, arrays = self._launch(plan, operands)
        call = partial(launch.run, *arrays)
        if launch.executor.kind == "local":
            call = launch.step(*arrays, cpu.aligned(launch.workspace_bytes, np.uint8)).bound()
        return Ready(call, "", plan.workspace_bytes, bound_of(plan))

    def _launch(self, plan: Plan, operands: Operands) -> tuple[Any, tuple[Array, ...]]:
        """A plan's launch, and the arrays of its runs."""
        x, w, out = operands[:3]
        if isinstance(plan.workload, Gemm):
            product = cpu_launch.Launch.of(plan, self._threads)
            if not product.prepared_bytes:
                return product, (x, w, out)
        return cpu_launch.Prepared.of(plan, w, threads=self._threads), (x, out)

    def result(self, ready: Ready, operands: Operands) -> Array:
        operands.out[...] = self._empty()
        (ready.write or ready.call)()
        found: Array = operands.out
        return found

    def everywhere(self) -> None:
        return None

    def clock(self) -> Clock:
        return CpuClock(self._threads)

    def profile(self, plan: Plan) -> dict[str, float]:
        """Medians over a few calls, including the cost of reading clocks inside."""
        launch, arrays = self._launch(plan, self.operands(exact=False))
        with pinned(self._threads):
            calls = [launch.profile(*arrays) for _ in range(PROFILED_CALLS + 1)]
        return {name: float(np.median([call[name] for call in calls[1:]])) for name in calls[0]}


class GpuBench:
    """A bench with device memory, for a convolution in a layout. `made` gives an existing trial."""

    def __init__(
        self, workload: Workload, last_level_bytes: int, layout: Layout = "nchw", seed: int = 0, made: Callable[[], Trial] | None = None
    ) -> None:
        self.last_level_bytes, self._layout, self._type = last_level_bytes, layout, cuda.result_of(workload.dtype)
        self.trial = made() if made else trial(workload, held(self._type), on_gpu=True, seed=seed)
        self._permuted = layout == "nhwc" and isinstance(workload, Conv)
        self._scratch = Scratch()
        self._empty = self._in_layout(unwritten(shapes(workload).out, self.trial.sums.result))
        self._random = self.copy()
        self._exact = self._random._replace(x=self._sent(self.trial.exact[0]), w=self._sent(self.trial.exact[1]))

    def _in_layout(self, array: Array) -> Array:
        """The array in the device's layout."""
        return np.ascontiguousarray(array.transpose(permuted(array.ndim)) if self._permuted else array)

    def _sent(self, array: Array) -> cuda.DeviceArray:
        lies, dtype = self._in_layout(array), self.trial.workload.dtype
        return cuda.DeviceArray(lies.shape, "f32" if dtype in ("tf32", "tf32x3") else dtype).fill(lies)

    def operands(self, exact: bool) -> Operands:
        return self._exact if exact else self._random

    def copy(self) -> Operands:
        x, w = map(self._sent, self.trial.random)
        return Operands(x, w, cuda.DeviceArray(self._empty.shape, self._type), self._layout, self._scratch)

    def make(self, plan: Plan, operands: Operands) -> Ready:
        launch = self.launch(plan.schedule, operands)
        return Ready(launch.run, "", plan.workspace_bytes, bound_of(plan))

    def launch(self, schedule: Any, operands: Operands) -> Any:
        """A launch bound to operands."""
        return cuda.Launch(self.trial.workload, schedule, result=self._type, layout=self._layout).on(operands.pointers)

    def result(self, ready: Ready, operands: Operands) -> Array:
        operands.out.fill(self._empty)
        (ready.write or ready.call)()
        cuda.synchronize()
        found: Array = operands.out.read(np.empty(self._empty.shape, self._empty.dtype))
        return found.transpose(channels_second(found.ndim)) if self._permuted else found

    def everywhere(self) -> Pair:
        return self._everywhere

    @cached_property
    def _everywhere(self) -> Pair:
        def loops(x: Array, w: Array) -> Array:
            for array, values in ((self._random.x, x), (self._random.w, w)):
                array.fill(self._in_layout(values))
            return self.result(Ready(launch.reference, ""), self._random)

        launch = self._any_launch()
        return everywhere(self.trial, loops)

    def _any_launch(self) -> Any:
        """Any launch for the problem: the device's reference loops read the problem from it."""
        dtype, found = self.trial.workload.dtype, list[GpuSchedule]()
        if isinstance(self.trial.workload, Gemm):
            found += [GpuSchedule(row.name, "data_parallel", 1, False, 1) for row in gemm_kernels() if row.dtype == dtype]
        else:
            rows = [row for row in conv_kernels() if row.dtype == dtype and not row.makes_product and not row.ablation]
            rows.sort(key=lambda row: not row.tiles.rows)  # those without tiles are for few channels a group
            found += [GpuSchedule(row.name, "data_parallel", 1, False, 1) for row in rows]
        for schedule in found[:-1]:
            with suppress(NativeError):
                return self.launch(schedule, self._random)
        return self.launch(found[-1], self._random)

    def clock(self) -> Clock:
        return Events()

    def profile(self, plan: Plan) -> dict[str, float]:
        raise OperandError(f"a profile splits the time of a CPU's call; {plan.machine} is a GPU")


def release() -> None:
    """Frees the device memory of a problem's candidates, PyTorch's too."""
    gc.collect()
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()
