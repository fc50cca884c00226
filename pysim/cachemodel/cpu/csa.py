# SPDX-License-Identifier: Apache-2.0
"""SConv's convolution slicing analysis (CSA): tile sizes, both schedules and their cost, in exact integers.

Source: Ferrari et al., "Advancing Direct Convolution using Convolution Slicing Optimization and ISA Extensions", arXiv 2303.04739,
section 4.1; where its printed equations are lost they follow its prose. B = bytes of an element, W = windows, M = filters,
C = channels of a group, R x S = kernel; a tile is `windows` (N_win) x `filters` (N_f) outputs over N_c channels.

    (1)  |I_T| = N_win N_c R S B      |F_T| = N_f N_c R S B      |O_T| = N_win N_f B
    (2)  |I_T| + |F_T| + |O_T| <= alpha L1
    (3)  n_C = ceil(C / N_c)          n_I = ceil(W / N_win)      n_F = ceil(M / N_f)
Input stationary (IS); weight stationary (WS) exchanges I and F everywhere below:
    (4)  |I_T| + K2 |F_T| + K2 |O_T| <= alpha L2                       1 <= K2 <= n_F
    (5)  K3 |I_T| + K2 |F_T| + K2 K3 |O_T| <= alpha L3                 1 <= K3 <= n_I
    (6)  cost  = A2 c2 + A3 c3 + Am cm         cache lines by the level that supplies them, times its latency
    (7)  Am    = cold + extra
    (8)  cold  = n_C (n_I |I_T| + n_F |F_T|) / line
    (9)  extra = n_C phi psi n_F |F_T| / line
    (10) phi   = min(ceil(n_F / K2) - 1, 1)
    (11) psi   = ceil(n_I / K3) - 1
    (12) A3    = n_C rho n_I |I_T| / line
    (13) rho   = ceil(n_F / K2) - 1
    (14) A2    = n_C (n_I - 1) n_F |F_T| / line

Every quotient by `line` is rounded up, counts are ceilings, only channels are cut inside a tile. N_c, then K2, then K3 are found by
the paper's halving heuristic (start at the most, halve until the bound holds, at least 1) or as the largest value that fits. Lower
cost wins; equal cost goes to WS, as in the authors' code. A workload of several images or groups is the same nest that many times.

Assumptions: tiles of each level do not conflict (alpha stands for that), packing, stores and prefetch are free. Equation 8 charges
the *packed* input to memory, up to R S times what memory holds; `input_footprint="raw"` charges the padded input itself wherever
input comes from L3 or memory (there it is packed again on the way), and leaves L2 traffic, which is packed, alone.

Worked number: C = M = 64, 56x56, 3x3, tiles of 16 x 8, L1/L2/L3 = 32K/1M/4M, line 128, alpha 0.9, latencies 10/30/300: N_c = 32,
IS has K2 = 8, K3 = 98 and costs 57,600 * 300 + 224,640 * 10 = 19,526,400; WS has K2 = 49, K3 = 8 and costs 21,335,040.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Literal, NamedTuple

from pysim.cachemodel.cpu.nest import Nest, ceil_div
from pysim.machine.cpu import Csa
from pysim.record.cost import CsaCost
from pysim.record.plan import Footprint
from pysim.record.schedule import Stationary

Search = Literal["halving", "exact"]


class Choice(NamedTuple):
    """One schedule: its tile sizes, its tile counts and its cost."""

    stationary: Stationary
    channels: int
    k2: int
    k3: int
    channel_sets: int
    window_tiles: int
    filter_tiles: int
    cost: CsaCost


def budgets(p: Csa) -> tuple[int, int, int]:
    """Whole bytes that tiles may fill in each cache: alpha times its size, alpha read as the decimal that it prints as."""
    alpha = Fraction(str(p.alpha))
    return int(alpha * p.l1_bytes), int(alpha * p.l2_bytes), int(alpha * p.l3_bytes)


def halving(limit: int, fits: Callable[[int], bool]) -> int:
    """The first of limit, limit // 2, limit // 4 … that fits, at least 1 (the paper's heuristic)."""
    value = limit
    while value > 1 and not fits(value):
        value //= 2
    return max(value, 1)


def exact(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest value of 1..limit that fits, by bisection, and 1 if none does; whatever fits must fit when smaller."""
    return max(1, bisect_left(range(1, limit + 1), True, key=lambda value: not fits(value)))


def tile_bytes(nest: Nest, p: Csa, channels: int) -> tuple[int, int, int]:
    """(|I_T|, |F_T|, |O_T|) of equation 1 in bytes."""
    depth = channels * nest.taps * nest.element_bytes
    return p.windows * depth, p.filters * depth, p.windows * p.filters * nest.result_bytes


def schedule(nest: Nest, p: Csa, stationary: Stationary, search: Search = "halving", footprint: Footprint = "packed") -> Choice:
    """Tile sizes (equations 2, 4, 5) and cost (6-14) of one schedule."""
    largest = halving if search == "halving" else exact
    l1, l2, l3 = budgets(p)
    per_channel = (p.windows + p.filters) * nest.taps * nest.element_bytes
    room = l1 - p.windows * p.filters * nest.result_bytes
    channels = largest(nest.group_channels, lambda n: n * per_channel <= room)
    input_tile, filter_tile, out = tile_bytes(nest, p, channels)
    tiles = ceil_div(nest.windows, p.windows), ceil_div(nest.group_filters, p.filters)
    keeps_input = stationary == "input_stationary"
    kept, streamed = (input_tile, filter_tile) if keeps_input else (filter_tile, input_tile)
    n_kept, n_streamed = tiles if keeps_input else tiles[::-1]
    k2 = largest(n_streamed, lambda k: kept + k * (streamed + out) <= l2)
    k3 = largest(n_kept, lambda k: k * kept + k2 * streamed + k * k2 * out <= l3)
    sets = ceil_div(nest.group_channels, channels)
    passes = sets * n_kept * kept, sets * n_streamed * streamed  # bytes of each operand, all channel sets
    more_sets, more_passes = ceil_div(n_streamed, k2) - 1, ceil_div(n_kept, k3) - 1  # rho, psi
    supplied = passes
    if footprint == "raw":
        raw = nest.group_channels * nest.span_h * nest.span_w * nest.element_bytes
        supplied = (raw, passes[1]) if keeps_input else (passes[0], raw)

    def lines(size: int) -> int:
        return nest.repeats * ceil_div(size, p.line_bytes)

    cold = lines(sum(supplied))
    extra = lines(min(more_sets, 1) * more_passes * supplied[1])
    from_l3 = lines(more_sets * supplied[0])
    from_l2 = lines((n_kept - 1) * passes[1])
    c2, c3, cm = (Fraction(str(of.value)) for of in (p.l2_latency_cycles, p.l3_latency_cycles, p.memory_latency_cycles))
    cost = CsaCost(cold, extra, from_l3, from_l2, math.ceil(from_l2 * c2 + from_l3 * c3 + (cold + extra) * cm))
    return Choice(stationary, channels, k2, k3, sets, *tiles, cost)


def schedules(nest: Nest, p: Csa, search: Search = "halving", footprint: Footprint = "packed") -> tuple[Choice, Choice]:
    """Both schedules: (input stationary, weight stationary)."""
    return schedule(nest, p, "input_stationary", search, footprint), schedule(nest, p, "weight_stationary", search, footprint)


def ranked(choices: Iterable[Choice]) -> list[Choice]:
    """The schedules, cheapest first; of equal cost weight stationary first."""
    return sorted(choices, key=lambda choice: (choice.cost.cost, choice.stationary != "weight_stationary"))
