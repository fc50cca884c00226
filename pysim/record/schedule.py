# SPDX-License-Identifier: Apache-2.0
"""Schedules: what a run obeys, field for field the structs `pysim_schedule`, `pysim_cuda_schedule` and
`pysim_cuda_conv_schedule` of `native/pysim.h`."""

from typing import Literal

import msgspec

Stationary = Literal["input_stationary", "weight_stationary"]
STATIONARY: tuple[Stationary, ...] = ("input_stationary", "weight_stationary")
PACK = ("none", "tiles")


class Schedule(msgspec.Struct, frozen=True):
    """Tiles of `windows` x `filters` outputs over sets of `channels` input channels (SPEC A.1, A.6).

    `k2` streamed tiles form an L2 set and `k3` stationary tiles an L3 set: under input_stationary filter tiles stream past each
    input tile, under weight_stationary input tiles stream past each filter tile. `pack` is "none" where the micro-kernel reads
    the operand in place.
    """

    kernel: str
    stationary: Stationary
    pack: Literal["none", "tiles"]
    windows: int
    filters: int
    channels: int
    k2: int
    k3: int

    @property
    def kind(self) -> str:
        """What the documents call "schedule"."""
        return self.stationary


Decomposition = Literal["data_parallel", "split_k", "stream_k"]
DECOMPOSITIONS: tuple[Decomposition, ...] = ("data_parallel", "split_k", "stream_k")


class GpuSchedule(msgspec.Struct, frozen=True):
    """A launch of one CUDA kernel, field for field the struct `pysim_cuda_schedule`; tiles and steps are the kernel's own.

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


class GpuConvSchedule(msgspec.Struct, frozen=True):
    """A convolution on a GPU, field for field the struct `pysim_cuda_conv_schedule`: a row of convs.inc, a row of gemms.inc where that
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
