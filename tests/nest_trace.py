# SPDX-License-Identifier: Apache-2.0
"""An independent account of what a schedule touches: the macro-kernel's loops line by line, through exact LRU caches.

Buffers are contiguous and start on pages. Slow (about a million lines a second), so for small problems only.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from pysim.cachemodel.cpu.nest import Nest, ceil_div
from pysim.machine.cpu import Level
from pysim.record.schedule import Schedule

PAGE = 4096


class Lru:
    """A set-associative, write-back, write-allocate cache; `fills` are lines brought in, `writebacks` dirty lines sent on."""

    def __init__(self, level: Level, below: "Lru | None") -> None:
        self.sets: list[OrderedDict[int, bool]] = [OrderedDict() for _ in range(level.sets)]
        self.ways, self.below = level.ways, below
        self.fills = self.writebacks = 0

    def touch(self, line: int, write: bool) -> None:
        held = self.sets[line % len(self.sets)]
        if line not in held:
            self.fills += 1
            if self.below:
                self.below.touch(line, False)
        self._put(held, line, write)

    def _put(self, held: OrderedDict[int, bool], line: int, dirty: bool) -> None:
        dirty |= held.pop(line, False)
        if len(held) >= self.ways:
            victim, victim_dirty = held.popitem(last=False)
            if victim_dirty:
                self.writebacks += 1
                if self.below:
                    below = self.below
                    below._put(below.sets[victim % len(below.sets)], victim, True)
        held[line] = dirty


Span = tuple[int, int, bool]  # first byte, bytes, write


class Trace:
    """The byte spans that one run of a schedule touches, in order."""

    def __init__(self, nest: Nest, schedule: Schedule) -> None:
        self.nest, self.s = nest, schedule
        size, taps = nest.element_bytes, nest.kernel_h * nest.kernel_w
        self.n_windows, self.n_filters = ceil_div(nest.windows, schedule.windows), ceil_div(nest.filters, schedule.filters)
        self.panel = ceil_div(schedule.channels * taps * schedule.windows * size, 64) * 64
        self.filter_panel = ceil_div(schedule.channels * taps * schedule.filters * size, 64) * 64
        self.group_filters = self.n_filters * schedule.filters * nest.channels * taps * size
        spaces = (
            nest.repeats * nest.channels * nest.plane_bytes,
            nest.groups * self.group_filters,
            nest.repeats * nest.windows * nest.filters * nest.out_bytes,
            self.n_windows * self.panel,
        )
        starts = [0]
        for space in spaces:
            starts.append(starts[-1] + ceil_div(space, PAGE) * PAGE)
        self.input, self.filters, self.output, self.windows_at, self.filters_at = starts

    def spans(self) -> Iterator[Span]:
        nest, s = self.nest, self.s
        loops = self._input_stationary if s.stationary == "input_stationary" else self._weight_stationary
        for image in range(nest.repeats):
            for c0 in range(0, nest.channels, s.channels):
                yield from loops(image, c0, min(s.channels, nest.channels - c0))

    def _input_stationary(self, image: int, c0: int, nc: int) -> Iterator[Span]:
        s, keep = self.s, self.n_filters > self.s.k2
        for w3 in range(0, self.n_windows, s.k3):
            for f2 in range(0, self.n_filters, s.k2):
                filters = range(f2, min(f2 + s.k2, self.n_filters))
                yield from self._pack_filters(c0, nc, filters)
                for w in range(w3, min(w3 + s.k3, self.n_windows)):
                    panel = w - w3 if keep else 0
                    if f2 == 0:
                        yield from self._pack_windows(image, c0, nc, w, panel)
                    yield from chain.from_iterable(self._call(image, c0, nc, w, f, panel, f - f2) for f in filters)

    def _weight_stationary(self, image: int, c0: int, nc: int) -> Iterator[Span]:
        s = self.s
        for f3 in range(0, self.n_filters, s.k3):
            filters = range(f3, min(f3 + s.k3, self.n_filters))
            yield from self._pack_filters(c0, nc, filters)
            for w2 in range(0, self.n_windows, s.k2):
                windows = range(w2, min(w2 + s.k2, self.n_windows))
                yield from chain.from_iterable(self._pack_windows(image, c0, nc, w, w - w2) for w in windows)
                for f in filters:
                    yield from chain.from_iterable(self._call(image, c0, nc, w, f, w - w2, f - f3) for w in windows)

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
                        at = self.input + (image * nest.channels + c0 + c) * nest.plane_bytes + (y * nest.width + first) * size
                        yield at, max(0, min(nest.width, reach) - first) * size, False
                    for tap in range(nest.kernel_w):
                        row = ((r - live.start) * nc + c) * nest.kernel_w + tap
                        yield to + (row * self.s.windows + t - begin) * size, count * size, True
                t += count

    def _pack_filters(self, c0: int, nc: int, tiles: range) -> Iterator[Span]:
        nest, size = self.nest, self.nest.element_bytes
        if nest.filters_packed:
            return
        for place, tile in enumerate(tiles):
            for f in range(tile * self.s.filters, min((tile + 1) * self.s.filters, nest.filters)):
                yield self.filters + (f * nest.channels + c0) * size, nc * size, False
            yield self.filters_at + place * self.filter_panel, nc * self.s.filters * size, True

    def _call(self, image: int, c0: int, nc: int, w: int, f: int, panel: int, place: int) -> Iterator[Span]:
        nest, s, size = self.nest, self.s, self.nest.element_bytes
        t0, f0 = w * s.windows, f * s.filters
        width, live = min(s.windows, nest.windows - t0), self.live(w)
        row = s.filters * size
        if nest.filters_packed:
            taps = nest.kernel_h * nest.kernel_w
            filters = self.filters + image % nest.groups * self.group_filters + taps * row * (c0 * self.n_filters + nc * f)
            filters += live.start * nc * nest.kernel_w * row
        else:
            filters = self.filters_at + place * self.filter_panel
        windows, pitch = self.windows_at + panel * self.panel, s.windows * size
        if s.pack == "none":
            windows, pitch = self.input + (image * nest.channels + c0) * nest.plane_bytes + t0 * size, nest.plane_bytes
        for k in range(len(live) * nc * nest.kernel_w):
            yield windows + k * pitch, width * size, False
            yield filters + k * row, row, False
        for g in range(f0, min(f0 + s.filters, nest.filters)):
            at = self.output + ((image * nest.filters + g) * nest.windows + t0) * nest.out_bytes
            yield at, width * nest.out_bytes, True


def simulate(nest: Nest, schedule: Schedule, levels: tuple[Level, ...]) -> list[tuple[int, int]]:
    """(fills, write-backs) of each level in the second of two runs."""
    caches: list[Lru] = []
    for level in reversed(levels):
        caches.insert(0, Lru(level, caches[0] if caches else None))
    line = levels[0].line_bytes
    for _ in range(2):
        for cache in caches:
            cache.fills = cache.writebacks = 0
        for at, size, write in Trace(nest, schedule).spans():
            for index in range(at // line, (at + size - 1) // line + 1):
                caches[0].touch(index, write)
    return [(cache.fills, cache.writebacks) for cache in caches]
