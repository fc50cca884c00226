# SPDX-License-Identifier: Apache-2.0
"""The sliced nest of tiles as a description (`loops`), and what of its data is used again, how far apart.

    for each set of channels
      for each set of K3 kept tiles
        for each set of K2 streamed tiles          pack the streamed tiles, where the run packs them
          for each kept tile                       pack it at the first set of streamed tiles, where the run packs it
            for each streamed tile                 the micro-kernel

Input stationary keeps tiles of windows and streams tiles of filters, weight stationary the reverse: two orders of one nest. Where kept
windows pass one set of filters only, one panel serves all of them in turn, and the sets of kept tiles are one loop.

Uses. An operand that passes n times by a loop that does not move it is used again n - 1 times at that loop's distance; a panel is written
where the one before lay, and read; raw input is read again where kernel rows overlap and where it is packed again; neighbouring tiles share
the lines between them. After the last use comes the first of the next run, image or group: loop -1.

What is packed waits for the packing of other tiles, the first tile of a set for all of them, the last one for none: such distances count at
PARTS of their range. The first and the last tile of a set are used again after one set of the other operand, those between after two.

Worked number: 28x28 outputs, tiles of 8 windows, K3 = 25: 98 kept tiles in 4 sets. Each of 5 filter tiles passes 98 times: 94 of them at
the distance of a kept tile, 3 at that of a set, and 1 a run after the last.

`doubts` says where a machine or a schedule is not what the closed forms assume.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import Array, Table
from pysim.cachemodel.cpu.loops import PARTS, Access, Extent, Loop, LoopNest, Operand, Use, stacked
from pysim.cachemodel.cpu.nest import PANEL_ALIGN, Nest, live_taps
from pysim.machine.cpu import Machine
from pysim.record.schedule import Schedule
from pysim.record.state import NEVER, State, runs_ago

OPERANDS = ("input", "packed", "filters", "output")  # as levels of a cost name them
INPUT, PACKED, FILTERS, OUTPUT = range(4)
CHANNELS, KEPT_SETS, STREAMED_SETS, KEPT_TILES, STREAMED_TILES = range(5)  # the loops
KEPT, STREAMED, OUTPUTS, RAW_KEPT, RAW_STREAMED = range(5)  # the operands of the nest

# distances: an operand that a loop uses again (an end tile or one between), then while tiles are packed, from one to the next of a
# burst, of other images, of nothing
USES: tuple[tuple[Any, ...], ...] = (
    (KEPT, STREAMED_TILES),
    (STREAMED, KEPT_TILES, False),
    (KEPT, STREAMED_SETS, False),
    (STREAMED, KEPT_SETS),
    (OUTPUTS, CHANNELS),
    (KEPT, -1),
    (STREAMED, -1),
    (OUTPUTS, -1),
    (RAW_KEPT, -1),
    (RAW_STREAMED, -1),
    (RAW_STREAMED, KEPT_SETS),
    (KEPT, STREAMED_SETS, True),
    (STREAMED, KEPT_TILES, True),
)
CALL, PASS, TURN, SETS, AGAIN, RUN_KEPT, RUN_STREAMED, RUN_OUTPUT, RUN_RAW_KEPT, RUN_RAW_STREAMED, REPACKED, TURN_END, PASS_END = range(13)
AHEAD, ON_DEMAND = (range(at, at + len(PARTS)) for at in (len(USES), len(USES) + len(PARTS)))
BURST, IMAGE, UNUSED = range(ON_DEMAND.stop, ON_DEMAND.stop + 3)
RUNS = (
    (RUN_KEPT, True),
    (RUN_RAW_KEPT, True),
    (RUN_STREAMED, False),
    (RUN_RAW_STREAMED, False),
)  # of the input where windows are kept, or not
_LOOPS = np.array([use[1] for use in USES] + [STREAMED_SETS] * 2 * len(PARTS) + [STREAMED_TILES, -1, -1])


class Flows(NamedTuple):
    """The streams of a table: bytes[i] are touched again at a distance. Columns of one kind lie together: those of kind k are `columns[k]`,
    and there stream i is of operand[k, i], its distance at[k, i], its bytes shares[k, :, i] of what is only read and what is written of
    each of OPERANDS.

    `between` is OPERANDS x distances x schedules. `planes` (planes of inputs and
    of outputs, and `turns`: 2 where outputs are on average half of these planes and half of as many others) x distances x schedules;
    `once`: bytes of OPERANDS that one repeat touches at least once; `never`, `before` (columns): 1 for streams never touched before, and
    for those that an earlier run touched, so many `runs` ago."""

    columns: list[slice]
    kind: NDArray[np.int64]  # of each column
    operand: NDArray[np.int64]
    at: NDArray[np.int64]
    shares: Array
    never: Array
    before: Array
    runs: Array
    bytes: Array
    between: Array
    planes: Array
    once: Array


class Sliced:
    """The nest of every schedule of a table, input stationary ones first, and its sizes in bytes and counts."""

    def __init__(self, table: Table) -> None:
        self.rates, self.columns = rates, n = table.rates, table.kernel.size
        self.nest = nest = rates.nest
        self.kept, self.packed, self.channels = table.keeps_windows, table.packed > 0, table.channels
        self.own, self.split = not nest.filters_packed, int(np.count_nonzero(self.kept))
        self.sets = np.ceil(nest.group_channels / self.channels)
        self.windows, self.filters, self.n_windows, self.n_filters = rates.windows, rates.filters, rates.window_tiles, rates.filter_tiles
        n_kept, n_streamed = self.swapped(self.n_windows, self.n_filters)
        self.k2, k3 = np.minimum(table.k2, n_streamed), np.minimum(table.k3, n_kept)
        self.streamed_sets = np.ceil(n_streamed / self.k2)
        self.one_panel = self.kept & self.packed & (self.streamed_sets == 1)
        one_loop = self.kept & (self.streamed_sets == 1)
        self.k3 = np.where(one_loop, n_kept, k3)
        self.kept_sets = np.ceil(n_kept / self.k3)
        # a tile of windows as the micro-kernel reads it, and all of them, with the rest of the lines of a last panel that is not full
        line, size = rates.machine.line_bytes, nest.element_bytes
        panel = np.ceil(rates.packed_window * self.channels * self.windows / PANEL_ALIGN) * PANEL_ALIGN
        self.panel = np.where(self.packed, panel, size * self.channels * self.windows)
        last = nest.windows - (self.n_windows - 1) * self.windows
        rest = (line - np.gcd((self.windows * size).astype(np.int64), line)) / size
        more = self.packed * (np.minimum(self.windows, last + rest) - last)
        self.all_windows = self.panel / self.windows * (nest.windows + more)
        self.panels = np.minimum(np.where(one_loop, 1.0, np.where(self.kept, k3, self.k2)) * self.panel, self.all_windows)
        self.tile_bytes = rates.stored_tile * self.channels  # of a filter panel
        self.filter_panels = np.where(self.kept, self.k2, self.k3) * self.tile_bytes
        self.once = stacked(  # bytes of OPERANDS that one repeat touches at least once; outputs and filters in full
            n,
            0.0 if nest.windows_packed else nest.group_channels * nest.touched_bytes(line),
            nest.group_channels * nest.touched_bytes(line)
            if nest.windows_packed
            else self.packed * self.panels + (self.filter_panels if self.own else 0.0),
            nest.group_filters * nest.group_channels * size if self.own else rates.stored_tile * nest.group_channels * self.n_filters,
            nest.group_filters * nest.windows * nest.result_bytes,
        )
        self.loop_nest = self._described(n_kept, n_streamed)

    def swapped(self, windows: Array, filters: Array) -> tuple[Array, Array]:
        """What is of windows and of filters, as kept and streamed."""
        at = self.split
        kept = np.concatenate([windows[..., :at], filters[..., at:]], axis=-1)
        return kept, np.concatenate([filters[..., :at], windows[..., at:]], axis=-1)

    def _described(self, n_kept: Array, n_streamed: Array) -> LoopNest:
        nest, sets, n = self.nest, self.sets, self.columns
        loops = (
            Loop("channels", "channels", 1.0, sets),
            Loop("kept sets", "kept", self.k3, self.kept_sets),
            Loop("streamed sets", "streamed", self.k2, self.streamed_sets),
            Loop("kept", "kept", 1.0, self.k3),
            Loop("streamed", "streamed", 1.0, self.k2),
        )
        held = np.where(self.packed, self.panels, self.all_windows)
        packed = self.filter_panels if self.own else self.n_filters * self.tile_bytes
        edge = ~self.packed * self.channels * self.rates.place_edge
        out, end = self.windows * nest.result_bytes, self.rates.out_edge
        raw = self.filters * self.channels * nest.element_bytes * self.own
        tiles = self.swapped(
            stacked(
                n, self.panel, held, edge, self.panel + edge, out, nest.windows * nest.result_bytes, end, out + end, *self._raw_input()
            ),
            stacked(
                n,
                self.tile_bytes,
                packed,
                0.0,
                self.tile_bytes,
                self.filters,
                nest.group_filters,
                0.0,
                self.filters,
                raw,
                raw * self.n_filters,
                0.0,
                raw,
            ),
        )
        kept, streamed = ([Extent(*rows[row : row + 4]) for row in range(0, len(rows), 4)] for rows in tiles)
        if not nest.in_place:
            kept[0], streamed[0] = kept[0]._replace(base=0.0), streamed[0]._replace(base=0.0)
        every = Extent(1.0, sets)
        depths = self.swapped(np.where(self.packed, 1.0, sets), np.ones(n) if self.own else sets)
        operands = (
            Operand("kept operand", {"channels": Extent(1.0, depths[0]), "kept": kept[0]}, "streamed"),
            Operand("streamed operand", {"channels": Extent(1.0, depths[1]), "streamed": streamed[0]}, "streamed"),
            Operand("output", {"kept": kept[1], "streamed": streamed[1]}, "streamed"),
            Operand("raw kept", {"channels": every, "kept": kept[2]}, "kept", first="streamed sets"),
            Operand("raw streamed", {"channels": every, "streamed": streamed[2]}, "streamed sets"),
        )
        return LoopNest(loops, operands, {"channels": sets, "kept": n_kept, "streamed": n_streamed}, n)

    def _raw_input(self) -> Extent:
        """Input that packing tiles of windows reads: rows of kernels, whole rows as soon as tiles share them."""
        nest, depth = self.nest, self.packed * self.channels
        row = nest.touched_bytes(self.rates.machine.line_bytes) / nest.touched_h
        step = min(nest.stride_h, nest.kernel_h) * row
        first = max(0.0, min((nest.kernel_h - 1) * nest.dilation_h + 1, nest.touched_h) * row - step)
        alone = depth * (live_taps(nest)[0] * row + self.rates.pack_edge) / self.n_windows
        return Extent(depth * (self.windows / nest.out_w * step), depth * (nest.touched_h * row), depth * first, alone)


def flows(table: Table, state: State) -> Flows:
    """The streams of a table, with first touches in caches of a `state`."""
    s = Sliced(table)
    streams = list(_streams(s, state))
    ends = [0, *(np.flatnonzero(np.diff(2 * s.kept + s.packed)) + 1).tolist(), s.columns]
    columns = [slice(*span) for span in pairwise(ends)]
    kinds = tuple((bool(s.kept[span.start]), bool(s.packed[span.start]) or s.nest.windows_packed, s.own) for span in columns)
    operand, at, shares, never, before = _routes(kinds, tuple((of, written, *where) for of, written, _, *where in streams))
    output = runs_ago(state, OPERANDS[OUTPUT])
    runs = np.ones((1, 1)) if output == 1 else np.where(at[0] == RUN_OUTPUT, output, 1.0)[:, None]
    size = stacked(s.columns, *(stream[2] for stream in streams))
    kind = np.repeat(np.arange(len(columns)), np.diff(ends))
    between = _between(s)
    between[:, RUN_OUTPUT] *= output
    return Flows(columns, kind, operand, at, shares, never, before, runs, size, between, _planes(s, between), s.once)


@lru_cache(maxsize=64)
def _routes(kinds: tuple[tuple[bool, bool, bool], ...], streams: tuple[tuple[Any, ...], ...]) -> Any:
    """`operand`, `at`, `shares`, `never` and `before` of Flows; kinds: whether windows are kept, and whether the run packs them
    and filters."""
    at, operand = np.empty((2, len(kinds), len(streams)), dtype=np.int64)
    shares = np.zeros((len(kinds), 2 * len(OPERANDS), len(streams)))
    for kind, (kept, packed, own) in enumerate(kinds):
        read = {_WINDOWS: PACKED if packed else INPUT, _FILTERS: PACKED if own else FILTERS}
        for number, (of, written, *distances) in enumerate(streams):
            operand[kind, number] = of = read.get(of, of)
            at[kind, number] = distances[0 if kept else -1]
            shares[kind, 2 * of : 2 * of + 2, number] = 1 - written, written
    first = [np.isin(at[0], which).astype(np.float64)[:, None] for which in (UNUSED, range(RUN_KEPT, REPACKED))]
    return operand, at, shares, *first


@lru_cache(maxsize=8)
def _uses(operands: tuple[Access, ...]) -> tuple[Use | None, ...]:
    """USES, panels of streamed tiles, written where those of the set before lay, and the distances that are no loop's."""
    panels = Access(frozenset((STREAMED_TILES,)), STREAMED_TILES)
    found = *(Use(operands[row], *where) for row, *where in USES), Use(panels, STREAMED_SETS)
    return *found, *[None] * (len(_LOOPS) - len(found))


def _between(s: Sliced) -> Array:
    """Bytes of OPERANDS in between: operands x distances x schedules."""
    of, nest = s.loop_nest, s.nest
    found = of.between(_uses(of.accesses))
    for row in (STREAMED, RAW_STREAMED):
        found[row, BURST] = of.footprint(STREAMED_TILES, row)
    found[KEPT, AHEAD.start] = of.footprint(KEPT_TILES, KEPT)
    for ahead, on_demand, part in [*zip(AHEAD, ON_DEMAND, PARTS, strict=True)][::-1]:
        found[:, ahead], found[:, on_demand] = found[:, AHEAD.start], found[:, TURN]
        found[RAW_STREAMED, ahead] *= part
        found[OUTPUTS, ahead] *= 1 - part
        found[OUTPUTS, on_demand, s.split :] *= 1 - part  # filters are packed ahead of all windows
        found[RAW_KEPT, on_demand] = part * of.footprint(STREAMED_SETS, RAW_KEPT)
    found = _by_operand(s, found)
    found[:, UNUSED] = NEVER
    if nest.repeats > 1:  # other images and groups lie between two runs
        repeats = (nest.repeats, 1, nest.groups, nest.repeats), (nest.groups, 1, nest.groups, nest.groups), (1, 1, 1, 1)
        run, filters, once = (s.once * np.array(times)[:, None] for times in repeats)
        found[:, IMAGE] = filters
        found[:, RUN_OUTPUT] += run - once
        for number, keeps in RUNS:
            np.copyto(found[:, number], run, where=s.kept == keeps)
            if nest.groups > 1:
                np.copyto(found[:, number], filters, where=s.kept != keeps)
    if nest.fresh_input:
        input_alone = s.once * np.array([1.0, 0.0, 0.0, 0.0])[:, None]
        for number, keeps in RUNS:
            np.copyto(found[:, number], input_alone, where=s.kept == keeps)
    return found


def _by_operand(s: Sliced, found: Array) -> Array:
    """Bytes of the nest's operands as those of OPERANDS: the micro-kernel reads panels, or what lies in place."""
    at = s.split
    found[[KEPT, STREAMED, RAW_KEPT, RAW_STREAMED], :, at:] = found[[STREAMED, KEPT, RAW_STREAMED, RAW_KEPT], :, at:]
    windows, filters, _, raw_windows, raw_filters = found
    if not s.nest.windows_packed:
        np.copyto(raw_windows, windows, where=~s.packed)
        windows *= s.packed
    read = windows if s.own else raw_filters
    read += filters
    return found[[RAW_KEPT, KEPT, RAW_STREAMED, OUTPUTS]]


def _planes(s: Sliced, between: Array) -> Array:
    """Planes of inputs and outputs in between, the turns (a loop over filter tiles leaves half of the outputs of each of two sets), and of
    a transposed A its rows of k, of an A in place its own rows. A transposed B has a row for each window."""
    sets: list[Any] = [np.where(s.kept, *both) for both in ((s.n_filters, s.k3), (s.k2, s.k3), (s.k2, 1.0))]
    tiles = np.minimum(stacked(s.columns, s.n_filters, *sets, 1.0) * s.filters, s.nest.group_filters)
    found = np.ones((3 + (s.nest.filter_rows is not None), len(_LOOPS), s.columns))
    found[0], found[1] = np.where(_LOOPS[:, None] < 0, s.nest.group_channels, s.channels), tiles[np.maximum(0, _LOOPS)]
    if s.nest.filter_rows:
        found[3] = found[0 if s.nest.filters_in_rows_of_k else 1]
    if s.nest.windows_transposed:
        found[0] = np.maximum(1.0, between[INPUT] / (s.channels * s.nest.element_bytes))
    for run in (RUN_STREAMED, RUN_RAW_STREAMED):  # of one set of channels: what the first and the last set of kept tiles write
        np.copyto(found[1, run], found[1, SETS], where=s.sets == 1)
    found[2, _LOOPS == STREAMED_SETS] += s.kept
    found[2, _LOOPS == KEPT_TILES] += ~s.kept
    return found


_WINDOWS, _FILTERS = range(4, 6)  # what the micro-kernel reads: packed, or where it lies


def _streams(s: Sliced, state: State) -> Iterator[tuple[Any, ...]]:
    """(operand, share that is written, bytes of one repeat, distance where windows are kept, and where they are streamed)."""
    nest, kept, packed, own, once = s.nest, s.kept, s.packed, s.own, s.once
    lies = [runs_ago(state, name) < NEVER for name in OPERANDS]
    w_sets, f_sets = np.where(kept, s.kept_sets, s.streamed_sets), np.where(kept, s.streamed_sets, s.kept_sets)
    depth, live = nest.group_channels / s.channels, s.rates.filter_tile
    for order, of, raw, keeps, packs, first, size, tiles, sets, passes, turns in (
        (
            1,
            _WINDOWS,
            INPUT,
            kept,
            packed,
            once[PACKED if nest.windows_packed else INPUT],
            depth * s.all_windows,
            s.n_windows,
            w_sets,
            s.n_filters,
            f_sets,
        ),
        (
            -1,
            _FILTERS,
            FILTERS,
            ~kept,
            np.full_like(kept, own),
            once[FILTERS] / nest.batch,
            live * nest.group_channels * s.n_filters,
            s.n_filters,
            f_sets,
            s.n_windows,
            w_sets,
        ),
    ):
        ends = size * np.minimum(1.0, 2 * sets / tiles)
        demanded = packs & keeps & (raw == INPUT)  # packed and read at once, and again a set later; filters are packed ahead of all windows
        inner, outer = passes - turns + demanded, np.where(packs, keeps * np.maximum(0.0, turns - 1 - demanded), turns - 1)
        apart = np.where(keeps, outer, inner)  # uses a set of the other operand apart, of first and last tiles half a one
        yield of, 0.0, ends * apart, *(TURN_END, PASS_END)[::order]
        yield of, 0.0, (size - ends) * apart, *(TURN, PASS)[::order]
        yield of, 0.0, size * np.where(keeps, inner, outer), *(CALL, SETS)[::order]
        if raw == INPUT or own:
            packings = np.where(keeps, 1.0, turns) * packs
            for parts in zip(ON_DEMAND, AHEAD, strict=True):  # a panel is written, and read for the first time after
                yield PACKED, 0.5, size * packings * ~(keeps & s.one_panel) * (2 / len(PARTS)), *parts[::order]
            yield raw, 0.0, once[raw] * np.maximum(0.0, packings - 1), REPACKED
            yield raw, 0.0, first * packs, *((RUN_RAW_KEPT, RUN_RAW_STREAMED)[::order] if lies[raw] else (UNUSED,))
        if raw == FILTERS or nest.in_place:
            yield of, 0.0, first * ~packs, *((RUN_KEPT, RUN_STREAMED)[::order] if lies[raw] else (UNUSED,))
    yield PACKED, 1.0, depth * s.all_windows * s.one_panel, CALL
    if nest.batch > 1:
        yield FILTERS, 0.0, once[FILTERS] * (nest.batch - 1) / nest.batch, IMAGE
    yield OUTPUT, 1.0, once[OUTPUT] * (s.sets - 1), AGAIN
    yield OUTPUT, 1.0, once[OUTPUT], RUN_OUTPUT if lies[OUTPUT] else UNUSED

    passes = np.where(kept, 1.0, f_sets) * packed
    across = np.maximum(0.0, w_sets - 1) / np.maximum(1.0, s.n_windows - 1)  # neighbours between which a set ends
    edges = [
        (OUTPUT, 1.0, (s.n_windows - 1) * nest.group_filters * s.rates.out_edge * s.sets, across, CALL, (SETS, TURN)),
        (INPUT, 0.0, s.rates.pack_edge * nest.group_channels * passes, across, BURST, (SETS, TURN)),
    ]
    if again := max(0, live_taps(nest)[0] - nest.touched_h) * nest.touched_w * nest.element_bytes:  # kernel rows overlap
        beyond = np.clip((w_sets - 1) / max(1, nest.out_h - 1), 0.0, 1.0)
        edges.append((INPUT, 0.0, passes * nest.group_channels * again, beyond, CALL, (SETS, TURN)))
    if nest.in_place:
        shared = ~packed * (s.n_windows - 1) * s.rates.place_edge * nest.group_channels
        yield INPUT, 0.0, shared * kept * (s.n_filters - f_sets), CALL  # a tile alone reads its lines whole each time
        edges.append((INPUT, 0.0, shared * np.where(kept, f_sets, s.n_filters), across, CALL, (TURN, PASS)))
    if nest.filters_in_rows_of_k:
        shared = (s.n_filters - 1) * s.rates.filter_edge * nest.group_channels
        beyond = np.maximum(0.0, f_sets - 1) / np.maximum(1.0, s.n_filters - 1)
        if own:  # all panels of a set take some rows before the next ones, so they share lines at once; sets do not
            yield FILTERS, 0.0, shared * np.where(kept, w_sets, 1.0) * beyond, TURN, SETS
        else:  # as windows in place
            yield FILTERS, 0.0, shared * ~kept * (s.n_windows - w_sets), CALL
            edges.append((FILTERS, 0.0, shared * np.where(kept, s.n_windows, w_sets), beyond, CALL, (PASS, TURN)))
    for operand, written, size, far, near, where in edges:
        yield operand, written, size * (1 - far), PASS_END, near
        yield operand, written, size * far, *where


def doubts(nest: Nest, schedule: Schedule, machine: Machine) -> list[str]:
    """What about a schedule on a machine the closed forms assume otherwise; empty where their assumptions hold."""
    found = []
    inner = machine.levels[0]
    for level in machine.levels:
        if level.policy != "lru":
            found.append(f"{level.name} replaces by {level.policy}; the closed forms hold for lru")
        if level.sets & (level.sets - 1):
            found.append(f"{level.name} has {level.sets} sets, no power of two: hardware hashes addresses, consecutive lines are assumed")
        if level.line_bytes != inner.line_bytes:
            found.append(
                f"lines of {level.name} are {level.line_bytes} bytes, those of {inner.name} {inner.line_bytes}: one size is assumed"
            )
        start = gcd(nest.plane_bytes, level.way_bytes)
        used = max(level.line_bytes, min(nest.plane_bytes, schedule.windows * nest.element_bytes))
        if schedule.pack == "none" and nest.group_channels > 1 and start > used:
            planes = f"planes of {nest.plane_bytes:,} bytes are read in place {schedule.windows} windows at a time"
            found.append(
                f"{planes}: they start in 1 of {start // level.line_bytes} sets of {level.name} and conflict, which is only estimated"
            )
    return found
