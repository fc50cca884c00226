# SPDX-License-Identifier: Apache-2.0
"""Schedule: the loop nest of one plan, field for field the struct `pysim_schedule` of `native/pysim.h`."""

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
