# SPDX-License-Identifier: Apache-2.0
"""Products of few rows: what they compute, on the CPU, what a k-iteration costs, and which products are planned with them."""

from collections.abc import Iterator

import emulated_cuda
import numpy as np
import pytest

from pysim import planner
from pysim.cachemodel.gpu import mainloop
from pysim.machine.load import load_any
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import gemm_kernel, gemm_kernels
from pysim.runtime import cuda

H200 = load_any("h200")
ROWS = [row for row in gemm_kernels() if row.mainloop == "streamed"]
KINDS = {"f16": np.float16, "tf32": np.float32, "f32": np.float32, "tf32x3": np.float32}


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with emulated_cuda.opened():
        yield


@pytest.mark.parametrize("row", [row for row in ROWS if row.dtype in KINDS], ids=lambda row: row.name)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 5, 8), (3, 9, 1030), (5, 6, 2049), (8, 3, 4100), (2, 70, 24)])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_results_are_exact_where_all_sums_are_whatever_the_sizes_and_the_schedule(row, sizes, layout) -> None:
    """Also k that is no whole vector, whose rows are read element by element, B in the other order, which is copied, and a decomposition,
    which a block does not follow."""
    m, n, k = sizes
    w, draw = parse(f"gemm:{m}x{n}x{k}:{layout}:{row.dtype}"), np.random.default_rng(k)
    a, b = (draw.integers(-1, 2, size).astype(KINDS[row.dtype]) for size in ((m, k), (n, k)))
    first, second = (np.ascontiguousarray(a.T if w.trans_a else a), np.ascontiguousarray(b if w.trans_b else b.T))
    for kind, splits in (("data_parallel", 1), ("split_k", 2)):
        if splits > -(-k // row.block_k):
            continue
        out = np.full((m, n), np.nan, KINDS[row.dtype])
        launch = cuda.Launch(w, GpuSchedule(row.name, kind, splits, False, 1))
        space = np.full(launch.workspace_bytes, 255, np.uint8)
        launch.on((first.ctypes.data, second.ctypes.data, out.ctypes.data), make=lambda size, space=space: (space, space.ctypes.data)).run()
        assert np.array_equal(out.astype(float), a.astype(float) @ b.astype(float).T)


def test_a_k_iteration_counts_loads_conversions_and_products() -> None:
    """1 x 4 x 1024 of f16: 4,096 products, 5 x 2,048 bytes in 640 vectors of two instructions each, 5,120 conversions; on FP32's pipe."""
    tiles = gemm_kernel("f16_streamed_1x4x1024_1x4_1x4_s2_c1x1").tiles
    assert tiles.threads == 128 and not tiles.tensor
    assert mainloop.work(H200, tiles) == (4096 / 128, 10240 / 128, (4096 + 5120 + 2 * 640) / 32 / 4)
    assert mainloop.work(H200, tiles, ragged=(1, 0)).issue == (4096 + 5120 + 3 * 5120) / 32 / 4  # of both operands an element each
    assert mainloop.shared_bytes(tiles) == 4 * 4 * 4


def test_a_k_iteration_of_thirds_counts_whole_instructions() -> None:
    """8 x 16 x 64 by each of 8 warps: 8 + 16 rows of 512 elements are split, 8 x 4 x 6 instructions multiply, and lanes load pairs."""
    tiles = gemm_kernel("tf32x3_streamed_8x16x64_8x16_8x8_s8_c1x1").tiles
    assert (tiles.threads, tiles.depth, tiles.k_warps) == (256, 512, 8)
    issued = 24 * 512 * mainloop.THIRDS_INSTRUCTIONS / 32 + 8 * 4 * 6 + 24 * 512 / 32
    assert mainloop.work(H200, tiles)[1:] == (24 * 512 * 4 / 128, issued / 4)


def test_rows_are_planned_for_few_rows_alone() -> None:
    of_one, of_many = planner.plan("gemm:1x4096x4096:nt:f16", "h200"), planner.plan("gemm:64x4096x4096:nt:f16", "h200")
    assert "_streamed_1x" in of_one.kernel and of_one.schedule.decomposition == "data_parallel" and of_one.workspace_bytes == 0
    assert "_wgmma_" in of_many.kernel
    ragged = planner.plan("gemm:1x4093x1001:nt:f16", "h200")
    assert "_streamed_1x" in ragged.kernel and ragged.workspace_bytes == 0
    assert any("_streamed_8x" in one.what and "is for up to 16 rows" in one.reason for one in of_many.rejected)
    assert "streamed" not in planner.plan("gemm:1x4096x4096:nt:f16", "v100").kernel  # 7.0
