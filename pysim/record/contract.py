# SPDX-License-Identifier: Apache-2.0
"""The numeric contract of a plan: which roundings its results have, in which order.

Two plans of one layer with equal contracts give the same bits, whatever their tiles, layouts, instructions, threads and batch; plans with
different contracts need not.
"""

from typing import Literal

import msgspec

Family = Literal["chain", "winograd 2x2 3x3", "whole numbers"]


class Contract(msgspec.Struct, frozen=True):
    """How the sum of a result is rounded.

    chain             fused multiply-adds, one after another, from 0: along kernel rows, then channels, then kernel columns; of a product
                      along k. Channels are in sets of `channels`; a set's chain is added to the sum of those before. Then the bias, the
                      residual and the activation follow, each rounded once
    winograd 2x2 3x3  F(2x2, 3x3) with points 0, 1, -1, infinity; each of the 16 sums of products is such a chain along `channels`
    whole numbers     sums of bytes are exact, in any order
    """

    family: Family
    channels: int

    def __str__(self) -> str:
        return self.family if self.family == "whole numbers" else f"{self.family}, {self.channels} channels"
