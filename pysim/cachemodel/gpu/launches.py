# SPDX-License-Identifier: Apache-2.0
"""Kernels x decompositions x walks on a GPU: which of them are legal, as one table, and what each costs, whatever algorithm they are of.

A variant is one kernel as an algorithm uses it: its columns (`waves.Columns`), how often it runs, and the passes around it. Decompositions:
every tile whole (data parallel); split-K by a few factors and by those that fill one or two waves, while each part keeps LEAST_STEPS steps
and the whole tiles do not fill FULL_WAVES waves by themselves; stream-K with as many blocks as run at once, where tiles do not fill their
last wave. Walks: along m or n, in bands of GROUPS tiles. A table holds all of them; `cost` predicts those of all algorithms in one go, and
keeps the best walk of each.

    cycles = times x launch + passes

Worked number: the CUTLASS blog's SGEMM, 10240 x 4096 x 4096 with tiles of 128 x 128 by 256 threads, has 80 x 32 = 2560 tiles, and
with two blocks on each of 80 SMs exactly 16 waves: CUTLASS 0.1's measure of efficiency is 1 and it does not split k.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pysim.cachemodel.costs import Costs, numbered
from pysim.cachemodel.gpu import threads, waves
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, Work
from pysim.cachemodel.gpu.occupancy import unable
from pysim.cachemodel.gpu.passes import Pass, pass_cycles
from pysim.cachemodel.gpu.threads import Threads
from pysim.cachemodel.gpu.waves import DATA_PARALLEL, OF_WAVES, SPLIT_K, STEP, STREAM_K, TERMS, Array, Columns, Prediction, Table
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.record.cost import Cost, Reason, Rejected
from pysim.record.plan import Request
from pysim.record.plan import named as written
from pysim.record.schedule import DECOMPOSITIONS, AnySchedule, GpuSchedule, Schedule
from pysim.registry.cuda import Attributes, ConvKernel, GemmKernel

SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
GROUPS = (1, 2, 4, 8, 16, 32)
LEAST_STEPS = 2  # of a part of split-K
FULL_WAVES = 2  # tiles that fill this many waves are not split
ALIGN = 256  # bytes, of each part of the workspace
_OWN = ("model.families.", "fma_per_cycle.", "sustained_hz.", "model.passes.", "model.direct.", "l1_")  # what only some kernels lean on

Row = TypeVar("Row", GemmKernel, ConvKernel)


class Variant(NamedTuple):
    """One kernel as an algorithm uses it: its registry row's name, the kind that a plan lists it under, what the compiler made of it and
    whether that is known, a step's work, its columns or its threads, `times` it runs; `schedule` makes a launch of (decomposition, splits,
    along_n, group), of `chunks` where it runs chunk by chunk. `leans`: beginnings of paths of the machine's numbers that it alone leans on;
    `lent`: what else is assumed."""

    kernel: str
    schedule: Callable[[Any, int, bool, int], AnySchedule]
    attributes: Attributes
    known: bool
    leans: tuple[str, ...]
    columns: Columns | None = None
    work: Work | None = None
    threads: Threads | None = None
    family: GpuFamily | None = None
    kind: int = 0
    times: int = 1
    chunks: int = 0
    passes: tuple[Pass, ...] = ()
    lent: tuple[str, ...] = ()


class Candidates(NamedTuple):
    """The legal variants of one algorithm, and what was turned down. Without `kinds`, those of a plan are the decompositions."""

    request: Request
    variants: tuple[Variant, ...]
    kinds: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    limit: float = math.inf

    @property
    def tiled(self) -> list[Columns]:
        """Columns of the variants that have tiles: all, or none."""
        return [variant.columns for variant in self.variants if variant.columns is not None]


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to


# Legality


def legal(
    request: Request,
    name: str,
    rows: Sequence[Row],
    attributes: Callable[[Row], Attributes],
    refuses: Callable[[Row], Reason | None],
) -> tuple[list[Row], list[Rejected]]:
    """The rows of an algorithm that a request may use, and those that it may not, with reasons. A row that is named is used whatever it is
    there for."""
    gpu, problem, named = request.gpu, request.problem, request.schedule
    if named is not None and isinstance(named, Schedule):
        return [], [Rejected(name, f"the named plan is for a CPU; {gpu.name} is a GPU", "machine")]
    found: list[Row] = []
    rejected: list[Rejected] = []
    asked = [row for row in rows if row.dtype == problem.dtype and (named is None or row.name == named.kernel)]
    asked = [row for row in asked if request.micro_kernel in (None, row.name, (row.tiles.rows, row.tiles.columns))]
    for row in asked:
        reason = Reason("ablation", f"{row.variant}: it is there to show what it leaves out") if row.ablation and named is None else None
        if row.replaced_on == gpu.capability_number and named is None:
            reason = Reason("replaced", f"on capability {gpu.capability} others are faster, on instructions that it alone has")
        reason = reason or unable(gpu, row, attributes(row)) or refuses(row)
        if reason:
            rejected.append(Rejected(row.name, reason.sentence, reason.code))
        else:
            found.append(row)
    if not asked:
        one = named.kernel if named else written(request.micro_kernel or "there")
        rejected.append(Rejected(name, f"none of its {problem.dtype} kernels is {one}; `pysim kernels --cuda` lists them", "shape"))
    elif others := sum(row.dtype != problem.dtype for row in rows):
        rejected.append(Rejected(f"{others} kernels of {name} for another type", f"the problem is {problem.dtype}", "type"))
    return found, rejected


def constants_of(gpu: Gpu, families: Iterable[str]) -> tuple[str, GpuFamily]:
    """The first of these families that a machine has constants of, and those."""
    name = next(family for family in families if family in gpu.model.families)
    return name, gpu.model.families[name]


# Launches


def one_each(count: int, kind: int = DATA_PARALLEL, splits: int = 1, along_n: bool = False, group: int = 1) -> Table:
    """One launch of each of `count` variants."""
    return Table(np.arange(count), *(np.full(count, value) for value in (kind, splits, along_n, group)))


def named_table(count: int, schedule: AnySchedule, chunks: int) -> Table:
    """The one launch that a request names, of each of `count` variants."""
    assert isinstance(schedule, GpuSchedule)
    splits = 1 if chunks else schedule.splits
    return one_each(count, DECOMPOSITIONS.index(schedule.decomposition), splits, schedule.along_n, schedule.group)


def table_of(gpu: Gpu, c: Columns) -> Table:
    """Kernels x decompositions x walks, as arrays."""
    tiles_m, tiles_n, steps = np.ceil(c.m / c.tile_m), np.ceil(c.n / c.tile_n), np.ceil(c.k / c.block_k)
    tiles, slots = tiles_m * tiles_n, np.floor(gpu.sms.value / c.blocks) * c.resident
    fill = [np.maximum(1, np.floor(slots * number / tiles)) for number in (1, 2)]
    splits = np.stack([np.full(len(tiles), factor) for factor in SPLITS] + fill, axis=1)
    possible = (splits >= 2) & (steps[:, None] >= LEAST_STEPS * splits) & ((tiles < FULL_WAVES * slots) & (c.divides > 0))[:, None]
    row, column = np.nonzero(possible)
    split = np.unique(np.stack([row, splits[row, column].astype(int)]), axis=1)
    shared = (c.divides > 0) & (slots >= 2) & (slots <= c.stream_most)
    tail = np.flatnonzero((tiles % slots != 0) & (tiles * steps >= 2 * slots) & shared)
    every = np.arange(len(tiles))
    row = np.concatenate([every, split[0], tail])
    kind = np.repeat([DATA_PARALLEL, SPLIT_K, STREAM_K], [len(every), split.shape[1], len(tail)])
    parts = np.concatenate([np.ones(len(every), int), split[1], slots[tail].astype(int)])
    return _walked(tiles_m, tiles_n, row, kind, parts)


def _walked(tiles_m: Array, tiles_n: Array, row: Array, kind: Array, parts: Array) -> Table:
    """Each launch with every walk: bands as wide as the tiles that there are, and no two that are the same."""
    walks = [(along, group) for along in (False, True) for group in GROUPS]
    along = np.array([walk[0] for walk in walks])
    group = np.array([walk[1] for walk in walks])
    across = np.where(along, tiles_m[row, None], tiles_n[row, None])
    keep = (group < 2 * across) & ((group == 1) | (across > 1))
    launch, walk = np.nonzero(keep)
    return Table(row[launch], kind[launch], parts[launch], along[walk], group[walk])


# Costs


def cost(gpu: Gpu, found: Sequence[Candidates]) -> list[Costs]:
    """The costs of several algorithms' candidates."""
    return [one.costs() for one in launched(gpu, found)]


def launched(gpu: Gpu, found: Sequence[Candidates]) -> list["Launches"]:
    """Several algorithms' candidates, all tiled ones predicted as one table."""
    columns = columns_of([one for candidates in found for one in candidates.tiled])
    request, count = found[0].request, len(columns.m)
    chunks = max((variant.chunks for one in found for variant in one.variants), default=0)
    table = table_of(gpu, columns) if request.schedule is None else named_table(count, request.schedule, chunks)
    prediction = waves.predict(gpu, columns, table, request.state == "hot")
    kept = best_walks(table, prediction.cycles)
    table, prediction = table.select(kept), prediction.select(kept)
    edges = np.cumsum([0, *(len(one.tiled) for one in found)]).tolist()
    launches = []
    for one, low, high in zip(found, edges[:-1], edges[1:], strict=True):
        if one.variants and low == high:
            launches.append(_of_threads(gpu, one))
        else:
            some = np.flatnonzero((low <= table.variant) & (table.variant < high))
            mine = table.select(some)
            launches.append(Launches(one, mine._replace(variant=mine.variant - low), prediction.select(some)))
    return launches


def columns_of(some: Sequence[Columns]) -> Columns:
    """Columns of variants as arrays."""
    return Columns(*(np.array(some, float).T if some else np.empty((len(Columns._fields), 0))))


def best_walks(table: Table, cycles: Array) -> Array:
    """The first of the best rows of each (variant, decomposition, splits), in the table's order."""
    if not len(cycles):
        return np.empty(0, int)
    launch = np.stack(table[:3])
    changes = np.flatnonzero((launch[:, 1:] != launch[:, :-1]).any(axis=0)) + 1
    starts = np.concatenate([[0], changes])
    least = np.repeat(np.minimum.reduceat(cycles, starts), np.diff([*starts, len(cycles)]))
    best = np.flatnonzero(cycles == least)
    return best[np.searchsorted(best, starts)]


def _of_threads(gpu: Gpu, one: Candidates) -> "Launches":
    """Of an algorithm's kernels without tiles."""
    kernels = [(of.threads, of.attributes, of.family) for of in one.variants if of.threads and of.family]
    return Launches(one, one_each(len(kernels)), threads.predict(gpu, kernels, one.request.state == "hot"))


class Launches:
    """One algorithm's launches, each in its best walk, and what they are predicted to cost."""

    def __init__(self, of: Candidates, table: Table, prediction: Prediction) -> None:
        self.of, self.table, self.prediction = of, table, prediction
        self.gpu = gpu = of.request.gpu
        self.around = np.array([sum(pass_cycles(gpu, one) for one in variant.passes) for variant in of.variants], float)
        times = np.array([variant.times for variant in of.variants], float)
        self.cycles: Array = prediction.cycles * times[table.variant] + self.around[table.variant]

    def costs(self) -> Costs:
        """As arrays."""
        of, table = self.of, self.table
        kernels, kernel = numbered(variant.kernel for variant in of.variants)
        kernel = kernel[table.variant]
        kind = np.array([variant.kind for variant in of.variants], int)[table.variant] if of.kinds else table.kind
        least = np.full(len(kernels), np.inf)
        np.minimum.at(least, kernel, self.cycles)
        return Costs(self.cycles, kernels, kernel, of.kinds or DECOMPOSITIONS, kind, least, kernel, self.schedule, self.cost, self.assumed)

    def variant(self, row: int) -> Variant:
        return self.of.variants[int(self.table.variant[row])]

    def schedule(self, row: int) -> AnySchedule:
        """One candidate as the launch that the library obeys."""
        _, kind, splits, along_n, group = (int(column[row]) for column in self.table)
        variant = self.variant(row)
        return variant.schedule(DECOMPOSITIONS[kind], variant.chunks or splits, bool(along_n), group)

    def cost(self, row: int) -> Cost:
        """One candidate's cost; `levels` says what crosses from L2 and memory, and the wavefronts of shared memory."""
        variant, p = self.variant(row), self.prediction
        waves_, others = p.waves[:, :, row] * variant.times, p.others[:, row] * variant.times
        terms = dict(zip(TERMS, [*waves_.sum(axis=0).tolist(), *others.tolist()], strict=True))
        bound = max(terms, key=lambda name: terms[name])
        bound = STEP[int(p.bound[row])] if bound == OF_WAVES[0] else bound
        wavefronts, shared, *moved = (p.traffic[:, row] * variant.times).tolist()
        levels = {"shared": {"wavefronts": wavefronts, "bytes": wavefronts * LINE_BYTES, "cycles": shared}}
        for name, size in zip(OF_WAVES[2:], moved, strict=True):
            levels[name] = {"bytes": size, "lines": size / LINE_BYTES, "cycles": terms[name]}
        cycles = float(self.cycles[row])
        if variant.passes:
            around, carried = float(self.around[self.table.variant[row]]), sum(one.read + one.written for one in variant.passes)
            terms["passes"] = around
            bound = "passes" if around > cycles - around else bound
            levels["passes"] = {"bytes": carried, "lines": carried / LINE_BYTES, "cycles": around}
        return Cost(cycles, cycles / self.gpu.clock_hz, bound, levels, terms, hidden(waves_))

    def assumed(self, row: int) -> tuple[str, ...]:
        """Paths of the machine's numbers that a cost leans on and nobody measured or published, and what else is assumed of its kernel."""
        variant = self.variant(row)
        leans = (*variant.leans, *(("model.passes.rate_share", "model.passes.element_instructions") if variant.passes else ()))
        return (*_assumed(self.gpu, leans), *variant.lent)


def hidden(parts: Array) -> dict[str, float]:
    """Cycles of each of OF_WAVES that pass while others are served, from those of the full waves and of the last one: of loop and power, of
    L2 and memory the lesser wholly; of the larger ones what their sum is more than both take together, of the lesser."""
    found = [0.0] * len(OF_WAVES)
    for wave in parts.tolist():
        loop, power = (0, 1) if wave[0] >= wave[1] else (1, 0)
        l2, memory = (2, 3) if wave[2] >= wave[3] else (3, 2)
        found[power] += wave[power]
        found[memory] += wave[memory]
        lesser = min(loop, l2, key=lambda i: wave[i])
        found[lesser] += wave[loop] + wave[l2] - waves.together(wave[loop], wave[l2])
    return {name: value for name, value in zip(OF_WAVES, found, strict=True) if value}


@lru_cache(maxsize=256)
def _assumed(gpu: Gpu, leans: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in gpu.assumed() if path.startswith(leans) or not path.startswith(_OWN))


# Workspace


def partial_bytes(decomposition: str, splits: int, tiles: int, blocks: int, sums: int) -> int:
    """Bytes of flags and of partial sums: `tiles` of clusters of `blocks`, each of whose tiles has `sums` bytes of accumulators."""
    parts = {"data_parallel": 0, "split_k": tiles * splits, "stream_k": 2 * splits}[decomposition]
    return round_up(tiles * blocks * 4, ALIGN) + parts * blocks * sums if parts else 0
