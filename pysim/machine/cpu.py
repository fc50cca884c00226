# SPDX-License-Identifier: Apache-2.0
"""A CPU as one core sees it: units, cache levels, memory, and the constants of the cost model."""

from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from pysim.errors import MachineError, choose
from pysim.machine.quantity import Kind, Number, Positive, Share, Source, Text, facts

TRANSFORM_CYCLES = 0.77  # of a core whose file does not say
Policy = Literal["lru", "plru", "fifo", "random"]


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cache level; latency and bandwidth are those of a hit here as the core sees it (L2: a line from L2 into L1).

    `kind` and `source` are those of the geometry. `shared` says that other cores use this level too: `cores` of them, without it all
    of the machine; the totals are what they get together. `forgets`, of no file: what the run before left is in other cores' caches.
    """

    name: Text
    sets: Positive
    ways: Positive
    line_bytes: Positive
    kind: Kind
    source: Text
    shared: bool = False
    forgets: bool = False
    cores: Positive | None = None
    policy: Policy = "lru"
    latency_cycles: Number
    read_bytes_per_cycle: Number
    write_bytes_per_cycle: Number
    total_read_bytes_per_cycle: Number | None = None
    total_write_bytes_per_cycle: Number | None = None

    @property
    def size_bytes(self) -> int:
        return self.ways * self.way_bytes

    @property
    def way_bytes(self) -> int:
        """Of one way: after so many bytes sets repeat."""
        return self.sets * self.line_bytes


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies behind the last level, as one core sees it; the totals are what all cores get together."""

    latency_cycles: Number
    read_bytes_per_cycle: Number
    write_bytes_per_cycle: Number
    total_read_bytes_per_cycle: Number | None = None
    total_write_bytes_per_cycle: Number | None = None


class OfType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a unit does with one element type, its `name`, where that differs: what a loop needs besides is in the rate."""

    name: Text
    fma_per_cycle: Number


class Unit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One instruction set of the core. A load and a store cover one vector of `vector_bytes`.

    A multiply-add is what the kernel registry counts as one: `lane_windows` x `lane_filters` outputs (a vector; a 4x4
    update of `mma`; a single FP32 output of `portable`, which the compiler vectorises as it can).
    """

    target: Text
    vector_bytes: Positive
    kind: Kind
    source: Text
    fma_per_cycle: Number
    fma_latency_cycles: Number
    loads_per_cycle: Number
    stores_per_cycle: Number
    types: tuple[OfType, ...] = ()

    def lanes(self, size: int) -> int:
        """Elements of `size` bytes in a vector."""
        return max(1, self.vector_bytes // size)

    def store_cycles(self, size: int, line: int) -> float:
        """Of a vector of elements of `size` bytes that begins anywhere in a line: one that crosses into the next is one more access."""
        each = 1 / self.stores_per_cycle.value
        return each + (self.vector_bytes - size) / line * min(1.0, each)

    def rate(self, dtype: str) -> float:
        """Multiply-adds a cycle with elements of `dtype`. Vectors of plain C hold half as many doubles as floats."""
        for one in self.types:
            if one.name == dtype:
                return one.fma_per_cycle.value
        return self.fma_per_cycle.value / (2 if self.target == "portable" and dtype == "f64" else 1)

    def step_cycles(self, dtype: str, along: float, across: float) -> float:
        """Cycles of along x across multiply-adds, each on an accumulator of its own, of as many operands, loaded once each: the slowest of
        these instructions and of the latency of an accumulator."""
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


class Together(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What CPUs that are busy at once keep of the rate of one alone: the slowest of so many, and all on average. They share cores, clocks,
    or the computer with strangers."""

    cpus: Positive
    slowest_share: Number
    mean_share: Number

    @property
    def name(self) -> str:
        return str(self.cpus)


class Core(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core: its clock, its vector units, and the constants of the cost model.

    `call_cycles` is the fixed cost of a micro-kernel call, `pack_call_cycles` of packing one run of windows, `pack_cycles`
    what packing one vector costs beyond its store, `pack_line_cycles` what packing waits for a line that is not in L1,
    `store_run_cycles` what a store waits for an output line from beyond L2 where more than `prefetch_streams` rows of
    outputs are written in turn, and `overlap` the share (0..1) of transfer cycles that hide behind compute. A parallel region begins
    and ends in `fork_join_cycles` and `fork_join_thread_cycles` for each thread. `scattered_line_cycles` is what a line from beyond L2
    waits where neighbours in time lie pages apart, so that no prefetcher follows; without it, what packing waits. A run of a matrix
    that does not begin where the last one ended waits `run_start_share` of the latency of what supplies it, until prefetchers follow. A
    line that two threads write comes from the other's cache in `written_line_cycles`. An instruction of one of Winograd's transforms, which
    are short chains, takes at least `transform_cycles`; without it, TRANSFORM_CYCLES. `together`: by growing numbers of CPUs; one alone has
    all of its rate.
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
    scattered_line_cycles: Number | None = None
    run_start_share: Number | None = None
    fork_join_cycles: Number | None = None
    fork_join_thread_cycles: Number | None = None
    written_line_cycles: Number | None = None
    transform_cycles: Number | None = None
    together: tuple[Together, ...] = ()
    units: Annotated[tuple[Unit, ...], msgspec.Meta(min_length=1)]

    @property
    def scattered_wait(self) -> float:
        """Cycles of a line from beyond L2 that nothing asked for ahead."""
        return (self.scattered_line_cycles or self.pack_line_cycles).value

    @property
    def transform_wait(self) -> float:
        """Cycles of an instruction of a transform at least."""
        return self.transform_cycles.value if self.transform_cycles else TRANSFORM_CYCLES


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cpu"):
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
    sources: dict[str, Source]

    def __hash__(self) -> int:
        # what differs between a machine and its cores' views of it, and little else: the last level is the one that they share
        return hash((self.name, self.core.frequency_hz.value, self.memory.read_bytes_per_cycle.value, self.levels[-1].sets))

    @property
    def clock_hz(self) -> float:
        """The clock that cycles are counted in."""
        return self.core.frequency_hz.value

    @property
    def line_bytes(self) -> int:
        """Of the first level."""
        return self.levels[0].line_bytes

    @property
    def outer(self) -> Level:
        """The second level; the first where there is one alone."""
        return self.levels[:2][-1]

    def at_clock(self, hertz: float) -> "Machine":
        """The machine with another clock of its cores. Their caches are as fast as they are, memory keeps its own time."""

        def own(number: Number | None, factor: float) -> Number | None:
            return number and msgspec.structs.replace(number, value=number.value * factor)

        slower, memory = self.clock_hz / hertz, self.memory
        rates = {name: own(getattr(memory, name), slower) for name in memory.__struct_fields__ if name.endswith("_bytes_per_cycle")}
        memory = msgspec.structs.replace(memory, **rates, latency_cycles=own(memory.latency_cycles, 1 / slower))
        core = msgspec.structs.replace(self.core, frequency_hz=own(self.core.frequency_hz, 1 / slower))
        return msgspec.structs.replace(self, core=core, memory=memory)

    def level(self, name: str) -> Level:
        """The level of that name, or a MachineError that lists the levels."""
        for level in self.levels:
            if level.name == name:
                return level
        raise MachineError(f'{self.name} has no level "{name}"; {choose(name, [level.name for level in self.levels])}')

    def unit(self, target: str) -> Unit | None:
        """What the core does with this registry target, or None where it lacks it."""
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
        """Elements that come into all lanes of a unit's vectors: one takes a pass of narrower ones where these bring as many bytes a cycle
        (Zen 4); a port for narrow ones alone brings none (Golden Cove's third)."""
        rates = [(one.loads_per_cycle.value, one.vector_bytes) for one in self.core.units]
        return max(rate for rate, size in rates if rate * size >= unit.loads_per_cycle.value * unit.vector_bytes)

    def assumed(self) -> list[str]:
        """Paths of the numbers that are of kind assumed, such as `levels.L3.latency_cycles`."""
        return list(_assumed(self))


@lru_cache(maxsize=64)
def _assumed(machine: Machine) -> tuple[str, ...]:
    """Every plan asks for them."""
    return tuple(path for path, value in facts(machine) if value.kind == "assumed")
