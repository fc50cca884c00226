# SPDX-License-Identifier: Apache-2.0
"""FP32 as three products of tf32 halves: who has such kernels, what they copy, keep and promise, and when they are planned."""

import pytest

from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.algorithms.gpu import gemm, wgmma
from pysim.cachemodel.gpu import mainloop
from pysim.errors import PlanError
from pysim.machine import load as machine
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.plan import Request
from pysim.registry.cuda import conv_kernel, conv_kernels, gemm_kernels

H200 = machine.load_any("h200")
assert isinstance(H200, machine.Gpu)
PRODUCTS = [row for row in gemm_kernels() if row.promotion]
CONVOLUTIONS = [row for row in conv_kernels() if row.promotion]


def product(text: str) -> Gemm:
    found = parse(text)
    assert isinstance(found, Gemm)
    return found


@pytest.mark.parametrize("row", [*PRODUCTS, *CONVOLUTIONS], ids=lambda row: row.name)
def test_a_kernel_of_halves_stages_a_once_and_b_twice_and_multiplies_thrice_on_the_tf32_pipe(row):
    tiles = row.tiles.turned if row in CONVOLUTIONS else row.tiles
    assert row.dtype == "tf32x3" and row.pipe == "tensor_tf32" and tiles.products == 3
    assert mainloop.stage_bytes(tiles) == (tiles.rows + 2 * tiles.columns) * tiles.depth * 4
    assert tiles.promotion % tiles.depth == 0
    assert mainloop.work(H200, tiles).arithmetic == 3 * tiles.rows * tiles.columns * tiles.depth / 1024


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_only_halves_of_b_are_made_ahead_whatever_the_layout(layout):
    w = product(f"gemm:512x256x100:{layout}:tf32x3")
    for row in PRODUCTS:
        assert [*gemm.copies(w, row)] == [(256, 2 * 104)]  # rows of whole eights
        assert gemm.copied_bytes(w, row) == 3 * 256 * 104 * 4  # read once, written twice


def test_an_operand_whose_rows_begin_at_no_multiple_of_16_bytes_is_copied_too():
    assert len([*gemm.copies(product("gemm:512x256x101:nt:tf32x3"), PRODUCTS[0])]) == 2


def test_large_products_of_f32_are_planned_in_halves_and_need_room_for_those_of_b():
    plan = planner.plan("gemm:4096x4096x4096:nt", H200)
    assert plan.kernel.startswith("tf32x3_wgmma") and plan.schedule.decomposition == "data_parallel"
    assert plan.workspace_bytes == 2 * 4096 * 4096 * 4 + 256
    named = planner.plan("gemm:4096x4096x4096:nt:tf32x3", H200)
    assert named.schedule == plan.schedule and named.cost.cycles == plan.cost.cycles


def test_f64_and_tf32_have_no_halves_and_tf32x3_nothing_else():
    for dtype, splits in (("f64", False), ("tf32", False), ("tf32x3", True)):
        plan = planner.plan(f"gemm:2048x2048x2048:nt:{dtype}", H200)
        assert plan.kernel.startswith(dtype + "_") and plan.kernel.startswith("tf32x3") == splits


def test_a_gpu_without_such_tensor_cores_refuses_tf32x3_with_the_reason_and_still_multiplies_f32():
    with pytest.raises(PlanError, match=r"needs capability 9\.0"):
        planner.plan("gemm:512x512x512:tf32x3", "v100")
    assert planner.plan("gemm:512x512x512", "v100").kernel.startswith("f32_simt")


@pytest.mark.parametrize("problem", ["gemm:256x256x16:nt", "conv:mb1ic16ih56oc64kh1"])
def test_sums_of_few_products_of_halves_may_be_off_by_what_cutting_costs(problem):
    w = parse(problem)
    row = (CONVOLUTIONS if isinstance(w, Conv) else PRODUCTS)[0]
    found = (wgmma if isinstance(w, Conv) else gemm).candidates(Request(w, H200))
    variant = next(one for one in found.variants if one.kernel == row.name)
    algorithm = algorithm_named(wgmma.NAME if isinstance(w, Conv) else gemm.NAME, w, H200)
    assert algorithm.tolerance(w, variant.schedule("data_parallel", 1, False, 1)).growth == 2.0  # of 16: 2^-19 is 16 roundings to 2^-23


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_wide_1x1_and_strided_layers_of_f32_are_planned_in_halves(layout):
    for text in ("conv:mb32ic256ih28oc1024kh1", "conv:mb32ic512ih28oc1024kh1sh2", "conv:mb32ic256ih28oc256kh3sh2ph1"):
        plan = planner.plan(text, H200, layout=layout)
        assert plan.kernel.startswith("tf32x3_wgmma"), plan.name


def test_halves_of_filters_are_what_is_prepared():
    w = parse("conv:mb32ic64ih56oc256kh1")
    plan = planner.plan(w.text, H200, layout="nhwc")
    kept = wgmma.prepare(w, plan.schedule, "nhwc")
    assert kept and kept.size_bytes == wgmma.halves_bytes(conv_kernel(plan.kernel), w, "nhwc") == 2 * 64 * 256 * 4
