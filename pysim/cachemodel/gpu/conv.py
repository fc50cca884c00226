# SPDX-License-Identifier: Apache-2.0
"""The GPU cost model of convolutions: tiled kernels as the SIMT products of their tiles (`gpu`), with gathered operands and passes around.

    seconds = products of tiles (gpu.predict) + passes        or, without tiles:  launch + max(instructions, L1, L2, memory)

tiles   `implicit`, `im2win`, `winograd` and `wgmma` make tiles of filters x windows over k = (C/g) R S, as `native/cuda/conv.h` has it:
        filters are A and windows B under NCHW, the other way round under NHWC and with wgmma, whose k has each tap's channels in whole
        steps; groups stand one after another along the windows, each in whole tiles (wgmma: of a cluster).
        Waves, steps, occupancy, split sums and the walk's reuse in L2 are those of a product of these sizes.
step    A step of the SIMT product, of which the windows are gathered: GATHER instructions an element (a vector where the layout has four
        elements side by side: a 1x1 convolution under NCHW, whole groups of four channels under NHWC), and L1 wavefronts of its loads. A
        Winograd row multiplies (outputs + 2)^2 planes, transforms each patch on its way in and each sum on its way out.
bytes   L2 is asked for what each tile's windows touch (`windows`), memory for what all of them do, by the reuse distances of the walk.
passes  Kernels that move data before or after: the im2win tensor N C P R W (arXiv 2306.14316, equation 2, its stride added), columns of
        im2col, transformed filters, planes of staged Winograd. Each costs pass_seconds and max(bytes / (PASS_SHARE of the rate of a
        copy), instructions).

Assumed, until there are measurements: that the constants of the SIMT products hold for the tiles of convolutions, and what is called
assumed below. Not known: divergence at edges.

Worked number: conv:mb32ic64ih56oc64kh3ph1 by tiles of 64 x 128 x 16 is 32 56 56 / 128 = 784 tiles of 576 / 16 = 36 steps.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pysim.cachemodel.gpu import product as model
from pysim.cachemodel.gpu.product import EDGE_INSTRUCTIONS, LINE_BYTES, VECTOR_BYTES, Array, Prediction, Rows, Shape, Table, Work
from pysim.cachemodel.gpu.traffic import miss
from pysim.cachemodel.gpu.windows import Windows, distinct
from pysim.cachemodel.shared_memory import winograd_shared
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.load import Gpu
from pysim.problem.text import CONV_DTYPES, Conv, Gemm
from pysim.record.cost import Cost
from pysim.registry.rows import WARP, WARPGROUP, Attributes, ConvKernel, GemmKernel

L1_BYTES = 256 * 1024  # of an SM, shared memory included (H100 white paper; smaller chips have less, and less shared memory)
PASS_SHARE = 0.85  # of the copy rate that a kernel which only moves data reaches; assumed: a copy reaches 4.3 of 4.8 TB/s on an H200
PASS_INSTRUCTIONS = 32  # an element of a pass: its place by divisions, load, store; assumed
L1_LATENCY = 34  # cycles of a load that L1 serves (measured by others on Hopper: arXiv 2402.13499); assumed elsewhere
# Instructions of an element (of a vector) that a thread gathers, its store aside: what the main loop of native/cuda/conv_gather.cuh has
# more than that of the same tiles on a matrix, over its elements (tools/cuda_loop.py). Of F(4x4)'s fused forms: what is left of the 893
# and 1,033 instructions that a warp has in a step, as Nsight Compute counts them. im2win's vectors and F(2x2)'s patches assumed.
GATHER = {"implicit": 40.0, "implicit_offsets": 8.0, "im2win": 4.0, "im2win_fused": 8.0}
GATHER |= {"winograd": 5.0, "winograd_fused": 9.7, "winograd_single": 15.9}
DIRECT_INSTRUCTIONS = 3.0  # a multiply-add of `direct`: two loads and the multiply, addresses in an unrolled loop's offsets; assumed
DIRECT_UNROLL = 4  # multiply-adds of a thread whose loads are on their way together; assumed
# A load of `depthwise` and its address and edge; a thread's place, weights and stores: what Nsight Compute counted beside multiply-adds
DEPTHWISE_INSTRUCTIONS, DEPTHWISE_PLACE = 11.5, 134.0
STRIP = 4  # rows of outputs of a thread of `depthwise` (native/cuda/conv_direct.cu)
THREADS = 256  # of a block without tiles


class Pass(NamedTuple):
    """A kernel that moves data: bytes in and out, elements that it computes places of, launches."""

    name: str
    read: float
    written: float
    elements: float
    launches: int = 1


# Tiled kernels


def turned(row: ConvKernel, nhwc: bool) -> bool:
    """Whether a row's products have windows down and filters across: what lies side by side in the output is across, but for wgmma's."""
    return nhwc or row.family == "wgmma"


def product_kernel(row: ConvKernel, nhwc: bool) -> GemmKernel:
    """The product that a tiled row is, filters down and windows across where it is not `turned`."""
    form = "scalar" if row.form == "no_vector" else f"{row.family}_{row.form}"
    family, turn = "wgmma" if row.family == "wgmma" else "simt", -1 if turned(row, nhwc) else 1
    block = (row.block_filters, row.block_windows)[::turn]
    warp, thread = (row.warp_filters, row.warp_windows)[::turn], (row.thread_filters, row.thread_windows)[::turn]
    tiles: dict[str, Any] = {"block_m": block[0], "block_n": block[1], "block_k": row.block_k, "warp_m": warp[0], "warp_n": warp[1]}
    cluster = row.cluster[::turn]
    tiles |= {"thread_m": thread[0], "thread_n": thread[1], "stages": row.stages, "cluster_m": cluster[0], "cluster_n": cluster[1]}
    return GemmKernel(index=row.index, mainloop=family, dtype=row.dtype, variant=form, capability=row.capability, **tiles)


def planes_of(row: ConvKernel) -> int:
    """Planes of a transformed patch: F(m x m, 3x3) has (m + 2)^2."""
    return (row.outputs + 2) ** 2 if row.outputs > 1 else 1


def fused(row: ConvKernel) -> bool:
    """Whether a tile makes the products of all planes side by side."""
    return row.outputs > 1 and row.form != "staged"


def keeps_tensor(row: ConvKernel) -> bool:
    """Whether a row gathers from im2win's tensor."""
    return row.family == "im2win" and row.form != "fused"


def vectors(row: ConvKernel, w: Conv, nhwc: bool) -> bool:
    """Whether a row gathers windows by 16 bytes."""
    if row.form == "no_vector" or fused(row):
        return False
    vector = VECTOR_BYTES // CONV_DTYPES[w.dtype]
    if nhwc:
        return w.channels // w.groups % vector == 0
    if keeps_tensor(row):
        return w.dilation_w == 1 and w.stride_w * w.kernel_h % vector == w.kernel_w * w.kernel_h % vector == 0
    return row.family == "implicit" and w.pointwise and w.windows % vector == 0


@lru_cache(maxsize=4096)
def work(gpu: Gpu, row: ConvKernel, nhwc: bool, by_vectors: bool, matrix: bool, ragged: bool, stride: int) -> Work:
    """Cycles of an SM's resources for one step of one block of a tiled row.

    `by_vectors`: windows come by 16 bytes, `matrix`: they lie as a matrix, `ragged`: rows of filters are no whole vectors.
    """
    kernel, planes = product_kernel(row, nhwc), planes_of(row) if fused(row) else 1
    pipe = model.pipe_of(gpu, kernel)
    assert pipe is not None, f"{gpu.name} has no pipe for {row.name}"
    if row.family == "wgmma":  # the copy engine gathers
        return model.work(gpu, kernel, False, True)
    products = kernel.block_m * kernel.block_n * kernel.block_k * planes
    gathered = row.block_windows * row.block_k / WARP  # of a warp's lanes
    filters = row.block_filters * row.block_k * planes / WARP
    vector = VECTOR_BYTES // CONV_DTYPES[row.dtype]
    each = 2.0 if matrix else GATHER.get(f"{row.family}_{row.form}", GATHER[row.family])
    single = EDGE_INSTRUCTIONS if ragged or row.form == "no_vector" else 2 / vector
    if fused(row):
        shared, issue = _winograd_step(gpu.shared_rule, row, nhwc, gathered, each)
    else:
        k_inner = nhwc or keeps_tensor(row) or not by_vectors
        count, shared = _counted(gpu.shared_rule, kernel, k_inner)
        shared += (
            gathered if by_vectors else gathered * min(WARP, 1 if nhwc or keeps_tensor(row) else stride)
        )  # of L1, which shared memory is a part of
        issue = count + gathered * (each / vector if by_vectors else each) + filters * single
    return Work(products / gpu.fma_per_cycle[pipe].value, shared, (products / WARP + issue) / gpu.schedulers_per_sm.value)


@lru_cache(maxsize=1024)
def _counted(rule: str, kernel: GemmKernel, k_inner: bool) -> tuple[float, float]:
    """(instructions, wavefronts) of a step's way into and out of the stages; gathered columns are stored as those with k contiguous."""
    counted = wavefronts(kernel, False, k_inner, SharedMemory(rule=rule)).values()
    return float(sum(one.instructions for one in counted)), float(sum(one.total for one in counted))


def _winograd_step(rule: str, row: ConvKernel, nhwc: bool, patches: float, each: float) -> tuple[float, float]:
    """(wavefronts, instructions) beside the multiplications of a step of a Winograd row.

    Patches come in element by element, are transformed and stored plane by plane; transformed filters are copied.
    """
    planes, edge = planes_of(row), row.outputs + 2
    adds = 4 * edge * row.outputs if row.outputs == 2 else 2 * edge * 12  # of B^T d B: 32 of 4 x 4, 144 of 6 x 6
    instructions, wavefronts = 0.0, patches * planes  # of L1: the patches' loads
    for access in winograd_shared.step(row, nhwc):
        instructions += len(access.addresses)
        wavefronts += float(SharedMemory(rule=rule).count(access.addresses, access.width, access.store, access.active).total.sum())
    return wavefronts, instructions + patches * (planes * each + adds)


def attributes_of(row: ConvKernel, known: dict[str, Attributes]) -> tuple[Attributes, bool]:
    """What the compiler made of a row's main kernel, or what follows from its columns, and whether it is the former."""
    if row.name in known:
        return known[row.name], True
    if not row.block_filters:
        return Attributes(THREADS, 40, 0), False
    threads = threads_of(row)
    if not fused(row):
        found, _ = model.attributes_of(product_kernel(row, False), {})
        return found, False
    sums = row.block_filters * row.block_windows * planes_of(row) // threads
    stage = (row.block_filters + row.block_windows) * row.block_k * planes_of(row) * CONV_DTYPES[row.dtype]
    return Attributes(threads, min(255, sums + 100, 65536 // threads), stage * max(1, row.stages)), False


def threads_of(row: ConvKernel) -> int:
    """Threads of a block that multiply: a warp (wgmma: a warpgroup) for each warp tile; of Winograd's, for each two planes of one, in whole
    fours: one of each scheduler."""
    if not row.block_filters:
        return THREADS
    warps = row.block_filters // row.warp_filters * (row.block_windows // row.warp_windows)
    return (WARPGROUP if row.family == "wgmma" else WARP) * warps * (planes_of(row) // 2 // 4 * 4 if fused(row) else 1)


def family_name(gpu: Gpu, row: ConvKernel) -> str:
    """The key of a machine's constants for a row: conv_<family> where it has been fitted, else those of the products that it is made of."""
    own = f"conv_{row.family}"
    if own in gpu.model.families:
        return own
    return model.family_name(gpu, product_kernel(row, True)) if row.family == "wgmma" else "simt"


def _alike(product: GemmKernel, known: dict[str, Attributes]) -> Attributes | None:
    """The attributes of the row of gemms.inc that has the same tiles, if there is one and it was measured."""
    return known.get(msgspec.structs.replace(product, variant="full").name)


def efficiency_of(product: GemmKernel, own: Attributes, known: dict[str, Attributes]) -> float | None:
    """A row's measured efficiency, or that of the product with the same tiles."""
    twin = _alike(product, known)
    return own.efficiency or (twin.efficiency if twin else None)


def rows_of(gpu: Gpu, w: Conv, nhwc: bool, kernels: tuple[ConvKernel, ...], known: dict[str, Attributes]) -> Rows:
    """The arrays of tiled rows as `gpu.predict` takes them."""
    products = [product_kernel(row, nhwc) for row in kernels]
    attributes = {product.name: attributes_of(row, known)[0] for product, row in zip(products, kernels, strict=True)}
    rows = model.rows_of(gpu, Gemm(m=4, n=4, k=4, trans_b=True, dtype=w.dtype), products, attributes)
    works = []
    for row in kernels:
        by_vectors = vectors(row, w, nhwc)
        # rows with a table keep filters with a pitch of whole vectors
        ragged = Windows(w, nhwc).k * CONV_DTYPES[w.dtype] % VECTOR_BYTES != 0 and (row.family, row.form) == ("implicit", "full")
        works.append(work(gpu, row, nhwc, by_vectors, by_vectors and w.pointwise and row.family == "implicit", ragged, w.stride_w))
    families = [gpu.model.families[family_name(gpu, row)] for row in kernels]
    shares = [
        efficiency_of(product, one, known) or family.efficiency.value
        for product, one, family in zip(products, rows.attributes, families, strict=True)
    ]
    step = np.array([one.cycles / share for one, share in zip(works, shares, strict=True)])
    idle = np.array([max(1.0, model.SUB_CORES * WARP / threads_of(row)) for row in kernels])
    planes = np.array([planes_of(row) if fused(row) else 1 for row in kernels], float)
    # a Winograd block passes its sums through shared memory, written and read once, and writes outputs^2 results a window
    sums = [planes_of(row) * row.block_filters * row.block_windows * fused(row) for row in kernels]
    leaving = 2 * CONV_DTYPES[w.dtype] * np.array(sums, float) / LINE_BYTES

    def constant(name: str) -> Array:
        return np.array([getattr(family, name).value for family in families])

    turns = [np.ceil(row.block_filters * row.block_windows * row.outputs**2 / threads_of(row) / model.SUMS_AT_ONCE) for row in kernels]
    return rows._replace(
        known=tuple(attributes_of(row, known)[1] for row in kernels),
        works=tuple(works),
        step=step,
        alone=step * idle,
        fma=rows.fma / planes,
        alignment=np.ones(len(kernels)),  # what must be re-laid-out is a pass of the row's own
        sum_turns=np.array(turns),
        launch_seconds=constant("launch_seconds"),
        block_cycles=constant("block_cycles") + leaving,
        step_cycles=constant("step_cycles"),
        meet_cycles=constant("meet_cycles"),
        hidden=constant("hidden"),
        whole=np.array([row.family == "wgmma" for row in kernels]),  # others gather windows
    )


def padded_bytes(w: Conv) -> int:
    """Bytes of a group's channels of one pixel in wgmma's copies: whole 16."""
    return -(-(w.channels // w.groups * CONV_DTYPES[w.dtype]) // VECTOR_BYTES) * VECTOR_BYTES


def copied(w: Conv, nhwc: bool) -> bool:
    """Whether wgmma copies the input: where channels do not lie together in whole 16 bytes, in groups in whole steps of 128."""
    of_group = w.channels // w.groups * CONV_DTYPES[w.dtype]
    return not nhwc or padded_bytes(w) != of_group or (w.groups > 1 and of_group % LINE_BYTES != 0)


def rows_of_taps(w: Conv, nhwc: bool) -> bool:
    """Whether wgmma's copy has padded rows, whose taps beside one another are channels: where that takes fewer steps."""
    padded = padded_bytes(w)
    vectors = w.batch * w.groups * w.height * (w.width + w.pad_left + w.pad_right) * padded // VECTOR_BYTES
    fewer = -(-w.kernel_w * padded // LINE_BYTES) < w.kernel_w * -(-padded // LINE_BYTES)
    return copied(w, nhwc) and w.dilation_w == 1 and fewer and vectors < 1 << 31


def whole_steps(row: ConvKernel, w: Conv, nhwc: bool) -> int:
    """k of a wgmma row: each tap, or each row of taps, has whole steps of 128 bytes of channels."""
    padded = padded_bytes(w)
    across = -(-w.kernel_w * padded // LINE_BYTES) if rows_of_taps(w, nhwc) else w.kernel_w * -(-padded // LINE_BYTES)
    return w.kernel_h * across * row.block_k


def shape_of(w: Conv, nhwc: bool, kernels: tuple[ConvKernel, ...], rows: Rows, r: Array) -> Shape:
    """Sizes and bytes of the tiles of rows `r` of a table."""
    size = CONV_DTYPES[w.dtype]
    columns: list[tuple[float, ...]] = []
    for row, attributes, resident in zip(kernels, rows.attributes, rows.occupancy, strict=True):
        windows = Windows(w, turned(row, nhwc), row.outputs, tensor=keeps_tensor(row))
        across = row.block_windows * row.cluster[1]
        tiles = -(-windows.number // across)
        k = whole_steps(row, w, nhwc) if row.family == "wgmma" else windows.k
        filters = w.filters // w.groups * windows.k * planes_of(row) * size  # of a group
        l1 = max(L1_BYTES / 16, L1_BYTES - resident * attributes.shared_bytes) / max(1.0, resident)
        results = w.batch * w.filters * w.windows * size
        outputs = row.outputs**2
        ours = (w.filters // w.groups, w.groups * tiles * across)
        # the copy engine asks L2 for every tap
        asked = windows.number * windows.k * w.groups * size if row.family == "wgmma" else windows.asked(row.block_windows, l1)
        # each row of tiles asks for all windows, each column of tiles for one group's filters
        sides = (ours, (filters * w.groups, windows.bytes), (filters, asked))
        (m, n), (a, b), (asks_a, asks_b) = (pair[::-1] for pair in sides) if turned(row, nhwc) else sides
        columns.append((m, n, k, a, b, results, asks_a, asks_b, size * outputs, model.SUM_BYTES.get(w.dtype, 4) * outputs))
    return Shape(*(np.array(column, float)[r] for column in zip(*columns, strict=True)))


def predict(gpu: Gpu, w: Conv, nhwc: bool, kernels: tuple[ConvKernel, ...], rows: Rows, table: Table, hot: bool = True) -> Prediction:
    """Cost of launches of tiled rows, passes aside."""
    group = Gemm(m=w.filters // w.groups, n=w.batch * w.windows, k=Windows(w, nhwc).k, trans_b=True, dtype=w.dtype)
    return model.predict(gpu, group, rows, table, hot, shape_of(w, nhwc, kernels, rows, table.row))


# Staged Winograd


class Chunks(NamedTuple):
    """Staged Winograd's chunks of tiles (native/cuda/winograd_staged.cu): how many, tiles of each, their pitch, blocks of each product."""

    number: int
    tiles: int
    pitch: int
    blocks: int


def chunks_of(row: ConvKernel, w: Conv, number: int) -> Chunks:
    """The tiles in `number` chunks, or as few less as whole blocks make of it."""
    windows, block = Windows(w, False, row.outputs).number, row.block_windows
    tiles = min(windows, math.ceil(math.ceil(windows / number) / block) * block)
    return Chunks(math.ceil(windows / tiles), tiles, math.ceil(tiles / 4) * 4, math.ceil(tiles / block))


def staged(gpu: Gpu, w: Conv, nhwc: bool, row: ConvKernel, known: dict[str, Attributes], chunks: int) -> tuple[Gemm, Rows, Shape]:
    """The products of one of `chunks`, all planes and groups one after another along the windows."""
    of, kernel, planes = chunks_of(row, w, chunks), product_kernel(row, nhwc), planes_of(row) * w.groups
    k, filters = w.channels // w.groups, w.filters // w.groups
    across = planes * of.blocks * row.block_windows
    problem = Gemm(m=across, n=filters, k=k, dtype=w.dtype) if nhwc else Gemm(m=filters, n=across, k=k, trans_a=True, dtype=w.dtype)
    attributes, is_known = attributes_of(row, known)
    attributes = msgspec.structs.replace(attributes, efficiency=efficiency_of(kernel, attributes, known))
    rows = model.rows_of(gpu, problem, [kernel], {kernel.name: attributes})._replace(known=(is_known,))
    shape, one = model.shape_of(problem), float(k * filters * CONV_DTYPES[w.dtype])  # each column of tiles asks for one plane's filters
    side = {"b": one * planes, "asks_b": one} if nhwc else {"a": one * planes, "asks_a": one}
    return problem, rows, shape._replace(**side)


# Passes


def pass_cycles(gpu: Gpu, one: Pass) -> float:
    """Cycles of a pass at the machine's clock, launches included; what one launch moves decides where it lies."""
    frequency, moved = gpu.frequency_hz.value, one.read + one.written
    bytes_ = moved / float(model._copy_rate(gpu, np.array(moved / max(1, one.launches)))) / PASS_SHARE * frequency
    issue = one.elements * PASS_INSTRUCTIONS / WARP / gpu.schedulers_per_sm.value / gpu.sms.value
    return one.launches * gpu.model.pass_seconds.value * frequency + max(bytes_, issue)


def with_passes(gpu: Gpu, cost: Cost, passes: tuple[Pass, ...], times: int = 1) -> Cost:
    """A cost, `times` over, and that of the passes, as a term of their own."""
    around = sum(pass_cycles(gpu, one) for one in passes)
    moved = sum(one.read + one.written for one in passes)
    levels = {name: {key: value * times for key, value in level.items()} for name, level in cost.levels.items()}
    if moved:
        levels["passes"] = {"bytes": moved, "lines": moved / LINE_BYTES, "cycles": around}
    terms = {name: value * times for name, value in cost.terms.items()} | {"passes": around}
    cycles = cost.cycles * times + around
    bound = "passes" if around > cost.cycles * times else cost.bound_by
    return Cost(cycles, cycles / gpu.frequency_hz.value, bound, levels, terms)


# Kernels without tiles


class Threads(NamedTuple):
    """What a kernel without tiles does: warps, and of each its instructions, L1 wavefronts and cycles of waiting; bytes asked of L2."""

    warps: float
    instructions: float
    wavefronts: float
    waits: float
    asked: float


def direct(w: Conv, nhwc: bool) -> Threads:
    """A thread an output; lanes lie along columns, for which a filter is broadcast, or (NHWC) along filters, whose weights are k apart."""
    windows, size = Windows(w, nhwc), CONV_DTYPES[w.dtype]
    k = windows.k
    apart = min(WARP, k * size * WARP / LINE_BYTES) if nhwc else min(WARP, w.stride_w)
    # a block's windows come to it once for each row of filters that it has not in its lanes
    turns = w.filters // w.groups / (min(THREADS, w.filters) if nhwc else 1)
    asked = windows.asked(THREADS, L1_BYTES * THREADS / 2048) * turns
    return Threads(w.batch * w.filters * w.windows / WARP, k * DIRECT_INSTRUCTIONS, k * (1 + apart), k / DIRECT_UNROLL * L1_LATENCY, asked)


def depthwise_columns(sms: float, w: Conv, nhwc: bool) -> tuple[int, int]:
    """(columns of outputs of a thread of `depthwise`, of which so many are loaded and stored at once), as native/cuda/conv_direct.cu
    chooses them for aligned operands; (0, 1): a kernel that keeps no rows."""
    square = w.kernel_h == w.kernel_w and w.stride_h == w.stride_w and w.dilation_h == w.dilation_w == 1
    if not (square and w.kernel_h in (3, 5) and w.stride_h <= 2):
        return 0, 1

    def fits(columns: int) -> bool:
        return w.batch * w.filters * -(-w.out_h // STRIP) * -(-w.out_w // columns) // THREADS >= sms

    if nhwc:
        return (4, 1) if fits(4) else (1, 1)
    return next((n, n) for n in (4, 2, 1) if n == 1 or (w.pad_left == w.kernel_w // 2 and w.width % n == w.out_w % n == 0 and fits(n)))


def depthwise(sms: float, w: Conv, nhwc: bool) -> Threads:
    """A thread STRIP rows of outputs; rows of the input that they share are read once where the kernel keeps them."""
    taps, size = w.kernel_h * w.kernel_w, CONV_DTYPES[w.dtype]
    columns, piece = depthwise_columns(sms, w, nhwc)
    wide = max(1, columns)
    line = (wide - 1) * w.stride_w + w.kernel_w
    single = line - (line - w.kernel_w // 2) // piece * (piece - 1)  # loads of a row
    loads = ((STRIP - 1) * w.stride_h + w.kernel_h) * single if columns else STRIP * taps
    across = -(-w.out_w // wide)
    warps = w.batch * w.filters * -(-w.out_h // STRIP) * across / WARP
    # lanes of a warp lie in so many rows, each of which is so many bytes
    rows, row = (1, WARP * size) if nhwc else (max(1.0, WARP / across), min(WARP, across) * wide * w.stride_w * size)
    wavefronts = loads * min(WARP, rows * (row / LINE_BYTES + 1)) + taps * (taps * size * WARP / LINE_BYTES if nhwc else rows)
    halo = distinct(STRIP, w.kernel_h, w.stride_h, w.dilation_h) / (STRIP * min(w.stride_h, w.kernel_h))
    asked = Windows(w, nhwc).bytes * w.filters / w.channels * max(1.0, halo)
    instructions = DEPTHWISE_PLACE + loads * DEPTHWISE_INSTRUCTIONS + STRIP * wide * taps
    return Threads(warps, instructions, wavefronts, L1_LATENCY * (2 if columns else taps), asked)


def plain_cost(gpu: Gpu, w: Conv, nhwc: bool, row: ConvKernel, attributes: Attributes, hot: bool = True) -> Cost:
    """Cost of `direct` and `depthwise`."""
    size, frequency, windows = CONV_DTYPES[w.dtype], gpu.frequency_hz.value, Windows(w, nhwc)
    of = depthwise(gpu.sms.value, w, nhwc) if row.family == "depthwise" else direct(w, nhwc)
    family = gpu.model.families[family_name(gpu, row)]
    active = min(float(gpu.sms.value), math.ceil(of.warps * WARP / attributes.threads))
    here = of.warps / active  # warps of an SM
    held = model.occupancy(gpu, attributes) * attributes.threads / WARP
    loop = {
        "issue": here * of.instructions / gpu.schedulers_per_sm.value,
        "shared": here * of.wavefronts,
        "latency": math.ceil(here / held) * of.waits,
    }
    distinct_bytes = windows.bytes + w.filters * windows.k * size + w.batch * w.filters * w.windows * size
    asked = of.asked + w.batch * w.filters * w.windows * size
    memory_bytes = distinct_bytes * (float(miss(gpu, np.array(distinct_bytes))) if hot else 1.0)
    l2 = asked / min(gpu.l2_bytes_per_second.value / frequency, active * gpu.port_bytes_per_cycle.value)
    memory = memory_bytes / min(gpu.memory_bytes_per_second.value / frequency, active * gpu.memory_port_bytes_per_cycle.value)
    busy, transfer = max(loop.values()) / family.efficiency.value, max(l2, memory)
    launch = family.launch_seconds.value * frequency
    terms = dict.fromkeys(model.TERMS, 0.0) | {"loop": busy, "L2": l2, "memory": memory, "launch": launch}
    cycles = float(model.together(np.array(busy), np.array(transfer))) + launch
    bound = max(terms, key=lambda name: terms[name])
    bound = max(loop, key=lambda name: loop[name]) if bound == "loop" else bound
    moved = {"shared": of.warps * of.wavefronts * LINE_BYTES, "L2": asked, "memory": memory_bytes}
    cycles_of = {"shared": loop["shared"], "L2": l2, "memory": memory}
    levels = {name: {"bytes": size, "lines": size / LINE_BYTES, "cycles": cycles_of[name]} for name, size in moved.items()}
    levels["shared"]["wavefronts"] = of.warps * of.wavefronts
    return Cost(cycles, cycles / frequency, bound, levels, terms)
