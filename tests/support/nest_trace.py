# SPDX-License-Identifier: Apache-2.0
"""What a schedule touches by its description: the nest's loops as they are walked, through exact LRU caches.

Buffers are contiguous and start on pages. Walked in Python, so for small problems only.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.cpu.incore import rates as rates_of
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, Nest, ceil_div, workspace_bytes
from pysim.cachemodel.cpu.nest_loops import FILTER_TILES, WINDOWS, described
from pysim.cachemodel.cpu.reuse.loops import LoopNest
from pysim.cachemodel.cpu.tables import Table
from pysim.cachemodel.simulator.hierarchy import Cache, Hierarchy
from pysim.machine.cpu import Level
from pysim.machine.load import load
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels

PAGE = 4096
MACHINE = load("zen4")


class Touch(NamedTuple):
    """One step of a nest: the tiles of each of its dimensions that an operand is touched in."""

    operand: str
    tiles: dict[str, range]


def walk(nest: LoopNest) -> Iterator[Touch]:
    """Every touch of the nest of the first column in order: exact at the edges, where a set or a dimension ends early."""
    yield from _walk(nest, 0, {name: range(int(np.ravel(count)[0])) for name, count in nest.total.items()}, ())


def _walk(nest: LoopNest, loop: int, spans: Mapping[str, range], numbers: tuple[int, ...]) -> Iterator[Touch]:
    if loop == len(nest.loops):
        return
    name, tiles = nest.loops[loop].dimension, int(np.ravel(nest.loops[loop].tiles)[0])
    for number, start in enumerate(spans[name][::tiles]):
        inner = {**spans, name: range(start, min(start + tiles, spans[name].stop))}
        here = [
            (one.after_loops, Touch(one.name, {of: inner[of] for of in one.extents}))
            for one, access in zip(nest.operands, nest.accesses, strict=True)
            if access.inside == loop and not (access.only_first >= 0 and (*numbers, number)[access.only_first])
        ]
        yield from (touch for after, touch in here if not after)
        yield from _walk(nest, loop + 1, inner, (*numbers, number))
        yield from (touch for after, touch in here if after)


Span = tuple[int, int, bool]  # first byte, bytes, write


class Trace:
    """The byte spans that one run of a schedule touches, in order."""

    def __init__(self, nest: Nest, schedule: Schedule) -> None:
        self.nest, self.s = nest, schedule
        size, taps = nest.element_bytes, nest.kernel_h * nest.kernel_w
        self.n_windows, self.n_filters = ceil_div(nest.windows, schedule.windows), ceil_div(nest.group_filters, schedule.filters)
        self.panel = ceil_div(schedule.channels * taps * schedule.windows * size, 64) * 64
        self.filter_panel = ceil_div(schedule.channels * taps * schedule.filters * size, 64) * 64
        self.group_filters = self.n_filters * schedule.filters * nest.group_channels * taps * size
        spaces = (
            nest.repeats * nest.group_channels * nest.plane_bytes,
            nest.groups * self.group_filters,
            nest.repeats * nest.windows * nest.group_filters * nest.result_bytes,
        )
        starts = [PAGE]
        for space in spaces:
            starts.append(starts[-1] + ceil_div(space, PAGE) * PAGE)
        self.input, self.filters, self.output, self.windows_at = starts
        sets = min(self.n_filters, schedule.k2 if schedule.stationary == "input_stationary" else schedule.k3)
        panels = 0 if nest.filters_packed else sets * self.filter_panel
        self.filters_at = self.windows_at + workspace_bytes(nest, schedule) - PANEL_ALIGN - panels

    def spans(self) -> Iterator[Span]:
        for _, step in self.steps():
            yield from step

    def steps(self) -> Iterator[tuple[bool, Iterator[Span]]]:
        """What each step of the description touches: packing a tile or a set of them, and (True) a call of the micro-kernel."""
        s, keeps = self.s, self.s.stationary == "input_stationary"
        numbers = (np.array([float(n)]) for n in (s.pack == "tiles", s.channels, s.k2, s.k3))
        rates = rates_of(self.nest, MACHINE, [next(row for row in kernels() if row.name == s.kernel)])
        table = Table(rates, np.array([keeps]), np.zeros(1, dtype=np.int64), *numbers)
        panels = (1 if s.k2 >= self.n_filters else s.k3) if keeps else s.k2
        seen: dict[str, range] = {"images": range(1), "groups": range(1)}
        for operand, tiles in walk(described(table, keeps)):
            seen |= tiles
            image, channels = seen["images"][0] * self.nest.groups + seen["groups"][0], seen["channels"]
            if operand == "input":
                yield (
                    False,
                    chain.from_iterable(self._pack_windows(image, channels[0], len(channels), w, w % panels) for w in tiles[WINDOWS]),
                )
            elif operand == "filters" and not self.nest.filters_packed:
                yield False, self._pack_filters(channels[0], len(channels), tiles[FILTER_TILES])
            elif operand == "output":
                w, f = tiles[WINDOWS][0], tiles[FILTER_TILES][0]
                yield True, self._call(image, channels[0], len(channels), w, f, w % panels, f % (s.k2 if keeps else s.k3))

    def live(self, tile: int) -> range:
        """Kernel rows that meet the image for some window of a tile."""
        nest, first = self.nest, tile * self.s.windows
        rows = range(first // nest.out_w, (min(first + self.s.windows, nest.windows) - 1) // nest.out_w + 1)
        meets = [r for r in range(nest.kernel_h) if any(0 <= self._row(p, r) < nest.height for p in rows)]
        return range(meets[0], meets[-1] + 1) if meets else range(0)

    def _row(self, p: int, r: int) -> int:
        return p * self.nest.stride_h - self.nest.pad_top + r * self.nest.dilation_h

    def _pack_windows(self, image: int, c0: int, nc: int, tile: int, panel: int) -> Iterator[Span]:
        if self.s.pack == "none":
            return
        nest, size = self.nest, self.nest.element_bytes
        begin, end = tile * self.s.windows, min((tile + 1) * self.s.windows, nest.windows)
        to = self.windows_at + panel * self.panel
        if nest.windows_transposed:
            yield from ((self.input + (t * nest.group_channels + c0) * size, nc * size, False) for t in range(begin, end))
            yield from ((to + k * self.s.windows * size, (end - begin) * size, True) for k in range(nc))
            return
        live = self.live(tile)
        for r in live:
            t = begin
            while t < end:
                p, q = divmod(t, nest.out_w)
                count, y = min(end - t, nest.out_w - q), self._row(p, r)
                first = max(0, q * nest.stride_w - nest.pad_left)
                reach = (q + count - 1) * nest.stride_w + (nest.kernel_w - 1) * nest.dilation_w - nest.pad_left + 1
                for c in range(nc):
                    if 0 <= y < nest.height:
                        at = self.input + (image * nest.group_channels + c0 + c) * nest.plane_bytes + (y * nest.width + first) * size
                        yield at, max(0, min(nest.width, reach) - first) * size, False
                    for tap in range(nest.kernel_w):
                        row = ((r - live.start) * nc + c) * nest.kernel_w + tap
                        yield to + (row * self.s.windows + t - begin) * size, count * size, True
                t += count

    def _pack_filters(self, c0: int, nc: int, tiles: range) -> Iterator[Span]:
        nest, size = self.nest, self.nest.element_bytes
        if nest.filters_packed:
            return
        for tile in tiles:
            place = tile % (self.s.k2 if self.s.stationary == "input_stationary" else self.s.k3)
            begin, end = tile * self.s.filters, min((tile + 1) * self.s.filters, nest.group_filters)
            if nest.filters_transposed:
                yield from ((self.filters + (f * nest.group_channels + c0) * size, nc * size, False) for f in range(begin, end))
            else:
                yield from (
                    (self.filters + (k * nest.group_filters + begin) * size, (end - begin) * size, False) for k in range(c0, c0 + nc)
                )
            yield self.filters_at + place * self.filter_panel, nc * self.s.filters * size, True

    def _call(self, image: int, c0: int, nc: int, w: int, f: int, panel: int, place: int) -> Iterator[Span]:
        nest, s, size = self.nest, self.s, self.nest.element_bytes
        t0, f0 = w * s.windows, f * s.filters
        width, live = min(s.windows, nest.windows - t0), self.live(w)
        row = s.filters * size
        if nest.filters_in_place:
            filters = 0  # read one by one
        elif nest.filters_packed:
            taps = nest.kernel_h * nest.kernel_w
            filters = self.filters + image % nest.groups * self.group_filters + taps * row * (c0 * self.n_filters + nc * f)
            filters += live.start * nc * nest.kernel_w * row
        else:
            filters = self.filters_at + place * self.filter_panel
        windows, pitch = self.windows_at + panel * self.panel, s.windows * size
        if s.pack == "none":
            windows, pitch = self.input + (image * nest.group_channels + c0) * nest.plane_bytes + t0 * size, nest.plane_bytes
        if nest.windows_packed:
            windows, pitch = self.input + s.windows * (c0 * self.n_windows + nc * w) * size, s.windows * size
        for k in range(len(live) * nc * nest.kernel_w):
            yield windows + k * pitch, width * size, False
            if nest.filters_in_place:
                yield from self._filters_in_place(c0 + k, range(f0, min(f0 + s.filters, nest.group_filters)))
            else:
                yield filters + k * row, row, False
        for g in range(f0, min(f0 + s.filters, nest.group_filters)):
            at = self.output + ((image * nest.group_filters + g) * nest.windows + t0) * nest.result_bytes
            yield at, width * nest.result_bytes, True

    def _filters_in_place(self, channel: int, filters: range) -> Iterator[Span]:
        nest, size = self.nest, self.nest.element_bytes
        along, across = (1, nest.group_filters) if nest.filters_in_rows_of_k else (nest.group_channels, 1)
        yield from ((self.filters + (f * along + channel * across) * size, size, False) for f in filters)


def simulate(nest: Nest, schedule: Schedule, levels: tuple[Level, ...]) -> list[tuple[int, int]]:
    """(write_allocate_cycles, write-backs) of each level in the second of two runs."""
    caches = [Cache(level.name, level.sets, level.ways, level.line_bytes, fetch_on_writeback=False) for level in levels]
    hierarchy, spans = Hierarchy(caches), np.array(list(Trace(nest, schedule).spans()))
    for _ in range(2):
        counted = hierarchy.run([(spans[:, 0], spans[:, 1].astype(np.int32), spans[:, 2].astype(np.uint8))], warm=True)
    return [(counted[level].misses, counted[level].writebacks) for level in counted]
