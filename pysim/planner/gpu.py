# SPDX-License-Identifier: Apache-2.0
"""Plans of matrix products on a GPU: kernels x decompositions x walks, each legal or turned down with a reason, costed, the least chosen.

A kernel is legal where the machine has its capability, its pipe, room for its registers and shared memory. Decompositions: every tile
whole (data parallel); split-K by a few factors and by those that fill one or two waves, while each part keeps LEAST_STEPS steps and
the whole tiles do not fill FULL_WAVES waves by themselves; stream-K with as many blocks as run at once, where tiles do not fill their
last wave. Walks: along m or n, in bands of GROUPS tiles. A table holds all of them, and the model costs it in one go.

Worked number: the CUTLASS blog's SGEMM, 10240 x 4096 x 4096 with tiles of 128 x 128 by 256 threads, has 80 x 32 = 2560 tiles, and
with two blocks on each of 80 SMs exactly 16 waves: CUTLASS 0.1's measure of efficiency is 1 and it does not split k.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pysim.cachemodel.gpu import product as model
from pysim.cachemodel.gpu.product import (
    DATA_PARALLEL,
    SPLIT_K,
    STREAM_K,
    Array,
    Prediction,
    Rows,
    Shape,
    Table,
    cost_of,
    predict,
    rows_of,
    schedule_of,
)
from pysim.errors import PlanError
from pysim.machine.load import Gpu
from pysim.problem.text import GEMM_DTYPES, Gemm
from pysim.record.cost import Rejected
from pysim.record.schedule import DECOMPOSITIONS, GpuConvSchedule, GpuSchedule
from pysim.registry.rows import WARP, GemmKernel, cuda_limits, gemm_attributes, gemm_kernels

SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
GROUPS = (1, 2, 4, 8, 16, 32)
LEAST_STEPS = 2  # of a part of split-K
FULL_WAVES = 2  # tiles that fill this many waves are not split
TENSOR_CAPABILITY = 80  # from here on there are asynchronous copies, and the registry's tensor-core kernels for f16
ALIGN = 256  # bytes, of each part of the workspace
SATURATING_WARPS = 16  # an SM with this many warps is busy, in CUTLASS 0.1's measure


class Space(NamedTuple):
    """The legal kernels of a problem on a machine, their launches, and what was turned down."""

    rows: Rows
    table: Table
    rejected: tuple[Rejected, ...]


def space(
    gpu: Gpu,
    problem: Gemm,
    kernels: Sequence[GemmKernel] | None = None,
    pitches: tuple[int, int] | None = None,
    aligned: tuple[bool, bool] = (True, True),
) -> Space:
    """All legal launches of operands that lie as `workspace_bytes` has it. Raises PlanError, which says what is missing, where there is
    none."""
    side, depth = cuda_limits()["GEMM_SIDE"], cuda_limits()["GEMM_K"]
    if max(problem.m, problem.n) > side or problem.k > depth:
        raise PlanError(f"{problem.text}: the CUDA kernels take m and n up to {side:,} and k up to {depth:,}")
    legal: list[GemmKernel] = []
    rejected: list[Rejected] = []
    others = 0
    for kernel in gemm_kernels() if kernels is None else kernels:
        if kernel.dtype != problem.dtype:
            others += 1
        elif reason := illegal(gpu, kernel) or too_large(problem, kernel, pitches, aligned):
            rejected.append(Rejected(kernel.name, reason))
        else:
            legal.append(kernel)
    if others:
        rejected.append(Rejected(f"{others} kernels of another type", f"the problem is {problem.dtype}"))
    if not legal:
        raise PlanError(_nothing_legal(gpu, problem, rejected))
    rows = rows_of(gpu, problem, legal, gemm_attributes(gpu.capability_number))
    return Space(rows, table(gpu, model.shape_of(problem), rows), tuple(rejected))


def illegal(gpu: Gpu, kernel: GemmKernel) -> str:
    """Why this kernel cannot run on this machine, or is not planned with; empty where it can."""
    have = gpu.capability_number
    if kernel.form != "full":
        return f"form {kernel.form}: it is there to show what it leaves out"
    if have < kernel.capability or (kernel.family == "wgmma" and have != kernel.capability):
        exactly = "" if kernel.family == "wgmma" else " or later"
        return f"it needs capability {kernel.capability // 10}.{kernel.capability % 10}{exactly}; {gpu.name} has {gpu.capability}"
    if kernel.family == "simt" and kernel.dtype == "f16" and have >= TENSOR_CAPABILITY:
        return "it sums in f16, and this machine's tensor cores sum in f32"
    if kernel.family == "simt" and kernel.stages >= model.ASYNCHRONOUS_STAGES and have < TENSOR_CAPABILITY:
        return f"its {kernel.stages} stages are filled by asynchronous copies, which need capability 8.0; {gpu.name} has {gpu.capability}"
    if model.pipe_of(gpu, kernel) is None:
        return f"{gpu.name} has no {kernel.pipe} pipe"
    if model.family_name(gpu, kernel) not in gpu.model.families:
        return f"{gpu.name} has no constants of its family, [model.families.{kernel.family}]"
    attributes, _ = model.attributes_of(kernel, gemm_attributes(have))
    if attributes.shared_bytes > gpu.shared_bytes_per_block.value:
        return f"a block needs {attributes.shared_bytes:,} bytes of shared memory; {gpu.name} gives it {gpu.shared_bytes_per_block.value:,}"
    if not model.occupancy(gpu, attributes):
        return f"{attributes.threads} threads of {attributes.registers} registers do not fit on an SM"
    if gpu.sms.value < kernel.cluster_m * kernel.cluster_n:
        return f"a cluster takes {kernel.cluster_m * kernel.cluster_n} SMs"
    return ""


def too_large(problem: Gemm, kernel: GemmKernel, pitches: tuple[int, int] | None, aligned: tuple[bool, bool]) -> str:
    """Why a kernel cannot compute a product of this size that others can; empty where it can."""
    most = cuda_limits()
    tiles = tiles_of(problem, kernel)
    if tiles > most["TILES"]:
        return f"it would need {tiles:,} tiles; the CUDA kernels take up to {most['TILES']:,}"
    if max(problem.m, problem.n, problem.k) <= most["RELAYOUT_ROWS"]:
        return ""
    rows = max((rows for rows, _ in copies(problem, kernel, pitches, aligned)), default=0)
    if rows > most["RELAYOUT_ROWS"]:
        return f"it would copy an operand of {rows:,} rows; copies take up to {most['RELAYOUT_ROWS']:,}"
    return ""


def tiles_of(problem: Gemm, kernel: GemmKernel) -> int:
    """Tiles of C; of a cluster, where the kernel has clusters."""
    return -(-problem.m // (kernel.block_m * kernel.cluster_m)) * -(-problem.n // (kernel.block_n * kernel.cluster_n))


def copies(problem: Gemm, kernel: GemmKernel, pitches: tuple[int, int] | None, aligned: tuple[bool, bool]) -> Iterator[tuple[int, int]]:
    """Rows and columns of each operand that a kernel cannot take as it lies, as they are copied."""
    size, needs = GEMM_DTYPES[problem.dtype], model.needs(kernel)
    sides = ((not problem.trans_a, problem.m), (problem.trans_b, problem.n))
    for (k_last, outer), pitch, lies in zip(sides, pitches or model.pitches(problem), aligned, strict=True):
        if (needs.k_major and not k_last) or pitch * size % needs.alignment or (needs.alignment > size and not lies):
            yield (outer, problem.k) if k_last or needs.k_major else (problem.k, outer)


def _nothing_legal(gpu: Gpu, problem: Gemm, rejected: Sequence[Rejected]) -> str:
    known = sorted({kernel.dtype for kernel in gemm_kernels()})
    if problem.dtype not in known:
        return f"there is no {problem.dtype} CUDA kernel; the registry (native/cuda/gemms.inc) has {', '.join(known) or 'none'}"
    first = next(item for item in rejected if "another type" not in item.what)
    return f"no {problem.dtype} kernel can run on {gpu.name}: {first.what}: {first.reason}"


def table(gpu: Gpu, shape: Shape, rows: Rows) -> Table:
    """Kernels x decompositions x walks, as arrays."""
    tiles_m, tiles_n = np.ceil(shape.m / rows.tile_m), np.ceil(shape.n / rows.tile_n)
    tiles, steps = tiles_m * tiles_n, np.ceil(shape.k / rows.block_k)
    slots = np.floor(gpu.sms.value / rows.blocks) * rows.occupancy
    fill = [np.maximum(1, np.floor(slots * waves / tiles)) for waves in (1, 2)]
    splits = np.stack([np.full(len(tiles), factor) for factor in SPLITS] + fill, axis=1)
    legal = (splits >= 2) & (steps[:, None] >= LEAST_STEPS * splits) & (tiles < FULL_WAVES * slots)[:, None]
    row, column = np.nonzero(legal)
    split = np.unique(np.stack([row, splits[row, column].astype(int)]), axis=1)
    tail = np.flatnonzero((tiles % slots != 0) & (tiles * steps >= 2 * slots) & (slots >= 2))
    every = np.arange(len(tiles))
    row = np.concatenate([every, split[0], tail])
    kind = np.repeat([DATA_PARALLEL, SPLIT_K, STREAM_K], [len(every), split.shape[1], len(tail)])
    parts = np.concatenate([np.ones(len(every), int), split[1], slots[tail].astype(int)])
    return _walked(tiles_m, tiles_n, row, kind, parts)


def steps_of(shape: Shape, rows: Rows) -> Array:
    """Steps along k of all tiles together, of each kernel."""
    found: Array = np.ceil(shape.m / rows.tile_m) * np.ceil(shape.n / rows.tile_n) * np.ceil(shape.k / rows.block_k)
    return found


def _walked(tiles_m: Array, tiles_n: Array, row: Array, kind: Array, parts: Array) -> Table:
    """Each launch with every walk: bands as wide as the tiles that there are, and no two that are the same."""
    walks = [(along, group) for along in (False, True) for group in GROUPS]
    along = np.array([walk[0] for walk in walks])
    group = np.array([walk[1] for walk in walks])
    across = np.where(along, tiles_m[row, None], tiles_n[row, None])
    keep = (group < 2 * across) & ((group == 1) | (across > 1))
    launch, walk = np.nonzero(keep)
    return Table(row[launch], kind[launch], parts[launch], along[walk], group[walk])


def order(prediction: Prediction) -> Array:
    """Rows of a prediction by predicted time, best first; of equal ones the earlier."""
    return np.argsort(prediction.cycles, kind="stable")


def best_walks(prediction: Prediction) -> list[int]:
    """The best row of each (kernel, decomposition, splits), best first."""
    table, ranked = prediction.table, order(prediction)
    launch = np.stack([table.row, table.kind, table.splits])[:, ranked]
    _, first = np.unique(launch, axis=1, return_index=True)
    found: list[int] = ranked[np.sort(first)].tolist()
    return found


def one(gpu: Gpu, problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule, hot: bool = True) -> Prediction:
    """The prediction of a single launch, as a table of one row."""
    rows = rows_of(gpu, problem, [kernel], gemm_attributes(gpu.capability_number))
    columns = (0, DECOMPOSITIONS.index(schedule.decomposition), schedule.splits, schedule.along_n, schedule.group)
    return predict(gpu, problem, rows, Table(*(np.array([value]) for value in columns)), hot)


def candidates(problem: Gemm, gpu: Gpu, kernels: Sequence[GemmKernel] | None = None, hot: bool = True) -> list[tuple[GpuSchedule, float]]:
    """Every kernel with every decomposition, each with its best walk, and its predicted seconds, best first."""
    found = space(gpu, problem, kernels)
    prediction = predict(gpu, problem, found.rows, found.table, hot)
    return [(schedule_of(prediction, row), float(prediction.seconds[row])) for row in best_walks(prediction)]


def workspace_bytes(
    problem: Gemm,
    kernel: GemmKernel,
    schedule: GpuSchedule | GpuConvSchedule,
    pitches: tuple[int, int] | None = None,
    aligned: tuple[bool, bool] = (True, True),
) -> int:
    """What a launch needs beside its operands, as native/cuda/gemm.cu counts it: re-laid-out operands, flags, partial sums.

    `pitches` of A and B in elements, where rows are not dense; `aligned`: whether they begin at multiples of 16 bytes.
    """
    size, alignment = GEMM_DTYPES[problem.dtype], max(16, model.needs(kernel).alignment)
    total = sum(round_up(rows * round_up(columns * size, alignment), ALIGN) for rows, columns in copies(problem, kernel, pitches, aligned))
    clusters, tiles = kernel.cluster_m * kernel.cluster_n, tiles_of(problem, kernel)
    slots = {"data_parallel": 0, "split_k": tiles * schedule.splits, "stream_k": 2 * schedule.splits}[schedule.decomposition]
    if slots:
        total += round_up(tiles * clusters * 4, ALIGN)
        total += slots * clusters * kernel.block_m * kernel.block_n * model.SUM_BYTES.get(problem.dtype, 4)
    return total + ALIGN * bool(total)


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def saturation(gpu: Gpu, blocks: int, threads: int) -> float:
    """CUTLASS 0.1's efficiency of a grid: (full waves + filled part of the last) / waves, an SM taking ceil(16 / warps) blocks."""
    wave = gpu.sms.value * math.ceil(SATURATING_WARPS / (threads // WARP))
    return (blocks // wave + blocks % wave / wave) / math.ceil(blocks / wave)


def losers(found: Space, prediction: Prediction, chosen: int) -> tuple[Rejected, ...]:
    """Kernels that lost, best first, then what could not run at all."""
    best = float(prediction.cycles[chosen])
    least = np.full(len(found.rows.kernels), np.inf)
    np.minimum.at(least, prediction.table.row, prediction.cycles)
    lost = []
    for index in np.argsort(least, kind="stable").tolist():
        if index != prediction.table.row[chosen]:
            row = int(np.flatnonzero((prediction.table.row == index) & (prediction.cycles == least[index]))[0])
            how = f"{DECOMPOSITIONS[int(prediction.table.kind[row])]}, bound by {model.bound_by(prediction, row)}"
            lost.append(Rejected(found.rows.kernels[index].name, f"at best ({how}) {least[index] / best:.3f} times the chosen one"))
    return (*lost, *found.rejected)


__all__ = [
    "best_walks", "candidates", "cost_of", "losers", "one", "order", "predict", "saturation", "schedule_of", "space", "workspace_bytes",
]  # fmt: skip
