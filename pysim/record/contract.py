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


class GpuContract(msgspec.Struct, frozen=True):
    """The same of a launch on a GPU. Results have the same bits on every GPU of one type.

    sums   chain: fused multiply-adds of the type, one after another, from 0. Chains of so many lanes, each of so many k in turn: those of a
           warp added in pairs 16, 8, 4, 2 and 1 lanes apart, then warp by warp. A type "on mma" or "on wgmma": those instructions of tensor
           cores, one after another, from 0; in parts (halves, thirds) in the order of the source, and after so much of k a sum in f32.
           F(m x m, 3x3): a chain along channels for each plane, by the transforms of one kernel. whole numbers: exact, in any order
    order  of k: what changes slowest comes first
    parts  of k, each summed by itself; then they are added in their order. Each part has whole k-iterations of `unit`, as even as possible:
           part p of P has those from floor(p n / P) to floor((p + 1) n / P) of n
    last   what the epilogue adds last, of a bias and a residual
    """

    sums: str
    order: str = ""
    parts: int = 1
    unit: int = 1
    last: Literal["bias", "residual"] = "bias"

    def __str__(self) -> str:
        order = f" along {self.order}" if self.order else ""
        parts = f", {self.parts} parts of whole {self.unit}" if self.parts > 1 else ""
        return f"{self.sums}{order}{parts}, {self.last} last" if self.order else self.sums
