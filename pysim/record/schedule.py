# SPDX-License-Identifier: Apache-2.0
"""Schedules: the parameters of a run, field for field the structs `pysim_schedule` of `native/pysim.h` and
`pysim_cuda_schedule` of `native/pysim_cuda.h`."""

from typing import Annotated, Literal

import msgspec

from pysim.errors import PlanError, quoted
from pysim.problem.fields import INT64_MAX
from pysim.registry.cuda import conv_kernel, gemm_kernel

Stationary = Literal["input_stationary", "weight_stationary"]
STATIONARY: tuple[Stationary, ...] = ("input_stationary", "weight_stationary")
PACK = ("none", "tiles")
Size = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]  # the struct's range; planning checks what the problem allows


class Schedule(msgspec.Struct, frozen=True):
    """Tiles of `windows` x `filters` outputs over sets of `channels` input channels (arXiv 2303.04739).

    `k2` streamed tiles form an L2 set and `k3` stationary tiles an L3 set: under input_stationary filter tiles stream past each
    input tile, under weight_stationary input tiles stream past each filter tile. `pack`: "none" if the micro-kernel reads the operand in
    place. `algorithm`: a line of `native/algorithms.inc`; None is the problem's first, the loop nest itself. `outputs`: m of an algorithm
    that transforms tiles of m x m outputs; the rows or pixels of half a block of one that halves problems.
    """

    kernel: str
    stationary: Stationary
    pack: Literal["none", "tiles"]
    windows: Size
    filters: Size
    channels: Size
    k2: Size
    k3: Size
    algorithm: str | None = None
    outputs: Size | None = None

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


class GpuSchedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A launch on a GPU, field for field the struct `pysim_cuda_schedule`; tile sizes are the kernel's own.

    `kernel`: a row of native/cuda/gemm, or of native/cuda/conv for a convolution. `gemm`: the row of native/cuda/gemm of a convolution
    algorithm that makes products; of residues the row that computes operands outside its bound, in this decomposition. `splits`: 1 for
    data_parallel, the parts of k for split_k, the blocks that share all k-iterations for stream_k; for a staged row (always data_parallel),
    its chunks of windows. Rasterisation runs along n if `along_n`, else along m, in strips of `group` tiles. In a convolution n is the
    windows under NCHW, the filters under NHWC and with wgmma.
    """

    kernel: str
    decomposition: Decomposition
    splits: int
    along_n: bool
    group: int
    gemm: str | None = None

    @property
    def kind(self) -> str:
        """What the documents call "schedule"."""
        return self.decomposition

    @property
    def tile(self) -> dict[str, int]:
        """Tile sizes of the kernel that multiplies (none if the registry lacks it), splits and rasterisation."""
        row = gemm_kernel(self.kernel) or gemm_kernel(self.gemm or "") or conv_kernel(self.kernel)
        return (row.tile if row else {}) | {"splits": self.splits, "along_n": int(self.along_n), "group": self.group}


AnySchedule = Schedule | GpuSchedule


# Names: `<algorithm>,<field>=<value>,...`, whole plans as one word


def name_of(algorithm: str, schedule: AnySchedule) -> str:
    """A text from which `from_name` and the algorithm make the same schedule."""
    fields = ((field, getattr(schedule, field)) for field in schedule.__struct_fields__ if field != "algorithm")
    return ",".join([algorithm, *(f"{field}={value}" for field, value in fields if value is not None)])


def from_name(name: str) -> tuple[str, AnySchedule]:
    """(algorithm, schedule) of a plan's name; PlanError says what is wrong with any other text."""
    algorithm, *pairs = str(name).split(",")
    fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if not algorithm or "kernel" not in fields or len(fields) != len(pairs):
        raise PlanError(f"{quoted(name)} is not the name of a plan, algorithm,field=value,..., as in `plan.name` and JSON documents")
    kinds: tuple[type[AnySchedule], ...] = (Schedule, GpuSchedule)
    kind = max(kinds, key=lambda kind: len({*fields} & {*kind.__struct_fields__}))
    known = [field for field in kind.__struct_fields__ if field != "algorithm"]
    if unknown := set(fields) - set(known):
        raise PlanError(f"plan {quoted(name)}: a schedule has no field {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    try:
        return algorithm, msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise PlanError(f"plan {quoted(name)}: {error}") from None
