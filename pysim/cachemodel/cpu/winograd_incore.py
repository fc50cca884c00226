# SPDX-License-Identifier: Apache-2.0
"""The in-core half of the cost of Winograd convolutions on a CPU, as equations of cases (a micro-kernel with some m): cycles of transforms
and of products, by the equations at the head of `winograd`.

Worked number: F(4x4, 3x3) has 36 planes; in AVX-512, 14 tiles x 32 filters of 64 channels take 36 * 64 * 28 cycles of k-iterations.
"""

from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.incore import OfKernels, of_kernels, step_cycles
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.equations import OfRows, as_rows, asked, columns_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.plan import Layout, blocks_of
from pysim.registry.cpu import Kernel

Array = NDArray[np.float64]
SPLIT_COLUMNS = 64  # of native/algorithms/winograd.c: columns of a phase that are split off at once


class Shape(NamedTuple):
    """One group of a problem under F(m x m, r x r), F(m x 1, r x 1) or F(1 x m, 1 x r) on one kernel: counts, all images together."""

    high: int  # outputs of a tile along rows and columns
    wide: int
    taps_h: int
    taps_w: int
    channels: int
    filters: int
    tiles: int
    rows: int  # of tiles
    row: int  # tiles of one
    panel: int  # tiles
    panels: int
    filter_panels: int
    in_blocks: bool = False  # of channels
    out_blocks: bool = False

    @property
    def outputs(self) -> int:
        return max(self.high, self.wide)

    @property
    def form(self) -> str:
        return f"F({self.high}x{self.wide})"

    @property
    def planes(self) -> int:
        return self.edge_h * self.edge_w

    @property
    def edge_h(self) -> int:
        return self.high + self.taps_h - 1

    @property
    def edge_w(self) -> int:
        return self.wide + self.taps_w - 1


def phases_of(w: Conv) -> int:
    """Phases of a channel."""
    return w.stride_h * w.stride_w


@lru_cache(maxsize=64)
def dense(w: Conv) -> Conv:
    """The convolution of stride 1 that is computed: of the input itself, or of its phases."""
    if phases_of(w) == 1:
        return w
    high, wide = ceil_div(w.kernel_h, w.stride_h), ceil_div(w.kernel_w, w.stride_w)
    size = {"height": w.out_h + high - 1, "width": w.out_w + wide - 1, "kernel_h": high, "kernel_w": wide}
    unpadded = dict.fromkeys(("pad_top", "pad_left", "pad_bottom", "pad_right"), 0)
    return msgspec.structs.replace(w, channels=w.channels * phases_of(w), stride_h=1, stride_w=1, **size, **unpadded)


def channels_of(w: Conv) -> int:
    """Channels of a group's patches: those of all phases and of all slices of the kernel."""
    return dense(w).group_channels * w.kernel_d


@asked
def live_share(w: Conv) -> float:
    """The share of a kernel's slices that are not padding."""
    axis = w.slices
    return axis.met(axis.taps) / (axis.out * axis.kernel)


class Infinity(NamedTuple):
    """The share of phases that have a last tap along an axis, and along both: at infinity the others are left out."""

    rows: float
    columns: float
    corner: float


@asked
def _at_infinity(w: Conv) -> Infinity:
    own = dense(w)
    full_h, full_w = w.kernel_h - (own.kernel_h - 1) * w.stride_h, w.kernel_w - (own.kernel_w - 1) * w.stride_w
    rows, columns = full_h / w.stride_h, full_w / w.stride_w
    return Infinity(rows, columns, rows if columns == 1 else rows * columns if full_h == 1 else columns)


def phase_share(w: Conv, of: Any) -> Any:
    """Of planes and channels: phases without their last tap are left out at infinity. F(3x3, 2x2) of 3x3, stride 2: 49 of 16 * 4."""
    rows, columns, corner = _at_infinity(w)
    return ((of.edge_h - 1) * (of.edge_w - 1 + columns) + (of.edge_w - 1) * rows + corner) / of.planes


def phase_elements(w: Conv) -> int:
    """Elements of the phases of all images; 0 without a stride."""
    own = dense(w)
    return own.input_elements if phases_of(w) > 1 else 0


def shape_of(w: Conv, kernel: Kernel, outputs: int, layout: Layout = "nchw") -> Shape:
    """The counts of native/algorithms/winograd.c."""
    w = dense(w)
    high, wide = outputs if w.kernel_h > 1 else 1, outputs if w.kernel_w > 1 else 1
    row, rows = ceil_div(w.out_w, wide), w.batch * w.out_d * ceil_div(w.out_h, high)
    tiles, most, filters = row * rows, kernel.filters, w.group_filters
    if tiles <= most:
        panel = tiles
    elif row > most:
        panel = ceil_div(row, ceil_div(row, most))
    else:
        panel = ceil_div(ceil_div(tiles, ceil_div(tiles, most // row * row)), row) * row
    return Shape(
        high,
        wide,
        w.kernel_h,
        w.kernel_w,
        channels_of(w),
        filters,
        tiles,
        rows,
        row,
        panel,
        ceil_div(tiles, panel),
        ceil_div(filters, kernel.windows),
        *(block > 1 for block in blocks_of(layout)),
    )


Cases = tuple[tuple[Kernel, Shape], ...]  # a problem on a kernel with some m
Shapes = Any  # a Shape whose numbers are arrays, of some cases


@lru_cache(maxsize=64)
def in_core(w: Conv, machine: Machine, cases: Cases) -> Array:
    """Of one group, for each case (columns): cycles of all k-iterations, calls of one channel set, cycles to store and to load the products
    once, cycles of the input and of the output transform; of all groups, cycles to split the images into phases."""
    if not cases:
        return np.empty((7, 0))
    kernels, shapes = zip(*cases, strict=True)
    halvings = [[max(1.0, log2(shape.wide)) for shape in shapes]]
    rows = np.concatenate([of_kernels(machine, kernels, w.element_bytes, w.result_bytes), np.array(shapes, np.float64).T, halvings])
    (found,) = _of_cases(rows, machine, shapes[0].in_blocks, shapes[0].out_blocks, problem=w)
    return found


@OfRows
def _of_cases(rows: Array, machine: Machine, in_blocks: bool, out_blocks: bool, w: Conv) -> tuple[Array]:
    on, halvings = OfKernels(*rows[: len(OfKernels._fields)]), rows[-1]
    of: Shapes = Shape(*rows[len(OfKernels._fields) : -1])
    last_tiles, last_filters = of.tiles - (of.panels - 1) * of.panel, of.filters - (of.filter_panels - 1) * on.windows
    steps = vectors = 0.0 * of.tiles
    for tile_panels, tiles in ((of.panels - 1, of.panel), (1.0, last_tiles)):
        for filter_panels, filters in ((of.filter_panels - 1, on.windows), (1.0, last_filters)):
            steps = steps + tile_panels * filter_panels * step_cycles(on, filters, tiles)
            vectors = vectors + tile_panels * filter_panels * tiles * np.ceil(filters / on.lanes)
    planes = of.planes
    calls, products = planes * of.panels * of.filter_panels, planes * vectors
    live = np.where(of.panel <= np.floor(of.tiles / (w.batch * w.out_d)), live_share(w), 1.0)  # panels that span slices read all of them
    least = machine.core.transform_wait
    return (
        as_rows(
            columns_of(rows),
            planes * of.channels * phase_share(w, of) * live * steps,
            calls,
            products / on.stores,
            products / on.loads,
            live * (_blocks_transform_cycles(on, least, of) if in_blocks else _input_transform_cycles(on, least, of, halvings)),
            _output_transform_cycles(w, on, least, of, out_blocks),
            _phase_cycles(w, machine, on),
        ),
    )


class Images(NamedTuple):
    """Of the images that are split into phases: `rows` of the phases, their `width`, and `calls` for a channel's row in a column phase."""

    rows: int
    width: int
    calls: int


@asked
def _split_images(w: Conv) -> Images:
    own, stride = dense(w), w.stride_w
    rows = own.batch * own.channels * own.depth * own.height
    return Images(rows, own.width, rows // stride * ceil_div(own.width, SPLIT_COLUMNS))


@asked
def _splits(w: Conv) -> bool:
    """Whether there are several phases."""
    return phases_of(w) > 1


def _phase_cycles(w: Conv, machine: Machine, on: OfKernels) -> Array | float:
    """Cycles to split the images into phases."""
    if not _splits(w):
        return 0.0
    images, core = _split_images(w), machine.core
    each = _cycles(on, core.transform_wait, 1.0, 1.0, 0.0, w.stride_w) + core.pack_cycles.value
    return images.rows * np.ceil(images.width / on.lanes) * each + images.calls * core.pack_call_cycles.value


def _blocks_transform_cycles(on: OfKernels, least: float, of: Shapes) -> Array:
    """Cycles of the input transform of one group from channel blocks."""
    moved = 2.0 * of.planes
    each = _cycles(on, least, moved, moved, 2 * of.edge_w * _input_operations(of.edge_w), 0.0)
    return of.tiles * np.ceil(of.channels / on.lanes) * each


def _input_transform_cycles(on: OfKernels, least: float, of: Shapes, halvings: Array) -> Array:
    """Cycles of the input transform of one group; lanes are separated in so many `halvings`."""
    m, height, edge = of.wide, of.edge_h, of.edge_w  # of a patch: rows, columns
    tiles = np.minimum(np.minimum(of.row, of.panel), np.maximum(1.0, on.lanes - np.floor((edge - 1) / m)))  # of a run
    runs, half = of.rows * np.ceil(of.row / tiles), np.floor(m / 2)
    vectors = np.where(np.ceil((tiles * m + of.taps_w - 1) / on.lanes) <= half, half, m)
    parting = np.where(m == 1, 0.0, np.where(half * 2 == m, m * halvings * vectors / m, m * vectors))
    loads, stores, shuffles = 2 * height * vectors, height * (vectors + edge), height * (parting + of.taps_w - 1)
    arithmetic = vectors * _input_operations(height) + height * _input_operations(edge)
    cycles = runs * _cycles(on, least, loads, stores, arithmetic, shuffles)
    groups = of.panels * np.ceil(of.panel / on.lanes)
    again = groups * of.planes * (1 / on.loads + 1 / on.stores)
    return of.channels * np.where(runs > of.panels, cycles + again, cycles)


def _output_transform_cycles(w: Conv, on: OfKernels, least: float, of: Shapes, out_blocks: bool) -> Array:
    """Cycles of the output transform of one group, with the stores of the outputs."""
    arithmetic = of.edge_w * _output_operations(of.high, of.edge_h) + of.high * _output_operations(of.wide, of.edge_w)
    cycles = of.tiles * _cycles(on, least, of.planes, of.high * of.wide, arithmetic, 0.0)
    if not out_blocks:
        blocks = w.batch * w.out_rows * np.ceil(w.out_w / on.lanes)
        cycles = cycles + blocks * _cycles(on, least, on.lanes, np.minimum(on.lanes, of.filters), 0.0, on.lanes * on.transpose)
    return np.ceil(of.filters / on.lanes) * cycles


def _input_operations(edge: Array) -> Array:
    """Multiply-adds of B^T times a vector: at each end one a pair; for both parts of a pair one less each, and two to join them."""
    pairs = np.floor(edge / 2) - 1
    return np.where(edge == 1, 0.0, 2 * pairs + pairs * (2 * (pairs - 1) + 2))


def _output_operations(m: Array, edge: Array) -> Array:
    """Additions and multiply-adds of A^T times a vector: two a pair, a term a pair for each output, and one at each end."""
    pairs = np.floor(edge / 2) - 1
    return np.where(edge == 1, 0.0, 2 * pairs + m * pairs + 1)


def _cycles(on: OfKernels, least: float, loads: Any, stores: Any, arithmetic: Any, shuffles: Any) -> Array:
    """Cycles of instructions that overlap; `least`: cycles of one instruction at least."""
    moving = np.maximum(loads / on.loads, stores / on.stores)
    working = np.maximum(moving, arithmetic / on.vector_rate + shuffles)
    return np.maximum(working, (loads + stores + arithmetic + shuffles) * least)
