# SPDX-License-Identifier: Apache-2.0
"""The cost of Winograd convolutions on a CPU: transforms, products, and the traffic of their operands.

F(m x m, r x r) has e = m + r - 1 and e^2 planes; on tiles of m x m outputs it needs e^2 multiplications instead of r^2 m^2. The loops
are those of `native/algorithms/winograd.c`: blocks of K2 panels of tiles; in each, blocks of K3 panels of filters; planes, channel sets,
panels. A stride s splits each channel into s^2 phases, with r = ceil(kernel / s); the rest is a convolution of stride 1 on them
(`dense`). The slices of a volume's kernel are channels, too.

    compute  = kernel + call + store + patches + outputs           in-core work, cycles
    transfer from each supplier, as in `pysim.cachemodel.cpu.cost`
    cycles   = sum over four passes of  compute + transfer - overlap min(compute, transfer):
               the split into phases, the input transform, the products (kernel, call, store), the output transform. Passes do not overlap
               each other. A panel of filters is transferred while it is multiplied with the first of k2 panels of tiles, so compute / k2
               of the products hides it; all of the products hides their other operands

phases   with a stride: a load, s permutes, a store and pack_cycles for each vector of a row of a phase, pack_call_cycles for each row of
         a channel, pack_line_cycles for each line of the image that misses L1
kernel   k-iterations of the micro-kernel, filters along its lanes: e^2 C for each pair of panels, less the zeros of phases (`phase_share`)
call     SHORT_CALL call_cycles for each call: e^2 x channel sets x panels of tiles x panels of filters
store    vectors of products, stored once a channel set, and loaded in each but the first. A run of them (a panel's filters) from beyond
         L2 waits store_run_cycles if a panel has more tiles than prefetch_streams
patches  the input transform, for each channel and run (tiles of a panel in one row of tiles): load pixels, transform columns, separate
         lanes (two shuffles for each two vectors and halving), transform rows and store; a panel of several runs is stored twice.
         Channels in blocks: each tile and vector of channels by itself, through the stack, with 2 e^2 loads and stores, and the transform
outputs  the output transform, for each tile and vector of filters: e^2 loads, m^2 stores, and the transform. If outputs are planes, each
         lanes x lanes block of pixels and filters also takes lanes log2(lanes) shuffles, and a load and a store a row

In the transforms, loads, stores, and multiply-adds with shuffles (one a cycle; on wide vectors they share ports) overlap, each at its
rate. Since they form short dependent chains, each instruction takes at least transform_cycles. Each input line that misses L1 costs
pack_line_cycles, as in packing. Products that come from beyond L2 are lines pages apart, in the planes of a tile: no prefetcher
follows. Their loads are independent, so a line takes latency / MISSES_IN_FLIGHT, of which its transfer is a part.

The traffic follows from the description of the loops (`described`, `loops`). Assumptions: as in `cost`, and the filters are prepared.

Worked number: 64 -> 64 channels, 56x56, F(4x4): 196 tiles; 36 * 64 * 64 * 196 = 28.9 M multiplications for 115.6 M.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.cpu.cost import Pass, traffic_of, transfer_cycles
from pysim.cachemodel.cpu.incore import SHORT_CALL
from pysim.cachemodel.cpu.nest import ceil_div
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Number, Operand
from pysim.cachemodel.cpu.winograd_incore import Cases, Shape, channels_of, dense, in_core, phase_elements, phase_share, phases_of, shape_of
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.record.plan import Layout
from pysim.record.state import State
from pysim.registry.cpu import Kernel

Array = NDArray[np.float64]

# Passes in order: their compute terms, and their operands (name, written)
PASSES = (
    (("phases",), (("image", False), ("input", True))),
    (("patches",), (("input", False), ("patches", True))),
    (("kernel", "call", "store"), (("patches", False), ("filters", False), ("products", True))),
    (("outputs",), (("products", False), ("output", True))),
)
FREE_ELEMENTS = 16  # PYSIM_WINOGRAD_FREE of native/algorithms/winograd.h: unused elements after a plane's last channel
# Lines that an output transform waits for at once: a core has 10 to 24 miss buffers of L1. With 12 the 90th percentile of Winograd's errors
# on held-out layers is 15 to 19 % (Zen 4, Zen 5, Granite Rapids, two Emerald Rapids), with a wait of 90 cycles a line 19 to 53 %
MISSES_IN_FLIGHT = 12
ROWS_AHEAD = 96  # PANEL_ROWS_AHEAD of native/x86/lanes.h: rows of filters that are prefetched ahead
LINE = 64  # of native/algorithms/winograd.c: alignment of buffers
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def plane_elements(w: Conv, kernel: Kernel, of: Shape) -> int:
    """Elements of one plane of a panel of transformed input: an odd number of lines; for channels in blocks, of each tile, too."""
    size = w.element_bytes
    tile = _odd_lines(of.channels, size) if of.in_blocks else of.channels
    return _odd_lines(tile * kernel.filters + FREE_ELEMENTS, size)


def _odd_lines(elements: int, size: int) -> int:
    return (ceil_div(elements * size, LINE) | 1) * LINE // size


def workspace_bytes(w: Conv, kernel: Kernel, outputs: int, k2: int, k3: int, layout: Layout = "nchw") -> int:
    """Bytes of the phases of all images, of the transformed input and the products of a block, and of alignment."""
    of, size = shape_of(w, kernel, outputs, layout), w.element_bytes
    k2, k3 = min(k2, of.panels), min(k3, of.filter_panels)
    patches = k2 * of.planes * plane_elements(w, kernel, of) * size
    tile = _odd_lines(of.planes * _odd_lines(k3 * kernel.windows, size), size)
    phases = ceil_div(phase_elements(w) * size, LINE) * LINE + LINE if phases_of(w) > 1 else 0
    return phases + patches + k2 * of.panel * tile * size + LINE


def prepared_bytes(w: Conv, kernel: Kernel, outputs: int) -> int:
    """Bytes of transformed filters, whole panels."""
    of = shape_of(w, kernel, outputs)
    return w.groups * of.planes * of.filter_panels * kernel.windows * of.channels * w.element_bytes


def plain_bytes(w: Conv, kernel: Kernel, outputs: int) -> int:
    """Bytes of the filters themselves, whole panels, which follow the transformed ones. Runs of finite operands do not read them."""
    of = shape_of(w, kernel, outputs)
    return w.groups * of.filter_panels * kernel.windows * w.products * w.element_bytes


class Candidates(NamedTuple):
    """Schedules as columns; `case` indexes the cases."""

    workload: Conv
    machine: Machine
    state: State
    cases: Cases
    case: NDArray[np.int64]
    channels: Array
    k2: Array
    k3: Array


def candidates(w: Conv, machine: Machine, state: State, cases: Cases, kept: NDArray[np.bool_]) -> Candidates:
    """Schedules with balanced parts of panels of tiles and of filters, for the cases and channel sets that are `kept`."""
    parts = np.array(_channel_parts(w), dtype=np.float64)
    case, part = kept.nonzero()
    sets = [_sets(cases[at][1].panels, cases[at][1].filter_panels) for at in case.tolist()]
    counts = [of.shape[1] for of in sets]
    return Candidates(w, machine, state, cases, case.repeat(counts), parts[part].repeat(counts), *np.concatenate(sets, axis=1))


@lru_cache(maxsize=1024)
def _sets(panels: int, filter_panels: int) -> Array:
    """K2 and K3 of each combination."""
    return np.array([*product(_parts(panels, 32), _parts(filter_panels, 32))], dtype=np.float64).T


def _channel_parts(w: Conv) -> tuple[int, ...]:
    return _parts(channels_of(w), 4)


@lru_cache(maxsize=256)
def _parts(total: int, most: int) -> tuple[int, ...]:
    """Balanced parts, `total` itself first."""
    return tuple(sorted({ceil_div(total, part) for part in _PARTS if part <= most}, reverse=True))


def predict(of: Candidates) -> list[Pass]:
    """The passes of every candidate, by the equations at the head of this file."""
    nest = described(of)
    misses = nest.misses(of.machine.levels, of.state, _each_in_core(of)[_WORK].sum(axis=0))
    moved = traffic_of(nest, misses)
    rows = {(one.name, one.written): row for row, one in enumerate(nest.operands)}
    terms = _compute(of, {key: misses[:, row] for key, row in rows.items()})
    passes = []
    for names, own in PASSES:
        if names[0] in terms:
            at = [row for key, row in rows.items() if key in own]
            which = [2 * row + back for row in at for back in range(2)]
            operands = [nest.operands[row].name for row in at]
            compute = {name: terms[name] for name in names}
            exposed = _exposed(of, moved[:, which], operands, compute) if "kernel" in names else 0.0
            passes.append(Pass(of.machine, compute, operands, moved[:, which], exposed=exposed))
    return passes


def _exposed(of: Candidates, moved: Array, operands: Sequence[str], compute: Mapping[str, Array]) -> Array:
    """Cycles in which filters are transferred and nothing is multiplied. `moved` as in `Pass`."""
    of_filters = np.repeat([name == "filters" for name in operands], 2)
    transfer = transfer_cycles(of.machine, moved[:, of_filters]).sum(axis=0)
    exposed: Array = np.maximum(0.0, transfer - sum(compute.values()) / of.k2)
    return exposed


_WORK = [0, 2, 4, 5]  # of `in_core`: k-iterations, stores, transforms


def _each_in_core(of: Candidates) -> Array:
    """`in_core` of every candidate, all groups."""
    each: Array = in_core(of.workload, of.machine, of.cases)[:-1, of.case] * of.workload.groups
    return each


def _compute(of: Candidates, misses: Mapping[tuple[str, bool], Array]) -> dict[str, Array]:
    """Cycles in the core, with the waits for single lines."""
    machine, core, w = of.machine, of.machine.core, of.workload
    kernel, calls, store, load, patches, outputs = _each_in_core(of)
    channels, _, _, planes, _, panel, windows, _ = _counts(of)
    sets, line = np.ceil(channels / of.channels), machine.line_bytes
    beyond = min(1, len(machine.levels) - 1)

    supplier = machine.levels[2] if len(machine.levels) > 2 else machine.memory
    scattered = max(0.0, supplier.latency_cycles.value / MISSES_IN_FLIGHT - line / supplier.read_bytes_per_cycle.value)

    def waits(rows: Array) -> Array:
        return core.store_run_cycles.value * np.maximum(0.0, 1 - core.prefetch_streams.value / rows)

    runs = misses["products", True][beyond] / (windows * w.element_bytes)
    terms = {
        "kernel": kernel,
        "call": SHORT_CALL * core.call_cycles.value * calls * sets,
        "store": store * sets + load * (sets - 1) + runs * waits(panel),
        "patches": patches
        + misses["input", False][0] / line * core.pack_line_cycles.value
        + misses["patches", True][beyond] / line * waits(planes),
        "outputs": outputs + misses["products", False][beyond] / line * scattered,
    }
    if phases_of(w) > 1:
        terms["phases"] = in_core(w, machine, of.cases)[-1, 0] + misses["image", False][0] / line * core.pack_line_cycles.value
    return terms


def least_cycles(w: Conv, machine: Machine, cases: Cases) -> Array:
    """A lower bound on the cycles of the schedules of each case (rows) and channel set (columns): all in-core work."""
    *own, split = in_core(w, machine, cases)[:, :, None]
    kernel, calls, store, load, patches, outputs = (one * w.groups for one in own)
    sets = np.ceil(channels_of(w) / np.array(_channel_parts(w)))
    each = SHORT_CALL * machine.core.call_cycles.value * calls + store + load
    return kernel + patches + outputs + split - load + sets * each


# Between the levels


def _counts(of: Candidates) -> Array:
    """Of each candidate: channels, panels of tiles and of filters, planes, m, tiles of a panel, filters and tiles of the kernel."""
    columns = [
        (shape.channels, shape.panels, shape.filter_panels, shape.planes, shape.high, shape.panel, kernel.windows, kernel.filters)
        for kernel, shape in of.cases
    ]
    return np.array(columns, dtype=np.float64).T[:, of.case]


def described(of: Candidates) -> LoopNest:
    """The loops of native/algorithms/winograd.c: blocks of panels of tiles and of filters, and the phases of their bodies."""
    w, size = dense(of.workload), of.workload.element_bytes
    channels, panels, filter_panels, planes, outputs, panel, wide, held = _counts(of)
    wide, held = wide * size, held * size
    loops = (
        *([Loop("run", "run", 1, 1)] if phases_of(of.workload) > 1 else []),
        *([Loop("groups", "groups", 1, w.groups)] if w.groups > 1 else []),
        Loop("blocks", "tiles", of.k2, np.ceil(panels / of.k2)),
        Loop("filter blocks", "filter panels", of.k3, np.ceil(filter_panels / of.k3)),
        Loop("planes", "planes", 1, planes),
        Loop("channel sets", "channels", of.channels, np.ceil(channels / of.channels)),
        Loop("panels of filters", "filter panels", 1, of.k3),
        Loop("panels of tiles", "tiles", 1, of.k2),
    )
    image, output = w.input_elements // w.groups * size, w.output_elements // w.groups * size
    source = of.workload.input_elements * size  # the images that are split into phases
    groups = {"groups": Extent(1.0, w.groups)} if w.groups > 1 else {}
    each, depth = Extent(1.0, planes), Extent(1.0, channels)
    read = wide * np.array([phase_share(of.workload, shape) for _, shape in of.cases])[of.case]
    halo = ((w.kernel_h - 1) / outputs + w.kernel_d - 1) * image / panels  # what two rows of tiles share, and other slices
    image_of = {**groups, "tiles": Extent(image / panels, image, halo)}
    patches = {"planes": each, "channels": depth, "tiles": Extent(held, of.k2 * held)}
    products = {"planes": each, "tiles": Extent(panel, of.k2 * panel), "filter panels": Extent(wide, of.k3 * wide)}
    phases = (
        Operand("image", {"run": Extent(source, source)}, "run"),
        Operand("input", image_of, "run", written=True),
    )
    operands = (
        *(phases if phases_of(of.workload) > 1 else ()),
        Operand("input", image_of, "blocks"),
        Operand("patches", patches, "blocks", written=True),
        Operand("patches", patches, "panels of tiles"),
        Operand(
            "filters",
            {**groups, "planes": each, "channels": depth, "filter panels": Extent(read, filter_panels * read)},
            "panels of tiles",
        ),
        # prefetched after the filters that are multiplied
        Operand("", {**groups, "rows": Extent(ROWS_AHEAD * wide, ROWS_AHEAD * wide)}, "panels of tiles"),
        Operand("products", products, "panels of tiles", written=True),
        Operand("products", products, "filter blocks", after_loops=True),
        Operand(
            "output",
            {**groups, "tiles": Extent(output / panels, output), "filter panels": Extent(1 / filter_panels, 1.0)},
            "filter blocks",
            after_loops=True,
            written=True,
        ),
    )
    total: dict[str, Number] = {
        "run": 1,
        "groups": w.groups,
        "rows": 1,
        "tiles": panels,
        "filter panels": filter_panels,
        "planes": planes,
        "channels": channels,
    }
    return LoopNest(loops, operands, total, of.k2.size)
