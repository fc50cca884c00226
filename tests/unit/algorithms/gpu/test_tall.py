# SPDX-License-Identifier: Apache-2.0
"""Products of many rows, few columns and short k: what they compute, on the CPU, and which products are planned with them."""

from pathlib import Path

import numpy as np
import pytest

import pysim
from pysim import planner
from pysim.algorithms.gpu import tall
from pysim.errors import NativeError
from pysim.machine.load import load_any
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.runtime import cuda

H200 = load_any("h200")
HALF, TF32 = (next(row for row in tall.rows() if row.dtype == dtype) for dtype in ("f16", "tf32"))


def found(row, m: int, n: int, k: int, gaps: int = 0) -> bool:
    """Whether small whole numbers are multiplied exactly, operands with `gaps` elements behind each row."""
    kind, draw = {"f16": np.float16, "tf32": np.float32}[row.dtype], np.random.default_rng(k)
    a, b = (np.full((rows, k + gaps), np.nan, kind) for rows in (m, n))
    for one in (a, b):
        one[:, :k] = draw.integers(-2, 3, (one.shape[0], k))
    out, w = np.full((m, n), np.nan, kind), parse(f"gemm:{m}x{n}x{k}:nt:{row.dtype}")
    launch = cuda.Launch(w, GpuSchedule(row.name, "data_parallel", 1, False, 1), pitches=(k + gaps, k + gaps, n))
    space = np.full(launch.workspace_bytes, 255, np.uint8)
    launch.on((a.ctypes.data, b.ctypes.data, out.ctypes.data), make=lambda size: (space, space.ctypes.data)).run()
    want = a[:, :k].astype(float) @ b[:, :k].astype(float).T
    return bool(gaps) == bool(launch.workspace_bytes) and np.array_equal(out.astype(float), want)


@pytest.mark.parametrize(
    ("row", "m", "n", "k"), [(HALF, 1, 8, 8), (HALF, 33, 24, 96), (HALF, 300, 72, 256), (TF32, 65, 4, 4), (TF32, 31, 40, 128)]
)
def test_rows_of_any_number_are_multiplied_and_gaps_between_them_are_copied_away(emulated: None, row, m, n, k) -> None:
    assert found(row, m, n, k) and found(row, m, n, k, gaps=8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gemm:64x12x8:nt:f16", "channels and filters of whole 16 bytes"),
        ("gemm:64x8x264:nt:f16", "up to 512 bytes of channels"),
        ("gemm:1048577x1024x8:nt:f16", "results of up to 2^30 elements"),
    ],
)
def test_library_and_planner_refuse_the_same_sizes_in_the_same_words(emulated: None, text: str, says: str) -> None:
    reason = tall.refuses(parse(text), H200)
    assert reason and says in reason.sentence
    with pytest.raises(NativeError, match=says.replace("^", r"\^")):
        cuda.Launch(parse(text), GpuSchedule(HALF.name, "data_parallel", 1, False, 1))


def test_tall_products_are_planned_where_memory_bounds_them_and_k_lies_last() -> None:
    plan = planner.plan("gemm:100352x24x96:nt:f16", H200)
    assert (plan.algorithm, plan.kernel, plan.workspace_bytes) == ("tall", HALF.name, 0)
    for other in ("gemm:100352x24x96:tn:f16", "gemm:512x64x64:nt:f16", "gemm:8192x3072x768:nt:f16"):
        assert planner.plan(other, H200).algorithm == "gemm"


def test_a_plan_says_how_rows_are_shared_out_and_is_exported_with_the_streams_kernels(tmp_path: Path) -> None:
    plan = pysim.plan("gemm:100352x24x96:nt:f16", "h200")
    lines = [line for section in tall.describe(planner.plan("gemm:100352x24x96:nt:f16", H200)).sections for line in section.lines]
    assert lines[0].endswith("3,136 tiles of 32 rows, 1 part of B; 132 blocks of 12 warps with 3 buffers each")
    pysim.export(plan, tmp_path / "plan")
    sources = {str(path.relative_to(tmp_path / "plan/native/cuda")) for path in (tmp_path / "plan").glob("native/cuda/*/*/*.cu")}
    assert sources == {"gemm/tall/tall.cu", "conv/pointwise/stream.cu"}


def test_the_worked_number_is_two_tiles_for_each_warp() -> None:
    warps, *_ = tall.variant(H200, parse("gemm:100352x24x96:nt:f16"), HALF).threads
    assert warps == 132 * 12
