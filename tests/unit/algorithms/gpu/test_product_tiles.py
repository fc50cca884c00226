# SPDX-License-Identifier: Apache-2.0
"""Tiles that narrow fill the last wave of a launch, and the model counts the tiles that the kernel has."""

import random

import msgspec
import pytest

from pysim import planner
from pysim.algorithms.product_tiles import columns_of_tile, even_columns, tiles_of_launch
from pysim.explain.text import explain
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import GemmKernel, gemm_kernel, gemm_kernels

_loaded = load_any("h200")
assert isinstance(_loaded, Gpu)
H200: Gpu = _loaded


def named(name: str) -> GemmKernel:
    row = gemm_kernel(name)
    assert row is not None
    return row


ROW = named("f16_wgmma_128x192x64_64x192_64x192_s5_c1x1")
TF32 = named("tf32_wgmma_128x192x32_64x192_64x192_s5_c1x1")


def columns(m: int, n: int, k: int = 640, trans_b: bool = True) -> int:
    problem = Gemm(m=m, n=n, k=k, dtype="f16", trans_b=trans_b)
    return columns_of_tile(H200, problem, ROW)


def test_as_many_tiles_as_run_at_once() -> None:
    assert columns(577, 4096) == 160  # 5 x 26 = 130
    assert columns(616, 3584) == 144  # 5 x 25 = 125
    assert columns(128, 40) == 96  # the narrowest
    assert columns(132 * 128, 180) == 192  # one column of tiles of 132 rows: nothing is gained


def test_tiles_of_rows_along_n_are_multiples_of_32() -> None:
    assert columns(616, 3584, trans_b=False) == 160
    assert columns(4976, 480, trans_b=False) == 160


def test_no_wave_more_and_all_columns() -> None:
    draw = random.Random(3)
    for _ in range(2000):
        rows, n, sms = draw.randrange(1, 400), draw.randrange(1, 9000), draw.choice((78, 114, 132))
        unit = draw.choice((16, 32, 64))
        width = even_columns(rows, n, 96, 192, unit, sms)
        assert 96 <= width <= 192
        assert width % unit == 0
        assert -(-rows * -(-n // width) // sms) <= -(-rows * -(-n // 192) // sms)


def test_partial_sums_in_memory_and_tf32_from_registers_have_whole_tiles() -> None:
    problem = Gemm(m=577, n=4096, k=4096, dtype="f16", trans_b=True)
    for kind, splits, wide in (("data_parallel", 1, 160), ("split_k", 2, 160), ("split_k", 20, 192), ("stream_k", 132, 192)):
        schedule = msgspec.convert({"kernel": ROW.name, "decomposition": kind, "splits": splits, "along_n": False, "group": 1}, GpuSchedule)
        assert tiles_of_launch(H200, problem, ROW, schedule).columns == wide
    transposed = Gemm(m=577, n=4096, k=4096, dtype="tf32", trans_a=True, trans_b=True)
    assert columns_of_tile(H200, transposed, TF32) == 192
    assert columns_of_tile(H200, msgspec.structs.replace(transposed, trans_a=False), TF32) == 160


def test_the_model_and_the_explanation_have_the_narrow_tiles() -> None:
    plan = planner.plan(
        "gemm:577x4096x14336:nt:f16", "h200", name=f"gemm,kernel={ROW.name},decomposition=data_parallel,splits=1,along_n=False,group=1"
    )
    assert "128 x 160: 5 x 26 = 130 tiles" in explain(plan)


@pytest.mark.parametrize("kernel", [kernel for kernel in gemm_kernels() if kernel.narrows], ids=lambda kernel: kernel.name)
def test_rows_that_narrow_are_planned_without_sums_in_memory(kernel: GemmKernel) -> None:
    plans = planner.plans(f"gemm:200x400x20000:nt:{kernel.dtype}", "h200", top=400)
    own = [plan.launch for plan in plans if plan.kernel == kernel.name]
    assert own and all(one.decomposition != "stream_k" and one.splits <= kernel.reduces_in_cluster for one in own)
