# SPDX-License-Identifier: Apache-2.0
"""Candidate launches on a GPU: kernels x decompositions x rasterisations, their legality and their cost, whatever their algorithm.

Decompositions: data parallel (every tile whole); split-K by SPLITS and by the factors that fill one or two waves, while each part keeps
MIN_PART_ITERATIONS k-iterations and the whole tiles fill less than MAX_SPLIT_WAVES waves; stream-K with as many blocks as run at once,
where tiles do not fill their last wave. Rasterisations: along m or n, in groups of GROUPS tiles. `cost` predicts the candidates of all
algorithms as one table and keeps the best rasterisation of each.

    cycles = times x launch + passes

Worked number: the CUTLASS blog's SGEMM, 10240 x 4096 x 4096 with tiles of 128 x 128 by 256 threads, has 80 x 32 = 2560 tiles, and
with two blocks on each of 80 SMs exactly 16 waves: CUTLASS 0.1's measure of efficiency is 1 and it does not split k.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from pysim.cachemodel.costs import Costs, numbered
from pysim.cachemodel.gpu import threads, waves
from pysim.cachemodel.gpu.columns import DATA_PARALLEL, SPLIT_K, STREAM_K, Columns, Table
from pysim.cachemodel.gpu.copy_kernels import Pass, pass_cycles
from pysim.cachemodel.gpu.mainloop import LINE_BYTES, Work
from pysim.cachemodel.gpu.threads import Threads
from pysim.cachemodel.gpu.traffic import Floats, Integers, Number
from pysim.cachemodel.gpu.waves import LOOP_BOUNDS, TERMS, WAVE_TERMS, Prediction
from pysim.caches import lazy
from pysim.machine.gpu import Gpu, GpuFamily
from pysim.record.cost import Cost, Reason, Rejected
from pysim.record.plan import MicroKernel, Request
from pysim.record.plan import named as written
from pysim.record.schedule import DECOMPOSITIONS, AnySchedule, Decomposition, GpuSchedule, Schedule
from pysim.registry.cuda import Attributes, ConvKernel, GemmKernel

SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
GROUPS = (1, 2, 4, 8, 16, 32)
MIN_PART_ITERATIONS = 2  # k-iterations of a split-K part
FIRST, MAX_KINDS = 4, 16  # launches of a kind that are predicted first, those of least bounds; kinds of an algorithm
MIN_PRUNED = 80  # fewer launches are predicted whole
MAX_SPLIT_WAVES = 2  # tiles that fill this many waves are not split
MAX_SPLITS = 1 << 32  # more than any number of parts
CYCLE_DIGITS = 3  # after the point, in which equal predictions agree: their terms are added in different orders
ALIGN = 256  # bytes, of each part of the workspace
# Prefixes of the paths of machine numbers that only some kernels use
_OF_SOME_KERNELS = (
    "model.families.",
    "fma_per_cycle.",
    "sustained_hz.",
    "model.passes.",
    "model.direct.",
    "model.row_ends",
    "model.residues.",
    "l1_",
    "clusters_at_once.",
)

Row = TypeVar("Row", GemmKernel, ConvKernel)


class Variant(msgspec.Struct, frozen=True):
    """One kernel as an algorithm uses it.

    `kernel`: name of its registry row; `schedule`: makes a launch of (decomposition, splits or chunks, along_n, group); `attributes`: what
    the compiler made of it, or an estimate (`compiled`: False); `columns` and the `work` of a k-iteration, or `threads` and their `family`
    of constants for a kernel without tiles; `kind`: index of Candidates.kinds; `times`: launches; `chunks`: of the problem, 0 where it runs
    whole; `passes`: before and after. `numbers`: prefixes of the paths of machine numbers that this kernel uses and others do not;
    `assumed`: further assumptions about it.
    """

    kernel: str
    schedule: Callable[[Decomposition, int, bool, int], AnySchedule]
    attributes: Attributes
    compiled: bool
    numbers: tuple[str, ...]
    columns: Columns | None = None
    work: Work | None = None
    threads: Threads | None = None
    family: GpuFamily | None = None
    kind: int = 0
    times: float = 1
    chunks: int = 0
    passes: tuple[Pass, ...] = ()
    assumed: tuple[str, ...] = ()

    def estimated(self, attributes: Attributes) -> "Variant":
        """With these attributes, where there are none of the compiler's."""
        return self if self.compiled else msgspec.structs.replace(self, attributes=attributes)


class Candidates(NamedTuple):
    """The legal variants of one algorithm, and the rejected ones. Without `kinds`, a plan lists them by decomposition. `prune`: only the
    best of each kind is needed, whatever its accuracy."""

    request: Request
    variants: tuple[Variant, ...]
    kinds: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    prune: bool = False
    limit: float = math.inf

    @property
    def tiled(self) -> list[Columns]:
        """Columns of the variants with tiles: all variants, or none."""
        return [variant.columns for variant in self.variants if variant.columns is not None]


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def prunes(request: Request, limit: float | None) -> bool:
    """Whether a request needs only the best launch of each kind: not all of them, and not the most accurate ones."""
    return limit is not None and limit < math.inf and request.any_error


# Legality


def legal(
    request: Request,
    name: str,
    rows: tuple[Row, ...],
    unfit: Callable[[Gpu, Row], Reason | None],
    refuses: Callable[[Row], Reason | None],
) -> tuple[list[Row], list[Rejected]]:
    """The rows of an algorithm that a request may use, and the rejected ones with reasons: `unfit` on any problem, or the problem's
    (`refuses`). A row that the request names is used even if it is an ablation or replaced by others."""
    gpu, problem, named = request.gpu, request.problem, request.schedule
    if named is not None and isinstance(named, Schedule):
        return [], [Rejected(name, f"the named plan is for a CPU; {gpu.name} is a GPU", "machine")]
    usable: list[Row] = []
    rejected: list[Rejected] = []
    matching = _matching(gpu, rows, problem.dtype, request.micro_kernel, named and named.kernel, unfit)
    for row, of_machine in matching:
        if of_machine:
            rejected.append(of_machine)
        elif reason := refuses(row):
            rejected.append(Rejected(row.name, reason.sentence, reason.code))
        else:
            usable.append(row)
    if not matching:
        wanted = named.kernel if named else written(request.micro_kernel or "there")
        rejected.append(Rejected(name, f"none of its {problem.dtype} kernels is {wanted}; `pysim kernels --cuda` lists them", "shape"))
    elif others := _others(rows, problem.dtype):
        rejected.append(Rejected(f"{others} kernels of {name} for another type", f"the problem is {problem.dtype}", "type"))
    return usable, rejected


@lru_cache(maxsize=1024)
def _matching(
    gpu: Gpu, rows: tuple[Row, ...], dtype: str, micro_kernel: MicroKernel, named: str | None, unfit: Callable[[Gpu, Row], Reason | None]
) -> tuple[tuple[Row, Rejected | None], ...]:
    """The rows of a type that are asked for, each rejected if the machine does not run it on any problem."""
    matching = [row for row in rows if row.dtype == dtype and named in (None, row.name)]
    matching = [row for row in matching if micro_kernel in (None, row.name, (row.tiles.rows, row.tiles.columns))]

    def refuses(row: Row) -> Reason | None:
        if row.replaced_on == gpu.capability_number and named is None:
            return Reason("replaced", f"capability {gpu.capability} has faster kernels, on instructions of its own")
        if row.ablation and named is None:
            return Reason("ablation", f"{row.variant}: an ablation, planned only if it is named")
        return unfit(gpu, row)

    reasons = ((row, refuses(row)) for row in matching)
    return tuple((row, Rejected(row.name, reason.sentence, reason.code) if reason else None) for row, reason in reasons)


@lru_cache(maxsize=1024)
def _others(rows: tuple[Row, ...], dtype: str) -> int:
    """Rows of other types."""
    return sum(row.dtype != dtype for row in rows)


@lru_cache(maxsize=1024)
def constants_of(gpu: Gpu, families: tuple[str, ...]) -> tuple[str, GpuFamily]:
    """The first of these families that the machine file has, and its constants."""
    name = next(family for family in families if family in gpu.model.families)
    return name, gpu.model.families[name]


# Launches


def one_each(count: int, kind: int = DATA_PARALLEL, splits: int = 1, along_n: bool = False, group: int = 1) -> Table:
    """One launch of each of `count` variants."""
    return Table(np.arange(count), *(np.full(count, value) for value in (kind, splits, along_n, group)))


def named_table(c: Columns, schedule: AnySchedule, chunks: int) -> Table:
    """The launch that a request names, of each variant. Where a variant cannot split k, the decomposition is that of another kernel that
    the schedule names."""
    assert isinstance(schedule, GpuSchedule)
    can_split = np.array(c.max_parts) > 1
    kind = np.where(can_split, DECOMPOSITIONS.index(schedule.decomposition), DATA_PARALLEL)
    splits = np.where(can_split, 1 if chunks else schedule.splits, 1)
    return one_each(len(can_split), along_n=schedule.along_n, group=schedule.group)._replace(kind=kind, splits=splits)


def table_of(gpu: Gpu, c: Columns) -> Table:
    """Kernels x decompositions x rasterisations, as arrays."""
    return rasterised(c, divided(gpu, c))


def divided(gpu: Gpu, c: Columns, parts: tuple[int, ...] = ()) -> Table:
    """Kernels x decompositions, each in one rasterisation. `parts`: as in a request."""
    if parts:
        return _in_parts(c, parts)
    tiles, iterations = np.ceil(c.m / c.tile_m) * np.ceil(c.n / c.tile_n), np.ceil(c.k / c.block_k)
    slots = np.floor(gpu.sms.value / c.cluster_blocks) * c.blocks_per_sm
    splits = np.empty((len(tiles), len(SPLITS) + 2))
    splits[:, :-2] = SPLITS
    splits[:, -2:] = np.maximum(1, np.floor(slots[:, None] * (1, 2) / tiles[:, None]))
    most = np.where(tiles < MAX_SPLIT_WAVES * slots, c.max_parts, 1)[:, None]
    splits = np.where((splits >= 2) & (splits <= most) & (iterations[:, None] >= MIN_PART_ITERATIONS * splits), splits, 0.0)
    splits.sort(axis=1)
    new = splits > 0
    new[:, 1:] &= splits[:, 1:] != splits[:, :-1]
    split = new.nonzero()[0], splits[new].astype(int)
    can_stream = (np.array(c.max_parts) > 1) & (slots >= 2) & (slots <= c.max_stream_blocks)
    stream = np.flatnonzero((tiles % slots != 0) & (tiles * iterations >= 2 * slots) & can_stream)
    whole = np.arange(len(tiles))
    row = np.concatenate([whole, split[0], stream])
    kind = np.repeat([DATA_PARALLEL, SPLIT_K, STREAM_K], [len(whole), len(split[0]), len(stream)])
    numbers = np.concatenate([np.ones(len(whole), int), split[1], slots[stream].astype(int)])
    return Table(row, kind, numbers, np.zeros(len(row), bool), np.ones(len(row), int))


def _in_parts(c: Columns, parts: tuple[int, ...]) -> Table:
    """Kernels x these numbers of parts, where k has enough k-iterations."""
    numbers, iterations = np.array(parts), np.ceil(c.k / c.block_k)
    can_split = (iterations[:, None] >= MIN_PART_ITERATIONS * numbers) & (numbers <= np.array(c.max_parts)[:, None])
    unit = np.array(c.part_unit)[:, None]
    by_block = (unit > 0) & (np.array(c.k)[:, None] > unit * (numbers - 1))
    row, column = np.nonzero(can_split | by_block | (numbers == 1))
    splits = numbers[column]
    return Table(row, np.where(splits > 1, SPLIT_K, DATA_PARALLEL), splits, np.zeros(len(row), bool), np.ones(len(row), int))


def rasterised(c: Columns, launches: Table) -> Table:
    """Each launch with every distinct rasterisation: groups up to the tiles that there are."""
    tiles_m, tiles_n = (np.ceil(size / tile)[launches.variant] for size, tile in ((c.m, c.tile_m), (c.n, c.tile_n)))
    orders = [(along, group) for along in (False, True) for group in GROUPS]
    along = np.array([order[0] for order in orders])
    group = np.array([order[1] for order in orders])
    across = np.where(along, tiles_m[:, None], tiles_n[:, None])
    keep = (group < 2 * across) & ((group == 1) | (across > 1))
    launch, order = np.nonzero(keep)
    return launches.select(launch)._replace(along_n=along[order], group=group[order])


# Costs


def cost(gpu: Gpu, candidates: Sequence[Candidates]) -> list[Costs]:
    """The costs of several algorithms' candidates."""
    return [launches.costs() for launches in launched(gpu, candidates)]


def launched(gpu: Gpu, candidates: Sequence[Candidates]) -> list["Launches"]:
    """The launches of several algorithms; those of all tiled kernels are predicted as one table."""
    columns, extra = columns_of([one for algorithm in candidates for one in algorithm.tiled]), dict[tuple[Pass, ...], float]()
    of_each = [_times_and_passes(gpu, algorithm.variants, extra) for algorithm in candidates]
    launches = [_without_tiles(gpu, one, of) for one, of in zip(candidates, of_each, strict=True) if one.variants and not one.tiled]
    request, edges = candidates[0].request, np.cumsum([0, *(len(one.tiled) for one in candidates)])
    count = int(edges[-1])
    if request.schedule is not None:
        chunks = max((variant.chunks for one in candidates for variant in one.variants), default=0)
        table, others = named_table(columns, request.schedule, chunks), np.full(count, np.inf)
        prediction = waves.predict(gpu, columns, table, request.state == "hot")
    else:
        outside = np.concatenate([of for algorithm, of in zip(candidates, of_each, strict=True) if algorithm.tiled] or [np.empty((0, 2))])
        most = None if request.most is None else min([request.most, *(float(one.cycles.min()) for one in launches)])
        table, prediction, others = _best(gpu, columns, candidates, outside, most)
    found = iter(launches)
    return [
        next(found) if one.variants and not one.tiled else _of_table(one, of, range(low, high), table, prediction, others)
        for one, of, low, high in zip(candidates, of_each, edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def _of_table(candidates: Candidates, outside: Floats, variants: range, table: Table, prediction: Prediction, others: Floats) -> "Launches":
    """The launches of one algorithm, whose `variants` are these in the table."""
    rows = np.flatnonzero((variants.start <= table.variant) & (table.variant < variants.stop))
    if not rows.size and candidates.request.most is not None:
        return Launches(candidates._replace(variants=()), table.select(rows), prediction, rows, others[:0], outside[:0])
    own = table.select(rows)
    own = own._replace(variant=own.variant - variants.start)
    return Launches(candidates, own, prediction, rows, others[variants.start : variants.stop], outside)


def _best(
    gpu: Gpu, columns: Columns, candidates: Sequence[Candidates], outside: Floats, most: float | None
) -> tuple[Table, Prediction, Floats]:
    """The launches in their best rasterisations, and a lower bound on the cycles of each variant's launches that were left out: unless all
    are asked for, those that cannot be the best of their kind, or of all (`most`, as in a request). `outside`: times and passes of each
    variant."""
    whole, hot = divided(gpu, columns, candidates[0].request.parts), candidates[0].request.state == "hot"
    tiled = [(at * MAX_KINDS, one.kinds, variant) for at, one in enumerate(candidates) for variant in one.variants if variant.columns]
    times, passes = outside[whole.variant].T
    if most is None:
        first, own = np.array([(at, variant.kind if kinds else -1) for at, kinds, variant in tiled], int).reshape(-1, 2)[whole.variant].T
        kind, best = first + np.where(own < 0, whole.kind, own), np.full(MAX_KINDS * len(candidates), np.inf)
    else:
        kind, best = np.zeros(len(whole.kind), int), np.array([most])
    rows = np.arange(len(kind))
    if len(rows) > (MIN_PRUNED if most is None else FIRST) and all(one.prune for one in candidates):
        least = waves.least_cycles(gpu, columns, whole) * times + passes
        order = np.lexsort((least, kind))
        rows = np.sort(order[rows - kind[order].searchsorted(kind[order]) < FIRST])
        if most is not None and not (rows := rows[least[rows] <= most]).size:
            return whole.select(rows), waves.NOTHING, np.full(len(tiled), np.inf)
    while True:
        table = rasterised(columns, whole.select(rows))
        prediction = waves.predict(gpu, columns, table, hot)
        kept = best_rasterisations(table, prediction.cycles, prediction.traffic.gpc_bytes)
        others = np.full(len(tiled), np.inf)
        if len(rows) == len(kind):
            return table.select(kept), prediction.select(kept), others
        np.minimum.at(best, kind[rows], prediction.cycles[kept] * times[rows] + passes[rows])
        left_out = np.flatnonzero(np.bincount(rows, minlength=len(kind)) == 0)
        if not (better := left_out[least[left_out] <= best[kind[left_out]]]).size:
            np.minimum.at(others, whole.variant[left_out], least[left_out])
            return table.select(kept), prediction.select(kept), others
        rows = np.sort(np.concatenate([rows, better]))


def _times_and_passes(gpu: Gpu, variants: Sequence[Variant], known: dict[tuple[Pass, ...], float]) -> Floats:
    """Launches of each variant, and cycles of its passes before and after; those of passes that are `known` are not computed again."""
    for variant in variants:
        if variant.passes not in known:
            known[variant.passes] = sum(pass_cycles(gpu, one) for one in variant.passes)
    return np.array([(variant.times, known[variant.passes]) for variant in variants], float).reshape(-1, 2)


def columns_of(some: Sequence[Columns]) -> Columns:
    """Columns of variants as arrays."""
    return Columns(*(np.array(some, float).T if some else np.empty((len(Columns._fields), 0))))


def best_rasterisations(table: Table, cycles: Floats, gpc_bytes: Floats) -> Integers:
    """One row of each (variant, decomposition, splits), in the table's order: the fewest cycles, then the fewest bytes that GPCs request,
    then the first. Launches with equal predictions differ by up to 12 % on an H100 by what their GPCs request (docs/gpu.md)."""
    if not len(cycles):
        return np.empty(0, int)
    launch = np.stack(table[:3])
    number = np.concatenate([[0], np.cumsum((launch[:, 1:] != launch[:, :-1]).any(axis=0))])
    order = np.lexsort((gpc_bytes, np.round(cycles, CYCLE_DIGITS), number))
    return order[np.searchsorted(number[order], np.arange(number[-1] + 1))]


def _without_tiles(gpu: Gpu, candidates: Candidates, outside: Floats) -> "Launches":
    """The launches of an algorithm whose kernels have no tiles."""
    kernels = [(one.threads, one.attributes, one.family) for one in candidates.variants if one.threads and one.family]
    prediction = threads.predict(gpu, kernels, candidates.request.state == "hot")
    rows = np.arange(len(kernels))
    return Launches(candidates, one_each(rows.size), prediction, rows, np.full(rows.size, np.inf), outside)


class Launches:
    """One algorithm's launches, each in its best rasterisation, and their predicted cost: these rows of a prediction; `others`: the least
    cycles that launches of each variant take that were left out."""

    def __init__(
        self, candidates: Candidates, table: Table, prediction: Prediction, rows: Integers, others: Floats, outside: Floats
    ) -> None:
        self.candidates, self.table, self.others = candidates, table, others
        self._of, self._rows = prediction, rows
        self.gpu = candidates.request.gpu
        times, self.pass_cycles = outside.T
        self.cycles: Floats = prediction.cycles[rows] * times[table.variant] + self.pass_cycles[table.variant]

    @lazy
    def prediction(self) -> Prediction:
        """What is predicted of these launches."""
        return self._of.select(self._rows)

    def costs(self) -> Costs:
        """As arrays."""
        variants, kinds, table = self.candidates.variants, self.candidates.kinds, self.table
        kernels, kernel = numbered(variant.kernel for variant in variants)
        least = np.full(len(kernels), np.inf)
        np.minimum.at(least, kernel, self.others)
        kernel = kernel[table.variant]
        kind = np.array([variant.kind for variant in variants], int)[table.variant] if kinds else table.kind
        np.minimum.at(least, kernel, self.cycles)
        return Costs(
            cycles=self.cycles,
            kernels=kernels,
            kernel=kernel,
            kinds=kinds or DECOMPOSITIONS,
            kind=kind,
            bounds=least,
            alike=self.alike,
            schedule=self.schedule,
            cost=self.cost,
            assumed=self.assumed,
        )

    @property
    def alike(self) -> Integers:
        """Candidates of one tolerance, and of one contract where that is asked for."""
        variant = self.table.variant  # a row of im2col multiplies by several kernels
        return variant * MAX_SPLITS + self.table.splits if self.candidates.request.parts else variant

    def variant(self, row: int) -> Variant:
        return self.candidates.variants[int(self.table.variant[row])]

    def schedule(self, row: int) -> AnySchedule:
        """One candidate as the launch that the library obeys."""
        _, kind, splits, along_n, group = (int(column[row]) for column in self.table)
        variant = self.variant(row)
        return variant.schedule(DECOMPOSITIONS[kind], variant.chunks or splits, bool(along_n), group)

    def cost(self, row: int) -> Cost:
        """One candidate's cost. `levels`: wavefronts of shared memory, and the bytes from L2 and memory."""
        variant, p = self.variant(row), self.prediction
        waves_, others = p.waves[:, :, row] * variant.times, p.others[:, row] * variant.times
        terms = dict(zip(TERMS, [*waves_.sum(axis=0).tolist(), *others.tolist()], strict=True))
        bound = max(terms, key=lambda name: terms[name])
        bound = LOOP_BOUNDS[int(p.bound[row])] if bound == WAVE_TERMS[0] else bound
        of_launch = (p.wavefronts, p.shared, p.traffic.l2_bytes, p.traffic.memory_bytes)
        wavefronts, shared, *moved = (float(of[row]) * variant.times for of in of_launch)
        levels = {"shared": {"wavefronts": wavefronts, "bytes": wavefronts * LINE_BYTES, "cycles": shared}}
        for name, size in zip(WAVE_TERMS[2:], moved, strict=True):
            levels[name] = {"bytes": size, "lines": size / LINE_BYTES, "cycles": terms[name]}
        cycles = float(self.cycles[row])
        if variant.passes:
            passes, size = float(self.pass_cycles[self.table.variant[row]]), sum(one.read + one.written for one in variant.passes)
            terms["passes"] = passes
            bound = "passes" if passes > cycles - passes else bound
            levels["passes"] = {"bytes": size, "lines": size / LINE_BYTES, "cycles": passes}
        overlap = variant.columns.overlap if variant.columns else waves.OVERLAP_EXPONENT
        return Cost(cycles, cycles / self.gpu.clock_hz, bound, levels, terms, hidden(waves_, overlap))

    def assumed(self, row: int) -> tuple[str, ...]:
        """Paths of the assumed machine numbers that a cost uses, and other assumptions about its kernel."""
        variant = self.variant(row)
        of_passes = ("model.passes.rate_share", "model.passes.element_instructions") if variant.passes else ()
        cluster = int(counts.cluster[row]) if (counts := self.prediction.counts) else 1
        of_cluster = (f"clusters_at_once.{cluster}",) if cluster > 1 else ()
        return (*_assumed(self.gpu, (*variant.numbers, *of_passes, *of_cluster)), *variant.assumed)


def hidden(waves_: Floats, exponent: Number = waves.OVERLAP_EXPONENT) -> dict[str, float]:
    """Overlapped cycles of each of WAVE_TERMS, from cycles by (full waves, last wave), and the exponent by which main loop and traffic add.

    Of main loop and power the one that takes less with the traffic is hidden wholly, and so is the smaller of L2 and memory. The two that
    are left overlap: the smaller of these hides their sum less the wave's cycles.
    """
    result = [0.0] * len(WAVE_TERMS)
    for wave in waves_.tolist():
        transfer, hidden_transfer = (2, 3) if wave[2] >= wave[3] else (3, 2)
        together = [float(one) for one in waves.with_traffic(wave[0], wave[1], wave[transfer], exponent)]
        compute = int(together[1] > together[0])
        result[1 - compute] += wave[1 - compute]
        result[hidden_transfer] += wave[hidden_transfer]
        smaller = compute if wave[compute] < wave[transfer] else transfer
        result[smaller] += wave[compute] + wave[transfer] - together[compute]
    return {name: value for name, value in zip(WAVE_TERMS, result, strict=True) if value}


@lru_cache(maxsize=256)
def _assumed(gpu: Gpu, used: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in _all_assumed(gpu) if path.startswith(used) or not path.startswith(_OF_SOME_KERNELS))


@lru_cache(maxsize=64)
def _all_assumed(gpu: Gpu) -> tuple[str, ...]:
    return tuple(path for path in gpu.assumed() if not path.startswith("energy"))


# Workspace


def partial_bytes(decomposition: str, splits: int, tiles: int, blocks: int, accumulator_bytes: int) -> int:
    """Bytes of flags and partial sums of `tiles` cluster tiles, each of `blocks` block tiles with `accumulator_bytes`."""
    parts = {"data_parallel": 0, "split_k": tiles * splits, "stream_k": 2 * splits}[decomposition]
    return round_up(tiles * blocks * 4, ALIGN) + parts * blocks * accumulator_bytes if parts else 0
