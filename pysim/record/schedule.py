# SPDX-License-Identifier: Apache-2.0
"""Schedules: what a run obeys, field for field the structs `pysim_schedule` and `pysim_cuda_schedule` of
`native/pysim.h`."""

from typing import Literal

import msgspec

from pysim.errors import PlanError
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernel, gemm_kernel

Stationary = Literal["input_stationary", "weight_stationary"]
STATIONARY: tuple[Stationary, ...] = ("input_stationary", "weight_stationary")
PACK = ("none", "tiles")


class Schedule(msgspec.Struct, frozen=True):
    """Tiles of `windows` x `filters` outputs over sets of `channels` input channels (SPEC A.1, A.6).

    `k2` streamed tiles form an L2 set and `k3` stationary tiles an L3 set: under input_stationary filter tiles stream past each
    input tile, under weight_stationary input tiles stream past each filter tile. `pack` is "none" where the micro-kernel reads
    the operand in place. `algorithm` is a line of `native/algorithms.inc`, None the problem's first, which is the loop nest itself;
    `outputs` is m of an algorithm that transforms tiles of m x m of them.
    """

    kernel: str
    stationary: Stationary
    pack: Literal["none", "tiles"]
    windows: int
    filters: int
    channels: int
    k2: int
    k3: int
    algorithm: str | None = None
    outputs: int | None = None

    @property
    def kind(self) -> str:
        """What the documents call "schedule"."""
        return self.stationary

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiles and of their sets."""
        outputs = {} if self.outputs is None else {"outputs": self.outputs}
        return {name: getattr(self, name) for name in ("windows", "filters", "channels", "k2", "k3")} | outputs


Decomposition = Literal["data_parallel", "split_k", "stream_k"]
DECOMPOSITIONS: tuple[Decomposition, ...] = ("data_parallel", "split_k", "stream_k")


class GpuSchedule(msgspec.Struct, frozen=True):
    """A launch of one CUDA kernel, field for field the struct `pysim_cuda_schedule` but for `gemm`; tiles and steps are the kernel's own.

    `splits` is 1 for data_parallel, the parts of k for split_k, the blocks that share all k steps for stream_k. Blocks walk along
    n if `along_n`, else along m, and take in `group` tiles of the other direction at once.
    """

    kernel: str
    decomposition: Decomposition
    splits: int
    along_n: bool
    group: int

    @property
    def kind(self) -> str:
        """What the documents call "schedule"."""
        return self.decomposition

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the kernel's tiles, and how the launch walks them."""
        return _tile_of_row(gemm_kernel(self.kernel)) | _walk(self)


class GpuConvSchedule(msgspec.Struct, frozen=True):
    """A convolution on a GPU, field for field the struct `pysim_cuda_schedule`: a row of conv/, a row of gemm/ where that
    makes products (else None), and how the tiles of either are divided and walked, as in `GpuSchedule`; along n is along windows under
    NCHW, along filters under NHWC and with wgmma. `splits` of a staged row, which is data parallel, are its chunks of windows.
    """

    kernel: str
    gemm: str | None
    decomposition: Decomposition
    splits: int
    along_n: bool
    group: int

    @property
    def kind(self) -> str:
        """What the documents call "schedule"."""
        return self.decomposition

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiles of the kernel that multiplies, and how the launch walks them."""
        return _tile_of_row(gemm_kernel(self.gemm) if self.gemm else conv_kernel(self.kernel)) | _walk(self)


AnySchedule = Schedule | GpuSchedule | GpuConvSchedule


def _tile_of_row(row: GemmKernel | ConvKernel | None) -> dict[str, int]:
    """The sizes among a registry row's columns; none of a row that the registry lacks."""
    return row.tile if row else {}


def _walk(schedule: GpuSchedule | GpuConvSchedule) -> dict[str, int]:
    return {"splits": schedule.splits, "along_n": int(schedule.along_n), "group": schedule.group}


# Names: `<algorithm>,<field>=<value>,...`, whole plans as one word


def name_of(algorithm: str, schedule: AnySchedule) -> str:
    """A text from which `from_name` and the algorithm make the same schedule."""
    fields = ((field, getattr(schedule, field)) for field in schedule.__struct_fields__ if field != "algorithm")
    return ",".join([algorithm, *(f"{field}={value}" for field, value in fields if value is not None)])


def from_name(name: str) -> tuple[str, AnySchedule]:
    """(algorithm, schedule) of a plan's name; PlanError says what is wrong with a text that is none."""
    algorithm, *pairs = str(name).split(",")
    fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if not algorithm or "kernel" not in fields or len(fields) != len(pairs):
        raise PlanError(f'"{name}" is no plan\'s name, which is algorithm,field=value,... as `plan.name` and the JSON documents have it')
    kind: type[AnySchedule] = GpuConvSchedule if conv_kernel(fields.get("kernel", "")) else GpuSchedule
    kind = Schedule if "stationary" in fields else kind
    known = [field for field in kind.__struct_fields__ if field != "algorithm"]
    if unknown := set(fields) - set(known):
        raise PlanError(f'plan "{name}": a schedule has no field {", ".join(sorted(unknown))}; it has {", ".join(known)}')
    without = {"gemm": None} if kind is GpuConvSchedule else {}
    try:
        return algorithm, msgspec.convert(without | fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise PlanError(f'plan "{name}": {error}') from None
