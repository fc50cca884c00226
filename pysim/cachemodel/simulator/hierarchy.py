# SPDX-License-Identifier: Apache-2.0
"""Exact simulation of cache hierarchies: requests, misses, evictions and write-backs of each level for a given trace.

Up to 8 set-associative levels, private or shared by several cores. By default a level is write-back,
write-allocate and non-inclusive with LRU replacement; a miss fills every level it passed, and an access that straddles lines
touches each. `native/simulator/simulate_levels.h` states the rules in full, for every policy, and defines the counters.

At L1 a load or store is one line touched by the core. Further out a load is a line read by the level inside (for its load misses, for its
store misses that allocate, for its prefetches), and a store is a write-back or a write-through from it. So the `misses` of a level
without prefetcher are the `loads` of the next level, and its `writebacks` are the next level's `stores`.

pycachesim counts the same events under other names: MISS = misses, EVICT = writebacks (clean evictions are not counted there),
HIT = loads that hit (store hits are not counted), LOAD = loads + store misses that allocate, STORE = stores; its L1 counts
LOAD and STORE once per access, not once per line; a store written through is an EVICT. Its LRU also behaves differently: a
store that hits, or a write-back, does not make the line the most recently used. Here it does, as in hardware.

Worked number: 64 lines of 64 bytes, read twice through 32 sets x 1 way: 128 loads, 128 misses, 96 evictions.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from pysim.arguments import word
from pysim.errors import MachineError, OperandError, quoted
from pysim.machine.cpu import Machine, Policy
from pysim.machine.load import load
from pysim.record.html import table

Inclusion = Literal["non-inclusive", "inclusive", "exclusive"]
Prefetch = Literal["next-line", "stream"]
OPERANDS = ("other", "input", "filter", "output", "packed_input", "packed_filter", "columns", "bias")
PHASES = ("other", "pack", "compute", "store")
MAX_CORES = 256


class Cache(msgspec.Struct, frozen=True):
    """One level: `sets` x `ways` lines of `line_bytes` (a power of two, at least that of the level inside).

    `inclusion` relates the level to the levels inside it; an exclusive level is a victim cache of the one inside it.
    `fetch_on_writeback=False` lets a write-back of a whole line allocate without reading the next level. `prefetch` reads
    `prefetch_degree` lines ahead, within 4 KiB pages. A level that is not `shared` exists once per core. plru needs 1, 2, 4 .. 64 ways.
    Raises MachineError for a bad number or word; the native library rejects impossible geometries (`Hierarchy`).
    """

    name: str
    sets: int
    ways: int
    line_bytes: int
    policy: Policy = "lru"
    write_back: bool = True
    write_allocate: bool = True
    inclusion: Inclusion = "non-inclusive"
    prefetch: Prefetch | None = None
    prefetch_degree: int = 1
    fetch_on_writeback: bool = True
    shared: bool = False

    @property
    def size_bytes(self) -> int:
        return self.sets * self.ways * self.line_bytes

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise MachineError(f'a cache\'s name is {quoted(self.name)}; expected a text, such as "L1"')
        for field in ("sets", "ways", "line_bytes", "prefetch_degree"):
            _whole(getattr(self, field), 1, 1 << 40, f'cache "{self.name}": {field}')
        word(self.policy, f'policy of cache "{self.name}"', get_args(Policy), MachineError)
        word(self.inclusion, f'inclusion of cache "{self.name}"', get_args(Inclusion), MachineError)
        if self.prefetch is not None:
            word(self.prefetch, f'prefetch of cache "{self.name}"', get_args(Prefetch), MachineError)


class Counts(msgspec.Struct, frozen=True):
    """Events at one level; `native/simulator/simulate_levels.h` defines each number. Bytes are those between it and the next level."""

    loads: int = 0
    stores: int = 0
    load_misses: int = 0
    store_misses: int = 0
    evictions: int = 0
    writebacks: int = 0
    invalidations: int = 0
    victims: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    prefetches: int = 0
    prefetch_hits: int = 0

    @property
    def misses(self) -> int:
        return self.load_misses + self.store_misses

    @property
    def hits(self) -> int:
        return self.loads + self.stores - self.misses


_FIELDS = Counts.__struct_fields__


class Chunk(NamedTuple):
    """A piece of a trace: int64 byte addresses, int32 sizes, 0/1 stores; one tag (see `tag`) and one core each, or None for 0.

    Sizes, stores, tags and cores may also be one number for all accesses.
    """

    addresses: npt.ArrayLike
    sizes: npt.ArrayLike
    is_write: npt.ArrayLike
    tags: npt.ArrayLike | None = None
    cores: npt.ArrayLike | None = None


class Result:
    """Counters of one simulation: `result["L1"].misses`, and by operand or phase `result.by("L1", operand="output").misses`."""

    def __init__(self, levels: Sequence[str], counts: npt.NDArray[np.int64], accesses: int) -> None:
        self.levels = tuple(levels)
        self.counts = counts  # [level][phase][operand][counter]
        self.accesses = accesses

    def __getitem__(self, level: str) -> Counts:
        return self.by(level)

    def __iter__(self) -> Iterator[str]:
        return iter(self.levels)

    def by(self, level: str, operand: str | int | None = None, phase: str | int | None = None) -> Counts:
        """The part of a level's counts due to one operand, one phase, or both."""
        part = self.counts[_index(self.levels, level, "cache level")]
        rows = part if phase is None else part[[_index(PHASES, phase, "phase")]]
        cells = rows if operand is None else rows[:, [_index(OPERANDS, operand, "operand")]]
        return Counts(*(int(number) for number in cells.sum(axis=(0, 1))))

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Per level, every counter with `hits` and `misses`."""
        counts = {level: self[level] for level in self.levels}
        return {level: msgspec.structs.asdict(c) | {"hits": c.hits, "misses": c.misses} for level, c in counts.items()}

    def _repr_html_(self) -> str:
        """What notebooks show: requests and misses of each level."""
        rows = []
        for level, c in ((level, self[level]) for level in self.levels):
            requests = c.loads + c.stores
            share = f"{c.misses / requests:.2%}" if requests else "-"
            rows.append((level, f"{requests:,}", f"{c.hits:,}", f"{c.misses:,}", share, f"{c.writebacks:,}"))
        return table(f"{self.accesses:,} accesses, simulated", ("level", "requests", "hits", "misses", "miss rate", "write-backs"), rows)

    def __repr__(self) -> str:
        rows = (f"{level}: {c.loads + c.stores} requests, {c.misses} misses" for level, c in ((i, self[i]) for i in self.levels))
        return f"<{self.accesses} accesses; {'; '.join(rows)}>"


class Hierarchy:
    """Caches from the core outward, L1 first, and their contents between calls.

    `cores` have their own private levels and share one copy of the shared ones. `seed` fixes random replacement. The only state is the
    caches' contents: `simulate` and `run` start empty unless `warm=True` keeps what the last call left. A run that starts empty raises
    MachineError for levels that do not fit each other, with the native library's sentence.
    """

    def __init__(self, levels: Iterable[Cache], *, cores: int = 1, seed: int = 0) -> None:
        self.levels = tuple(levels) if isinstance(levels, Iterable) else (levels,)
        if not all(isinstance(level, Cache) for level in self.levels):
            raise MachineError(f"the levels of a cache hierarchy are {quoted(levels)}; expected a list of Cache values, L1 first")
        self.cores = cores
        self.seed = seed
        _whole(cores, 1, MAX_CORES, "cores of a cache hierarchy")
        _whole(seed, 0, (1 << 64) - 1, "seed of a cache hierarchy")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise MachineError(f"cache levels are named {', '.join(names)}; each name may stand once")
        self._state: npt.NDArray[np.uint64] | None = None

    @classmethod
    def from_machine(cls, machine: str | Path | Machine, *, cores: int = 1, seed: int = 0) -> "Hierarchy":
        """The levels of a machine file (by name, path or value), each write-back, write-allocate and non-inclusive."""
        on = machine if isinstance(machine, Machine) else load(machine)
        levels = (
            Cache(level.name, level.sets, level.ways, level.line_bytes, policy=level.policy, shared=level.shared) for level in on.levels
        )
        return cls(levels, cores=cores, seed=seed)

    def simulate(
        self,
        addresses: npt.ArrayLike,
        sizes: npt.ArrayLike,
        is_write: npt.ArrayLike,
        *,
        tags: npt.ArrayLike | None = None,
        cores: npt.ArrayLike | None = None,
        flush: bool = False,
        warm: bool = False,
    ) -> Result:
        """Counts of one trace: n byte addresses (0..2^56-1), sizes in bytes (at least 1), stores (0 or 1).

        `flush` writes dirty lines back at the end, through every level; `warm` starts from what the last call left in the caches.
        Raises OperandError for arrays that are no trace, before any of it counts.
        """
        return self.run([Chunk(addresses, sizes, is_write, tags, cores)], flush=flush, warm=warm)

    def run(self, chunks: Iterable[Chunk | tuple[npt.ArrayLike, ...]], *, flush: bool = False, warm: bool = False) -> Result:
        """Counts of a trace that arrives in chunks; memory is that of one chunk and of the caches, however long the trace."""

        def feed(state: Any) -> int:
            ffi, lib = _native()
            accesses = 0
            for number, chunk in enumerate(chunks):
                arrays = _arrays(Chunk(*chunk), number)
                pointers = (ffi.NULL if a is None else ffi.from_buffer(kind, a) for a, kind in zip(arrays, _KINDS, strict=True))
                n = len(arrays[0])
                _check(lib.pysim_cache_access(state, n, *pointers), ffi, lib, f"chunk {number}: ")
                accesses += n
            return accesses

        return self.drive(feed, flush=flush, warm=warm)

    def drive(self, feed: Callable[[Any], int], *, flush: bool = False, warm: bool = False) -> Result:
        """Counts of what `feed(state)` does to the caches' native state; it returns the number of accesses."""
        ffi, lib = _native()
        if self._state is None or not warm:
            self.reset()
        state = ffi.from_buffer("char[]", self._state)
        _check(lib.pysim_cache_clear_counters(state), ffi, lib)
        accesses = feed(state)
        if flush:
            _check(lib.pysim_cache_flush(state), ffi, lib)
        counts = np.zeros((len(self.levels), len(PHASES), len(OPERANDS), len(_FIELDS)), np.int64)
        for level in range(len(self.levels)):
            out = ffi.from_buffer("pysim_cache_counters *", counts[level])
            _check(lib.pysim_cache_read_counters(state, level, out), ffi, lib)
        return Result([level.name for level in self.levels], counts, accesses)

    def reset(self) -> None:
        """Empties every cache and starts the random sequence again."""
        ffi, lib = _native()
        config = _config(ffi, self)
        size = ffi.new("int64_t *")
        _check(lib.pysim_cache_state_bytes(config, size), ffi, lib, error=MachineError)
        if self._state is None:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if size[0] > memory:
                raise MachineError(f"simulating these caches takes {size[0]} bytes; this machine has {memory}")
            room = np.empty(size[0] // 8 + 8, np.uint64)
            self._state = room[-(room.ctypes.data // 8) % 8 :][: -(-size[0] // 8)]  # aligned to the host's cache lines
        _check(lib.pysim_cache_init(config, ffi.from_buffer("char[]", self._state), self._state.nbytes), ffi, lib, error=MachineError)

    def contents(self, level: str, core: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The lines in a level (that of `core`, if it is private): byte addresses, and which are dirty."""
        index = _index([cache.name for cache in self.levels], level, "cache level")
        _whole(core, 0, self.cores - 1, "core")
        lines = self.levels[index].sets * self.levels[index].ways
        addresses, dirty = np.zeros(lines, np.int64), np.zeros(lines, np.uint8)
        if self._state is None:
            return addresses[:0], dirty[:0].astype(bool)
        ffi, lib = _native()
        count = ffi.new("int64_t *")
        places = ffi.from_buffer("int64_t[]", addresses), ffi.from_buffer("uint8_t[]", dirty)
        _check(lib.pysim_cache_contents(ffi.from_buffer("char[]", self._state), index, core, *places, count), ffi, lib)
        return addresses[: count[0]], dirty[: count[0]].astype(bool)


def tag(operand: str | int, phase: str | int) -> int:
    """The tag byte of an access: operand | phase << 4, names of OPERANDS and PHASES or their numbers."""
    return _index(OPERANDS, operand, "operand") | _index(PHASES, phase, "phase") << 4


def _index(names: Sequence[str], name: str | int, what: str) -> int:
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name < len(names):
        return name
    return list(names).index(word(name, what, names, MachineError))


def _whole(value: Any, least: int, most: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise MachineError(f"{what} is {quoted(value)}; it should be a whole number from {least} to {most}")


def _native() -> tuple[Any, Any]:
    from pysim.runtime import cpu as runtime

    return runtime.library()


def _config(ffi: Any, hierarchy: Hierarchy) -> Any:
    config = ffi.new("pysim_cache_config *")
    config.levels, config.cores, config.seed = len(hierarchy.levels), hierarchy.cores, hierarchy.seed
    for target, level in zip(config.level, hierarchy.levels, strict=False):
        target.sets, target.ways, target.line_bytes = level.sets, level.ways, level.line_bytes
        target.policy = get_args(Policy).index(level.policy)
        target.inclusion = get_args(Inclusion).index(level.inclusion)
        target.write_back, target.write_allocate = level.write_back, level.write_allocate
        target.fetch_on_writeback = level.fetch_on_writeback
        target.prefetch = 0 if level.prefetch is None else 1 + get_args(Prefetch).index(level.prefetch)
        target.prefetch_degree, target.shared = level.prefetch_degree, level.shared
    return config


def _check(status: int, ffi: Any, lib: Any, where: str = "", error: type[MachineError | OperandError] = OperandError) -> None:
    if status:
        raise error(where + ffi.string(lib.pysim_last_error()).decode())


_KINDS = ("int64_t[]", "int32_t[]", "uint8_t[]", "uint8_t[]", "uint8_t[]")
_TYPES: tuple[type[np.integer[Any]], ...] = (np.int64, np.int32, np.uint8, np.uint8, np.uint8)


def _arrays(chunk: Chunk, number: int) -> list[Any]:
    """The chunk as the five arrays that the native library reads; no copy if they are such arrays already."""
    addresses = _array(chunk.addresses, np.int64, None, f"chunk {number}: addresses")
    rest = zip(chunk[1:], _TYPES[1:], Chunk._fields[1:], strict=True)
    return [addresses, *(None if a is None else _array(a, kind, len(addresses), f"chunk {number}: {name}") for a, kind, name in rest)]


def _array(values: npt.ArrayLike, kind: type[np.integer[Any]], length: int | None, what: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(kind)
    if array.dtype.kind not in "iub":
        raise OperandError(f"{what}: dtype is {array.dtype}; it should be whole numbers")
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1 or length not in (None, len(array)):
        right = "one dimension" if length is None else f"({length},), one for each address, or a single number"
        raise OperandError(f"{what}: shape is {array.shape}; it should be {right}")
    converted = np.ascontiguousarray(array, dtype=kind)
    if array.dtype != converted.dtype and not np.array_equal(converted, array):
        raise OperandError(f"{what}: values reach from {array.min()} to {array.max()}; they should fit {converted.dtype}")
    return converted
