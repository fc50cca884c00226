# SPDX-License-Identifier: Apache-2.0
"""Shared memory of the tensor-core products, as described in Python: complete, free of conflicts, and what the counters say."""

import itertools

import numpy as np
import pytest
import records
from checkout import DATA
from tensor_shared import copies, fragments, pieces, pitch_of, wavefronts

from pysim.cachemodel.shared_memory import gemm_shared
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.errors import OperandError
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import gemm_kernel, gemm_kernels

COUNTED = records.lines(DATA / "h200/wavefronts.jsonl")[1:]
# Those of few rows keep no tiles in shared memory
TENSOR = [row for row in gemm_kernels() if row.tiles.tensor and not row.tiles.by_warpgroups and row.mainloop != "streamed"]
WGMMA = [kernel for kernel in gemm_kernels() if kernel.tiles.by_warpgroups and not kernel.promotion]
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "tf32x3": 4, "s8": 1, "f64": 8}
MMA = "f16_mma_128x128x64_64x32_16x8_s3_c1x1"
WAYS = [("A", True), ("A", False), ("B", True), ("B", False)]


def ways(kernel):
    """The operands as they may lie in the kernel's stages: a type of 1 byte wants rows along k."""
    return [way for way in WAYS if way[1] or kernel.dtype != "s8"]


def schedule(kernel, decomposition="data_parallel", splits=1):
    return GpuSchedule(kernel.name, decomposition, splits, False, 8)


def even(kernel, steps=4, tiles=2):
    high, wide = kernel.block_m * kernel.cluster_m, kernel.block_n * kernel.cluster_n
    return Gemm(m=tiles * high, n=tiles * wide, k=steps * kernel.block_k, trans_b=True, dtype=kernel.dtype)


def stage_bytes(kernel, operand, k_last):
    """Every byte of an operand's tile in its stage, without the padding."""
    extent = kernel.block_m if operand == "A" else kernel.block_n
    if kernel.dtype == "f64":
        return np.arange(extent * 128)
    rows, columns = (extent, kernel.block_k) if k_last else (kernel.block_k, extent)
    size = columns * BYTES[kernel.dtype]
    return (np.arange(rows)[:, None] * pitch_of(kernel, operand, k_last) + np.arange(size)).ravel()


def touched(access):
    """Bytes that instructions touch, one entry a touch."""
    return (access.addresses[access.active][:, None] + np.arange(access.width)).ravel()


@pytest.mark.parametrize("kernel", TENSOR, ids=lambda kernel: kernel.name)
def test_loads_of_fragments_take_the_fewest_wavefronts(kernel):
    for operand, k_last in ways(kernel):
        for access in fragments(kernel, operand, k_last):
            counts = SharedMemory().count(access.addresses, access.width, False, access.active)
            np.testing.assert_array_equal(counts.total, counts.minimum)
            np.testing.assert_array_equal(counts.total, access.width // 4)


@pytest.mark.parametrize("kernel", [kernel for kernel in TENSOR if kernel.dtype != "f64"], ids=lambda kernel: kernel.name)
def test_copies_fill_the_stage_once(kernel):
    for operand, k_last in ways(kernel):
        filled = np.concatenate([touched(access) for access in copies(kernel, operand, k_last)])
        np.testing.assert_array_equal(np.sort(filled), stage_bytes(kernel, operand, k_last))


@pytest.mark.parametrize("kernel", TENSOR, ids=lambda kernel: kernel.name)
def test_fragments_of_a_step_are_the_stage_once_for_each_warp_that_shares_it(kernel):
    for operand, k_last in ways(kernel):
        first = np.concatenate([touched(access) for access in fragments(kernel, operand, k_last)])
        if kernel.dtype == "f64":
            read = [first, first ^ 64 if k_last else first + 8 * 128]
        else:
            next_k = 32 if k_last else 32 // BYTES[kernel.dtype] * pitch_of(kernel, operand, k_last)
            read = [first + i * next_k for i in range(kernel.block_k * BYTES[kernel.dtype] // 32)]
        sharing = kernel.block_n // kernel.warp_n if operand == "A" else kernel.block_m // kernel.warp_m
        whole = stage_bytes(kernel, operand, k_last)
        np.testing.assert_array_equal(np.bincount(np.concatenate(read), minlength=whole[-1] + 1)[whole], sharing)
        assert len(first) * len(read) == sharing * len(whole)


def test_only_the_smallest_tile_has_conflicts_in_its_epilogue():
    conflicts = {}
    for kernel in TENSOR + WGMMA:
        cost = wavefronts(kernel, even(kernel), schedule(kernel))
        assert cost["stores"].total == cost["stores"].minimum, kernel.name
        if cost["loads"].total > cost["loads"].minimum:
            conflicts[kernel.name] = cost["loads"].total / cost["loads"].minimum
    assert conflicts == {"f16_wmma_16x16x16_16x16_16x16_s2_c1x1": 1.2}


def test_the_worked_number_of_a_step():
    kernel = gemm_kernel(MMA)
    one, two = (wavefronts(kernel, even(kernel, steps, 1), schedule(kernel)) for steps in (1, 2))
    assert (two["loads"].instructions - one["loads"].instructions, two["loads"].total - one["loads"].total) == (192, 768)


@pytest.mark.parametrize("kernel", WGMMA, ids=lambda kernel: kernel.name)
def test_wgmma_reads_its_operands_past_the_warps(kernel):
    cost = wavefronts(kernel, even(kernel), schedule(kernel))
    assert (cost["loads"].total, cost["stores"].total, cost["copies"].total) == (0, 0, 0)
    warpgroups, blocks = kernel.math_threads // 128, 16 * kernel.cluster_m * kernel.cluster_n
    read = kernel.warp_m // 64 * (64 + kernel.warp_n) * 128  # a step is 128 bytes of k
    assert cost["products"].total * 128 == blocks * warpgroups * read


def test_pieces_are_the_tiles_that_blocks_touch():
    kernel = gemm_kernel(MMA)
    w = Gemm(m=130, n=257, k=7 * 64 - 5, dtype="f16")  # 2 x 3 tiles of 7 steps
    for splits in range(2, 43):
        edges = [g * 42 // splits for g in range(splits + 1)]
        touching = [{step // 7 for step in range(a, b)} for a, b in itertools.pairwise(edges)]
        parts = np.bincount([tile for tiles in touching for tile in tiles], minlength=6)
        cut = pieces(kernel, w, schedule(kernel, "stream_k", splits))
        assert (cut.tiles, cut.steps, cut.pieces, cut.shared) == (6, 42, parts.sum(), parts[parts > 1].sum())


def test_split_tiles_are_reduced_once_for_each_part():
    kernel = gemm_kernel(MMA)
    w = even(kernel, 6)
    whole, split = (wavefronts(kernel, w, schedule(kernel, *how)) for how in (("data_parallel", 1), ("split_k", 3)))
    assert split["stores"].total - whole["stores"].total == 4 * 3
    assert split["loads"].total - whole["loads"].total == 4 * 3 * 8  # warps
    assert split["copies"] == whole["copies"]


def test_columns_outside_c_are_not_read_in_the_epilogue():
    kernel = gemm_kernel(MMA)
    inside, outside = (wavefronts(kernel, Gemm(m=128, n=n, k=64, dtype="f16"), schedule(kernel)) for n in (128, 65))
    assert outside["stores"] == inside["stores"]
    assert inside["loads"].total - outside["loads"].total == 128 * 1  # of 4 wavefronts a row, columns 96 to 127


def test_other_families_and_types_are_refused():
    simt = next(kernel for kernel in gemm_kernels() if not kernel.tiles.tensor)
    for kernel, dtype in ((simt, simt.dtype), (gemm_kernel(MMA), "bf16")):
        with pytest.raises(OperandError, match="no tensor-core kernel"):
            wavefronts(kernel, Gemm(m=1, n=1, k=1, dtype=dtype), schedule(kernel))


def test_products_of_halves_are_refused_as_not_counted():
    kernel = next(kernel for kernel in gemm_kernels() if kernel.tiles.parts > 1)
    with pytest.raises(OperandError, match="which nobody has counted yet"):
        wavefronts(kernel, Gemm(m=128, n=128, k=64, dtype=kernel.dtype), schedule(kernel))


def nobody_counted(row):
    """Ping-pong rows, rows whose parts are reduced in clusters and clusters of four blocks, which move tiles as other rows with these
    tiles do; products of residues, tiles of 192 columns or that narrow, and of 32x32; streams of tall products; warps that share k, which
    keep no tiles in shared memory."""
    narrow = row.mainloop == "mma" and row.dtype in ("f16", "bf16", "tf32") and row.block_n == 32
    as_others = row.mainloop == "tall" or row.residues or row.promotion or row.pingpong or row.variant == "cluster"
    as_others = as_others or row.tiles.k_warps > 1
    as_others = as_others or (row.dtype == "f64" and (row.block_m, row.block_n) in ((96, 128), (96, 64), (128, 32)))
    return as_others or row.block_n == 192 or row.narrows or row.cluster_m * row.cluster_n > 2 or narrow


@pytest.mark.parametrize("kernel", [row for row in gemm_kernels() if not nobody_counted(row)], ids=lambda kernel: kernel.name)
def test_predictions_are_what_an_h200_counted(kernel):
    found = [launch for launch in COUNTED if launch["kernel"] == kernel.name]
    assert found
    for launch in found:
        if not kernel.tiles.tensor:
            longer, shorter = (parse(text) for text in launch["problem"].split(" less "))
            steps = (longer.k - shorter.k) // kernel.block_k * (longer.m // kernel.block_m) * (longer.n // kernel.block_n)
            cost = gemm_shared.wavefronts(kernel.tiles, longer.trans_a, longer.trans_b)
        else:
            steps, cost = 1, wavefronts(kernel, parse(launch["problem"]), schedule(kernel, launch["decomposition"], launch["splits"]))
        for kind, number in launch["counted"].items():
            assert number == (steps * cost[kind].total if kind in cost else 0), (kind, launch)
