# SPDX-License-Identifier: Apache-2.0
"""A CPU as one core sees it: units, cache levels, memory, and the constants of the cost model."""

from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from pysim.caches import lazy
from pysim.errors import MachineError, choose
from pysim.machine.energy import Energy
from pysim.machine.quantity import Kind, Number, Positive, Share, Source, Text, facts

# Defaults of a core's optional numbers. Deinterleaving takes 5 multiply-adds, not the 3 of its instructions: with these, plans of stride 2
# were predicted at 0.63 to 0.84 of their time on seven CPUs (Zen, Xeons), and are at 0.86 to 1.15
TRANSFORM_CYCLES, TILE_ROW_CYCLES, DEINTERLEAVE_INSTRUCTIONS = 0.77, 15.0, 5.0
Policy = Literal["lru", "plru", "fifo", "random"]


class Level(msgspec.Struct, frozen=True, cache_hash=True, kw_only=True, forbid_unknown_fields=True):
    """One cache level; latency and bandwidth are those of a hit here as the core sees it (L2: a line from L2 into L1).

    `kind` and `source` are those of the geometry. `shared`: several cores use this level, `cores` of them (default: all); the totals are
    what they get together. `page_bytes`: size of the pages that the operating system places anywhere in physical memory; without it,
    buffers are taken as contiguous there. `others_bytes_per_cycle`: what others, neighbours of a virtual machine among them, bring into a
    shared level in a cycle of this core. `starts_cold`: the previous run's data are in other cores' caches; set for plans of several
    threads, never in a file.
    """

    name: Text
    sets: Positive
    ways: Positive
    line_bytes: Positive
    page_bytes: Positive | None = None
    kind: Kind
    source: Text
    shared: bool = False
    starts_cold: bool = False
    cores: Positive | None = None
    policy: Policy = "lru"
    latency_cycles: Number
    read_bytes_per_cycle: Number
    write_bytes_per_cycle: Number
    total_read_bytes_per_cycle: Number | None = None
    total_write_bytes_per_cycle: Number | None = None
    others_bytes_per_cycle: Number | None = None

    @property
    def size_bytes(self) -> int:
        return self.ways * self.way_bytes

    @property
    def way_bytes(self) -> int:
        """Bytes of one way; addresses this far apart map to the same set."""
        return self.sets * self.line_bytes

    @property
    def page_share(self) -> float:
        """Share of a level's sets that the lines of one page map to; 1 if all pages map to the same sets, or all are contiguous."""
        return min(1.0, self.page_bytes / self.way_bytes) if self.page_bytes else 1.0


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory behind the last cache level, as one core sees it; the totals are what all cores get together."""

    latency_cycles: Number
    read_bytes_per_cycle: Number
    write_bytes_per_cycle: Number
    total_read_bytes_per_cycle: Number | None = None
    total_write_bytes_per_cycle: Number | None = None


class OfType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A unit's rate with the element type `name`, where it differs; it includes the other instructions that a loop needs."""

    name: Text
    fma_per_cycle: Number


class ShortCalls(msgspec.Struct, frozen=True, cache_hash=True, kw_only=True, forbid_unknown_fields=True):
    """What calls of form tiles on operands that are not split are too short to hide: `page_cycles` of each page, `page_walk_cycles` if
    there are more than `near_pages`, `fetch_line_cycles` of each line of the next panels."""

    page_cycles: Number
    page_walk_cycles: Number
    near_pages: Number
    fetch_line_cycles: Number


class Together(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of each of `cpus` busy CPUs over that of one alone: the slowest, and the mean. CPUs share cores, clocks, or the computer
    with other users."""

    cpus: Positive
    slowest_share: Number
    mean_share: Number

    @property
    def name(self) -> str:
        return str(self.cpus)


class Unit(msgspec.Struct, frozen=True, cache_hash=True, kw_only=True, forbid_unknown_fields=True):
    """One instruction set of the core. A load and a store cover one vector of `vector_bytes`.

    A multiply-add is what the kernel registry counts as one: `lane_windows` x `lane_filters` outputs (a vector; a 4x4
    update of `mma`; a single FP32 output of `portable`, which the compiler vectorises as it can). `tile_store_cycles`: of storing a tile
    of form tiles, beyond its vectors. `together`: what each of several CPUs keeps of this unit's rate alone, in ascending order of CPUs;
    absent where that is what the core keeps (power limits how fast all CPUs multiply tiles). `planes_alone`: this computer's library has
    none of its kernels of channel blocks (`as_built`).
    """

    target: Text
    vector_bytes: Positive
    kind: Kind
    source: Text
    fma_per_cycle: Number
    fma_latency_cycles: Number
    loads_per_cycle: Number
    stores_per_cycle: Number
    tile_store_cycles: Number | None = None
    short_calls: ShortCalls | None = None
    together: tuple[Together, ...] = ()
    types: tuple[OfType, ...] = ()
    planes_alone: bool | None = None

    def lanes(self, size: int) -> int:
        """Elements of `size` bytes in a vector."""
        return max(1, self.vector_bytes // size)

    def store_cycles(self, size: int, line: int) -> float:
        """Mean cycles to store a vector of elements of `size` bytes at any offset in a line; crossing a line is a second access."""
        each = 1 / self.stores_per_cycle.value
        return each + (self.vector_bytes - size) / line * min(1.0, each)

    def rate(self, dtype: str) -> float:
        """Multiply-adds a cycle, as the registry counts them, with elements of `dtype`. Vectors of plain C hold half as many doubles as
        floats."""
        for one in self.types:
            if one.name == dtype:
                return one.fma_per_cycle.value
        return self.fma_per_cycle.value / (2 if self.target == "portable" and dtype == "f64" else 1)

    def vector_rate(self, dtype: str, size: int) -> float:
        """Multiply-adds of whole vectors of elements of `size` bytes a cycle."""
        return self.rate(dtype) / (self.lanes(size) if self.target == "portable" else 1)

    def step_cycles(self, dtype: str, along: float, across: float) -> float:
        """Cycles of one k-iteration of along x across multiply-adds, each with its own accumulator; the along + across operands are loaded
        once each. The slowest of multiply-adds, loads and the latency of an accumulator."""
        loads = (along + across) / self.loads_per_cycle.value
        return max(along * across / self.rate(dtype), loads, self.fma_latency_cycles.value)


class Csa(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine as the convolution slicing analysis of SConv (arXiv 2303.04739, section 4) sees it.

    `windows` x `filters` is its micro-kernel, `alpha` the share of each cache that tiles may fill.
    """

    windows: Positive
    filters: Positive
    line_bytes: Positive
    l1_bytes: Positive
    l2_bytes: Positive
    l3_bytes: Positive
    alpha: Share
    kind: Kind
    source: Text
    l2_latency_cycles: Number
    l3_latency_cycles: Number
    memory_latency_cycles: Number


class Core(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core: its clock, its vector units, and the constants of the cost model.

    `call_cycles`: fixed cost of a micro-kernel call. `pack_call_cycles`: fixed cost of packing one run of windows. `pack_cycles`: packing
    one vector, beyond its store. `pack_line_cycles`: wait of packing for a line that is not in L1. `store_run_cycles`: wait of a store for
    an output line from beyond L2 when writes alternate between more than `prefetch_streams` rows of outputs. `overlap`: share (0..1) of
    transfer cycles that hide behind compute. A parallel region costs `fork_join_cycles`, plus `fork_join_thread_cycles` per thread.
    `run_start_share`: a run of a matrix that does not continue the previous one waits this share of its supplier's
    latency, until prefetchers follow. `prefetch_line_cycles`: wait of a loop that prefetches a line from memory into L1 for a miss
    buffer. `crowded_line_cycles`: wait of a kernel for a line of rows in place that all share one set of L1.
    `written_line_cycles`: fetching a line that two threads write from the other's cache.
    `transform_cycles`: least cycles per instruction of a Winograd transform (short dependency chains); default: TRANSFORM_CYCLES.
    `tile_row_cycles`: to start a row of tiles of a depthwise layer in channel blocks; default: TILE_ROW_CYCLES.
    `deinterleave_instructions`: multiply-adds that a deinterleaved vector costs in AVX2, a shuffle within halves, a permute across them and
    what waits for them; default: DEINTERLEAVE_INSTRUCTIONS.
    `together`: in ascending order of CPUs; one alone runs at the full rate.
    """

    name: Text
    frequency_hz: Number
    call_cycles: Number
    pack_call_cycles: Number
    pack_cycles: Number
    pack_line_cycles: Number
    store_run_cycles: Number
    prefetch_streams: Number
    overlap: Number
    run_start_share: Number | None = None
    prefetch_line_cycles: Number | None = None
    crowded_line_cycles: Number | None = None
    fork_join_cycles: Number | None = None
    fork_join_thread_cycles: Number | None = None
    written_line_cycles: Number | None = None
    transform_cycles: Number | None = None
    tile_row_cycles: Number | None = None
    deinterleave_instructions: Number | None = None
    together: tuple[Together, ...] = ()
    units: Annotated[tuple[Unit, ...], msgspec.Meta(min_length=1)]

    @property
    def transform_wait(self) -> float:
        """Least cycles per instruction of a transform."""
        return self.transform_cycles.value if self.transform_cycles else TRANSFORM_CYCLES

    @property
    def tile_row_start(self) -> float:
        """Cycles to start a row of tiles in channel blocks."""
        return self.tile_row_cycles.value if self.tile_row_cycles else TILE_ROW_CYCLES

    @property
    def deinterleaving(self) -> float:
        """Multiply-adds that a deinterleaved vector costs in AVX2."""
        return self.deinterleave_instructions.value if self.deinterleave_instructions else DEINTERLEAVE_INSTRUCTIONS


class Machine(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cpu"):
    """A CPU as one core sees it; `source` covers `cores`."""

    schema: Literal[1]
    name: Text
    description: Text
    cores: Positive
    source: Text
    core: Core
    levels: Annotated[tuple[Level, ...], msgspec.Meta(min_length=1)]
    memory: Memory
    csa: Csa | None = None
    energy: Energy | None = None  # of one core and its share of the chip
    sources: dict[str, Source]

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        # only fields that differ between a machine and its cores' views of it; these share the last level
        last = self.levels[-1]
        return hash((self.name, self.core.frequency_hz.value, self.memory.read_bytes_per_cycle.value, last.sets, last.page_bytes))

    @property
    def clock_hz(self) -> float:
        """The clock that cycles are counted in."""
        return self.core.frequency_hz.value

    @property
    def line_bytes(self) -> int:
        """Line size of the first level."""
        return self.levels[0].line_bytes

    @property
    def outer(self) -> Level:
        """The second level, or the only one."""
        return self.levels[:2][-1]

    def at_clock(self, hertz: float) -> "Machine":
        """The machine at another core clock. Caches scale with the core; memory's rates and latency in seconds stay."""

        def own(number: Number | None, factor: float) -> Number | None:
            return number and msgspec.structs.replace(number, value=number.value * factor)

        slower, memory = self.clock_hz / hertz, self.memory
        rates = {name: own(getattr(memory, name), slower) for name in memory.__struct_fields__ if name.endswith("_bytes_per_cycle")}
        memory = msgspec.structs.replace(memory, **rates, latency_cycles=own(memory.latency_cycles, 1 / slower))
        core = msgspec.structs.replace(self.core, frequency_hz=own(self.core.frequency_hz, 1 / slower))
        return msgspec.structs.replace(self, core=core, memory=memory)

    def contiguous(self) -> "Machine":
        """The machine with buffers that are contiguous in physical memory, as those of the simulator are."""
        return msgspec.structs.replace(self, levels=tuple(msgspec.structs.replace(level, page_bytes=None) for level in self.levels))

    def level(self, name: str) -> Level:
        """The level of that name, or a MachineError that lists the levels."""
        for level in self.levels:
            if level.name == name:
                return level
        raise MachineError(f'{self.name} has no level "{name}"; {choose(name, [level.name for level in self.levels])}')

    def unit(self, target: str) -> Unit | None:
        """The core's unit for this registry target, or None."""
        for unit in self.core.units:
            if unit.target == target:
                return unit
        return None

    def unit_of(self, target: str) -> Unit:
        """The unit of kernels that the machine is known to run."""
        unit = self.unit(target)
        assert unit is not None
        return unit

    def broadcasts_per_cycle(self, unit: Unit) -> float:
        """Broadcasts per cycle to a unit's vectors: the highest load rate of the units that load at least as many bytes a cycle. Zen 4's
        narrower vectors do; Golden Cove's third load port, for narrow vectors only, does not count."""
        rates = [(one.loads_per_cycle.value, one.vector_bytes) for one in self.core.units]
        return max(rate for rate, size in rates if rate * size >= unit.loads_per_cycle.value * unit.vector_bytes)

    def assumed(self) -> list[str]:
        """Paths of the numbers that are of kind assumed, such as `levels.L3.latency_cycles`."""
        return list(_assumed(self))


@lru_cache(maxsize=64)
def _assumed(machine: Machine) -> tuple[str, ...]:
    """Cached, since every plan needs them."""
    return tuple(path for path, value in facts(machine) if value.kind == "assumed")
