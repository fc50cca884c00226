# SPDX-License-Identifier: Apache-2.0
"""Plans of convolutions on a GPU: algorithms x tilings x decompositions x walks, each legal or turned down with a reason, costed, ranked.

A row of `native/cuda/convs.inc` is legal where the machine has its capability, its pipe and room for its block, where it computes the
problem (`conv_algorithms.refuses`), and where its workspace stays within the limit that the user gave. Rows with tiles are launched in
every way that products are (`planner.gpu`), rows that make products with every row of gemms.inc that the machine can run, the rest in one
way. The forms that leave something out to show what it is worth (ABLATION) are never chosen.

Worked number: for conv:mb32ic64ih56oc64kh3ph1 on the h200 a fused Winograd row has 28 x 28 x 32 / 32 = 784 blocks, 5.9 waves of 132.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.gpu import conv as gpu_conv
from pysim.cachemodel.gpu import product as model
from pysim.cachemodel.gpu.conv import Pass
from pysim.cachemodel.gpu.product import Prediction
from pysim.errors import PlanError
from pysim.machine.load import Gpu
from pysim.planner import gpu
from pysim.planner.conv_algorithms import conv_workspace_bytes, passes_of, products_of, refuses, too_large
from pysim.problem.text import Conv
from pysim.record.cost import Cost, Rejected
from pysim.record.schedule import DECOMPOSITIONS, GpuConvSchedule, GpuSchedule
from pysim.registry.rows import ConvKernel, GemmKernel, conv_kernel, conv_kernels, gemm_attributes, gemm_kernels

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of staged rows
ABLATION = ("basic", "no_prefetch", "no_vector", "no_micro")


class Group(NamedTuple):
    """Launches that were predicted together: of rows with tiles, of the products of one row, or of one row that has neither."""

    on: Gpu
    workload: Conv
    nhwc: bool
    kernels: tuple[ConvKernel, ...]  # of the table's rows; one where `prediction` is of products, or None
    prediction: Prediction | None
    cost: Cost | None
    times: int
    passes: tuple[tuple[Pass, ...], ...]

    @property
    def makes_product(self) -> bool:
        return bool(self.kernels[0].makes_product)


class Launch(NamedTuple):
    """One way to run a convolution: a row of a group's table, and its predicted seconds."""

    seconds: float
    group: Group
    row: int

    @property
    def kernel(self) -> ConvKernel:
        group = self.group
        return group.kernels[0 if group.prediction is None or len(group.kernels) == 1 else int(group.prediction.table.row[self.row])]

    @property
    def gemm(self) -> GemmKernel | None:
        """The row of gemms.inc that the schedule names."""
        found = self.group.prediction
        return found.rows.kernels[found.table.row[self.row]] if found and self.group.makes_product else None

    @property
    def schedule(self) -> GpuConvSchedule:
        found = self.group.prediction
        if found is None:
            return GpuConvSchedule(self.kernel.name, None, "data_parallel", 1, False, 1)
        s = model.schedule_of(found, self.row)
        if self.group.makes_product:
            return _of_product(self.kernel, s)
        return _of_tiles(self.kernel, s if self.kernel.decomposes else msgspec.structs.replace(s, splits=self.group.times))

    @property
    def workspace_bytes(self) -> int:
        return conv_workspace_bytes(self.kernel, self.group.workload, self.group.nhwc, self.schedule, self.gemm)

    @property
    def cost(self) -> Cost:
        group = self.group
        found = group.cost or model.cost_of(_some(group.prediction), self.row)
        at = group.kernels.index(self.kernel)
        return gpu_conv.with_passes(group.on, found, group.passes[at], group.times)


def _some(prediction: Prediction | None) -> Prediction:
    assert prediction is not None
    return prediction


def _of_product(row: ConvKernel, s: GpuSchedule) -> GpuConvSchedule:
    return GpuConvSchedule(row.name, s.kernel, s.decomposition, s.splits, s.along_n, s.group)


def _of_tiles(row: ConvKernel, s: GpuSchedule) -> GpuConvSchedule:
    return GpuConvSchedule(row.name, None, s.decomposition, s.splits, s.along_n, s.group)


# Legality


def illegal(on: Gpu, row: ConvKernel, w: Conv, nhwc: bool) -> str:
    """Why a row cannot run a problem on this machine, or is not planned with; empty where it can."""
    if row.form in ABLATION:
        return f"form {row.form}: it is there to show what it leaves out"
    if reason := unable(on, row):
        return reason
    return refuses(row, w, nhwc)


def unable(on: Gpu, row: ConvKernel) -> str:
    """Why this machine cannot run a row; empty where it can."""
    have = on.capability_number
    if have < row.capability or (row.family == "wgmma" and have != row.capability):
        exactly = "" if row.family == "wgmma" else " or later"
        return f"it needs capability {row.capability // 10}.{row.capability % 10}{exactly}; {on.name} has {on.capability}"
    if row.block_filters and model.pipe_of(on, gpu_conv.product_kernel(row, False)) is None:
        return f"{on.name} has no {row.dtype} pipe"
    families = {gpu_conv.family_name(on, row)}
    if row.block_filters:
        families.add(model.family_name(on, gpu_conv.product_kernel(row, False)))
    if lacking := sorted(families - on.model.families.keys()):
        return f"{on.name} has no constants of its family, [model.families.{lacking[0]}]"
    attributes, _ = gpu_conv.attributes_of(row, gemm_attributes(have))
    if attributes.shared_bytes > on.shared_bytes_per_block.value:
        return f"a block needs {attributes.shared_bytes:,} bytes of shared memory; {on.name} gives it {on.shared_bytes_per_block.value:,}"
    if not model.occupancy(on, attributes):
        return f"{attributes.threads} threads of {attributes.registers} registers do not fit on an SM"
    if on.sms.value < row.cluster[0] * row.cluster[1]:
        return f"a cluster takes {row.cluster[0] * row.cluster[1]} SMs"
    return ""


# Candidates


class Space(NamedTuple):
    """Legal launches, best first, each kernel with each decomposition in its best walk; and what was turned down."""

    launches: tuple[Launch, ...]
    rejected: tuple[Rejected, ...]


def space(
    on: Gpu,
    w: Conv,
    nhwc: bool = False,
    kernels: Sequence[ConvKernel] | None = None,
    hot: bool = True,
    memory_limit: int | None = None,
) -> Space:
    """All legal launches. Raises PlanError, which says what is missing, where there is none."""
    if reason := too_large(w):
        raise PlanError(f"{w.text}: {reason}")
    legal: list[ConvKernel] = []
    rejected: list[Rejected] = []
    others = 0
    for row in conv_kernels() if kernels is None else kernels:
        if row.dtype != w.dtype:
            others += 1
        elif reason := illegal(on, row, w, nhwc):
            rejected.append(Rejected(row.name, reason))
        else:
            legal.append(row)
    if others:
        rejected.append(Rejected(f"{others} kernels of another type", f"the problem is {w.dtype}"))
    launches = [launch for group in _groups(on, w, nhwc, tuple(legal), hot, rejected) for launch in _launches(group)]
    if memory_limit is not None:
        launches = _within(launches, memory_limit, rejected)
    if not launches:
        raise PlanError(_nothing_legal(on, w, rejected, memory_limit))
    return Space(tuple(sorted(launches, key=lambda one: one.seconds)), tuple(rejected))


def _groups(on: Gpu, w: Conv, nhwc: bool, legal: tuple[ConvKernel, ...], hot: bool, rejected: list[Rejected]) -> Iterator[Group]:
    known = gemm_attributes(on.capability_number)
    tiled = tuple(row for row in legal if row.decomposes)
    if tiled:
        rows = gpu_conv.rows_of(on, w, nhwc, tiled, known)
        table = gpu.table(on, gpu_conv.shape_of(w, nhwc, tiled, rows, np.arange(len(tiled))), rows)
        prediction = gpu_conv.predict(on, w, nhwc, tiled, rows, table, hot)
        yield Group(on, w, nhwc, tiled, prediction, None, 1, tuple(passes_of(row, w, nhwc) for row in tiled))
    for row in legal:
        passes = (passes_of(row, w, nhwc),)
        if row.makes_product:
            of = products_of(w, nhwc)
            try:
                kernels = [kernel for kernel in gemm_kernels() if kernel.dtype == w.dtype]
                found = gpu.space(on, of.problem, kernels, of.pitches, of.aligned)
            except PlanError as error:
                rejected.append(Rejected(row.name, str(error)))
                continue
            table = found.table
            if last := w.batch % of.images:  # their product has fewer tiles, which stream-K's blocks must share, too
                least = model.shape_of(msgspec.structs.replace(of.problem, m=last * w.windows))
                table = table.select((table.kind != model.STREAM_K) | (table.splits <= gpu.steps_of(least, found.rows)[table.row]))
            yield Group(on, w, nhwc, (row,), gpu.predict(on, of.problem, found.rows, table, hot), None, of.times, passes)
        elif row.form == "staged":
            for chunks in sorted({gpu_conv.chunks_of(row, w, most).number for most in CHUNKS}):
                problem, rows, shape = gpu_conv.staged(on, w, nhwc, row, known, chunks)
                table = gpu.table(on, shape, rows)
                prediction = model.predict(on, problem, rows, table.select(table.kind == model.DATA_PARALLEL), hot, shape)
                yield Group(on, w, nhwc, (row,), prediction, None, chunks, (passes_of(row, w, nhwc, chunks),))
        elif not row.decomposes:
            attributes, _ = gpu_conv.attributes_of(row, known)
            yield Group(on, w, nhwc, (row,), None, gpu_conv.plain_cost(on, w, nhwc, row, attributes, hot), 1, passes)


def _launches(group: Group) -> Iterator[Launch]:
    """The best walk of each (kernel, decomposition, splits) of a group."""
    around = [sum(gpu_conv.pass_cycles(group.on, one) for one in passes) / group.on.frequency_hz.value for passes in group.passes]
    if group.prediction is None:
        assert group.cost is not None
        yield Launch(group.cost.seconds + around[0], group, 0)
        return
    for row in gpu.best_walks(group.prediction):
        at = 0 if len(group.kernels) == 1 else int(group.prediction.table.row[row])
        yield Launch(float(group.prediction.seconds[row]) * group.times + around[at], group, row)


def _within(launches: list[Launch], limit: int, rejected: list[Rejected]) -> list[Launch]:
    """The launches whose workspace is within the limit; kernels of which none is are turned down."""
    sized = [(one, one.workspace_bytes) for one in launches]
    kept = [one for one, size in sized if size <= limit]
    left = {one.kernel.name for one in kept}
    least: dict[str, int] = {}
    for one, size in sized:
        if one.kernel.name not in left:
            least[one.kernel.name] = min(size, least.get(one.kernel.name, size))
    rejected += [Rejected(name, f"its workspace of {size:,} bytes is above the limit of {limit:,}") for name, size in least.items()]
    return kept


def _nothing_legal(on: Gpu, w: Conv, rejected: Sequence[Rejected], limit: int | None) -> str:
    known = sorted({row.dtype for row in conv_kernels()})
    if w.dtype not in known:
        return f"there is no {w.dtype} CUDA convolution; the registry (native/cuda/convs.inc) has {', '.join(known) or 'none'}"
    above = [item for item in rejected if "above the limit" in item.reason]
    if above and limit is not None:
        return f"{w.text} on {on.name}: no plan needs as little as {limit:,} bytes of workspace; {above[0].what}: {above[0].reason}"
    first = next((item for item in rejected if "another type" not in item.what), Rejected("none", "nothing was considered"))
    return f"no {w.dtype} convolution can run {w.text} on {on.name}: {first.what}: {first.reason}"


def losers(found: Space) -> tuple[Rejected, ...]:
    """Kernels that lost, best first, then what could not run at all."""
    best = found.launches[0]
    seen, lost = {best.kernel.name}, []
    for one in found.launches:
        if one.kernel.name not in seen:
            seen.add(one.kernel.name)
            how = f"{one.schedule.decomposition}, bound by {one.cost.bound_by}"
            lost.append(Rejected(one.kernel.name, f"at best ({how}) {one.seconds / best.seconds:.3f} times the chosen one"))
    return (*lost, *found.rejected)


def best_of_each(found: Space) -> list[Launch]:
    """The best launch of each algorithm, best first."""
    first: dict[tuple[str, int], Launch] = {}
    for one in found.launches:
        first.setdefault((one.kernel.family, one.kernel.outputs), one)
    return list(first.values())


def one(on: Gpu, w: Conv, nhwc: bool, schedule: GpuConvSchedule, hot: bool = True) -> Launch:
    """The prediction of a single launch."""
    row = conv_kernel(schedule.kernel)
    if row is None:
        raise PlanError(f"the registry has no CUDA convolution {schedule.kernel!r}; `pysim kernels --cuda` lists them")
    known = gemm_attributes(on.capability_number)
    passes = (passes_of(row, w, nhwc, schedule.splits),)
    splits = 1 if row.form == "staged" else schedule.splits
    columns = (0, DECOMPOSITIONS.index(schedule.decomposition), splits, schedule.along_n, schedule.group)
    table = model.Table(*(np.array([value]) for value in columns))
    if row.makes_product:
        kernel = next(kernel for kernel in gemm_kernels() if kernel.name == schedule.gemm)
        of = products_of(w, nhwc)
        rows = model.rows_of(on, of.problem, [kernel], known)
        group = Group(on, w, nhwc, (row,), model.predict(on, of.problem, rows, table, hot), None, of.times, passes)
    elif row.form == "staged":
        times = schedule.splits
        problem, rows, shape = gpu_conv.staged(on, w, nhwc, row, known, times)
        group = Group(on, w, nhwc, (row,), model.predict(on, problem, rows, table, hot, shape), None, times, passes)
    elif row.decomposes:
        rows = gpu_conv.rows_of(on, w, nhwc, (row,), known)
        group = Group(on, w, nhwc, (row,), gpu_conv.predict(on, w, nhwc, (row,), rows, table, hot), None, 1, passes)
    else:
        attributes, _ = gpu_conv.attributes_of(row, known)
        group = Group(on, w, nhwc, (row,), None, gpu_conv.plain_cost(on, w, nhwc, row, attributes, hot), 1, passes)
    return next(_launches(group))


def twin(kernel: str) -> str:
    """The name of the product that a tiled row is, whose pipe and family's constants its cost leans on; of others that of any SIMT row."""
    row = conv_kernel(kernel)
    if row is not None and row.block_filters:
        return msgspec.structs.replace(gpu_conv.product_kernel(row, False), variant="full").name
    return next(gemm.name for gemm in gemm_kernels() if gemm.family == "simt" and gemm.dtype == "f32")


@lru_cache(maxsize=64)
def assumed(on: Gpu, kernel: str) -> tuple[str, ...]:
    """What is assumed of a convolution's kernel beside the machine's numbers: constants of its family, counts, registers."""
    row = conv_kernel(kernel)
    known = kernel in gemm_attributes(on.capability_number)
    family: tuple[str, ...] = ()
    if row is not None and not row.makes_product and (lent := gpu_conv.family_name(on, row)) != f"conv_{row.family}":
        family = (f"model.families.conv_{row.family}: those of {lent}",)
    return (*family, *(() if known else (f"kernel_attributes.{kernel}",)))
