# SPDX-License-Identifier: Apache-2.0
"""FP32 as products of tf32 halves or bf16 thirds: who has such kernels, what they copy, keep and promise, and when they are planned."""

import ml_dtypes
import numpy as np
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
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import BY_INSTRUCTION, conv_kernel, conv_kernels, gemm_kernels
from pysim.runtime import cuda

H200 = machine.load_any("h200")
assert isinstance(H200, machine.Gpu)
PRODUCTS = [row for row in gemm_kernels() if row.promotion and row.tiles.by_warpgroups]
BY_WARPS = [row for row in gemm_kernels() if row.promotion and not row.tiles.by_warpgroups and row.mainloop != "streamed"]
A100 = machine.load_any("a100")
assert isinstance(A100, machine.Gpu)
CONVOLUTIONS = [row for row in conv_kernels() if row.promotion and row.tiles.by_warpgroups]


def product(text: str) -> Gemm:
    found = parse(text)
    assert isinstance(found, Gemm)
    return found


@pytest.mark.parametrize("row", [*PRODUCTS, *CONVOLUTIONS], ids=lambda row: row.name)
def test_a_stage_has_a_as_it_is_and_two_halves_or_three_thirds_of_b_and_takes_three_products_of_tf32(row):
    tiles = row.tiles.transposed if row in CONVOLUTIONS else row.tiles
    assert row.dtype == "tf32x3" and row.pipe == "tensor_tf32" and tiles.products == 3
    of_b = 3 * 2 if row in PRODUCTS else 2 * 4
    assert mainloop.stage_bytes(tiles) == (4 * tiles.rows + of_b * tiles.columns) * tiles.depth
    assert tiles.promotion % tiles.depth == 0
    assert mainloop.work(H200, tiles).arithmetic == 3 * tiles.rows * tiles.columns * tiles.depth / 1024


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_only_thirds_of_b_are_made_ahead_whatever_the_layout(layout):
    w = product(f"gemm:512x256x100:{layout}:tf32x3")
    for row in PRODUCTS:
        assert [*gemm.copies(w, row)] == [(256, 100, 3 * 2 * 104, 4)]  # rows of whole eights
        assert gemm.bytes_of(gemm.copies(w, row), 4) == 256 * (100 * 4 + 104 * 3 * 2)  # read once, written in thirds


def test_an_operand_whose_rows_begin_at_no_multiple_of_16_bytes_is_copied_too():
    assert len([*gemm.copies(product("gemm:512x256x101:nt:tf32x3"), PRODUCTS[0])]) == 2


def test_large_products_of_f32_are_planned_in_thirds_and_need_room_for_those_of_b():
    plan = planner.plan("gemm:4096x4096x4096:nt", H200, algorithm="gemm")
    assert plan.kernel.startswith("tf32x3_wgmma") and plan.schedule.decomposition == "data_parallel"
    assert plan.workspace_bytes == 3 * 4096 * 4096 * 2 + 256
    named = planner.plan("gemm:4096x4096x4096:nt:tf32x3", H200)
    assert named.schedule == plan.schedule and named.cost.cycles == plan.cost.cycles


def test_f64_and_tf32_have_no_halves_and_tf32x3_nothing_else():
    for dtype, splits in (("f64", False), ("tf32", False), ("tf32x3", True)):
        plan = planner.plan(f"gemm:2048x2048x2048:nt:{dtype}", H200)
        assert plan.kernel.startswith(dtype + "_") and plan.kernel.startswith("tf32x3") == splits


def test_a_gpu_without_such_tensor_cores_refuses_tf32x3_with_the_reason_and_still_multiplies_f32():
    with pytest.raises(PlanError, match=r"needs capability 8\.0 or later"):
        planner.plan("gemm:512x512x512:tf32x3", "v100")
    assert planner.plan("gemm:512x512x512", "v100").kernel.startswith("f32_simt")


@pytest.mark.parametrize("problem", ["gemm:256x256x16:nt", "conv:mb1ic16ih56oc64kh1"])
def test_sums_of_few_products_may_be_off_by_what_halves_or_thirds_leave_out(problem):
    w = parse(problem)
    row = (CONVOLUTIONS if isinstance(w, Conv) else PRODUCTS)[0]
    found = (wgmma.ALGORITHM if isinstance(w, Conv) else gemm).candidates(Request(w, H200))
    variant = next(one for one in found.variants if one.kernel == row.name)
    algorithm = algorithm_named(wgmma.ALGORITHM.NAME if isinstance(w, Conv) else gemm.NAME, w, H200)
    allowed = 2.0 if isinstance(w, Conv) else 1.09375  # of 16: 2^-19 is 16 roundings to 2^-23
    assert algorithm.tolerance(w, variant.schedule("data_parallel", 1, False, 1)).growth == allowed


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_wide_1x1_and_strided_layers_of_f32_are_planned_in_halves(layout):
    for text in ("conv:mb32ic256ih28oc1024kh1", "conv:mb32ic512ih28oc1024kh1sh2", "conv:mb32ic256ih28oc256kh3sh2ph1"):
        plan = planner.plan(text, H200, layout=layout)
        assert multiplies(plan).startswith("tf32x3_wgmma"), plan.name


def multiplies(plan):
    """The row that multiplies: that of a convolution, or of its product."""
    return plan.schedule.gemm or plan.kernel


def test_halves_of_filters_are_what_is_prepared():
    w = parse("conv:mb32ic128ih56oc256kh1")
    plan = planner.plan(w.text, H200, layout="nhwc", algorithm="wgmma")
    kept = wgmma.ALGORITHM.prepare(w, plan.schedule, "nhwc")
    assert kept and kept.size_bytes == wgmma.Wgmma(conv_kernel(plan.kernel), w, "nhwc").halves_bytes == 2 * 128 * 256 * 4


def test_the_workspace_of_a_pointwise_layer_in_halves_has_the_copy_of_its_planes():
    w = parse("conv:mb32ic256ih56oc64kh1")
    schedule = planner.plan(w.text, H200, algorithm="wgmma").schedule
    sizes = {wgmma.ALGORITHM.workspace_bytes(parse(f"{w.text}{dtype}"), schedule, "nchw") for dtype in ("", ":tf32x3")}
    assert len(sizes) == 1 and sizes.pop() > 32 * 256 * 56 * 56 * 4


def test_short_sums_that_are_requested_as_tf32x3_are_fp32s_own_and_f32_may_still_be_split():
    short, long = (product(f"gemm:1024x1024x{k}:nt:tf32x3") for k in (gemm.MIN_PARTS_K - 1, gemm.MIN_PARTS_K))
    assert planner.plan(short.text, H200).kernel.startswith("f32_simt")
    assert planner.plan(long.text, H200).kernel.startswith("tf32x3_")
    assert {one.code for one in planner.plan(short.text, H200).rejected if one.what.startswith("tf32x3")} >= {"accuracy"}
    row = PRODUCTS[0]
    assert gemm.less_accurate(short, row) and not gemm.less_accurate(product("gemm:1024x1024x8:nt"), row)


def thirds(x):
    """The numbers that stand for x (native/cuda/core/split.cuh)."""
    found, rest = [], x
    for i in range(3):
        if i == 2:
            rest = np.where(rest != 0, rest + x * np.float32(2.0**-25), rest)
        found.append(rest.astype(ml_dtypes.bfloat16).astype(np.float32))
        rest = rest - found[-1]
    return found


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_six_products_of_thirds_are_off_by_what_is_stated_at_most(low):
    draw = np.random.default_rng(11)
    x, y = draw.uniform(low, 1, (2, 1 << 18)).astype(np.float32)
    a, b = thirds(x), thirds(y)
    assert (np.abs(sum(part.astype(np.float64) for part in a) - x) <= 2.0**-24 * np.abs(x)).all()
    whole = np.arange(-256, 257, dtype=np.float32)
    assert (thirds(whole)[0] == whole).all()  # which therefore are multiplied exactly
    exact = x.astype(np.float64) * y
    six = sum(a[i].astype(np.float64) * b[j] for i in range(3) for j in range(3) if i + j < 3)
    assert (np.abs(six - exact) <= gemm.THIRDS_ERROR * 2.0**-23 * np.abs(exact)).all()


# By warps, on any GPU from 8.0 on


@pytest.mark.parametrize("row", BY_WARPS, ids=lambda row: row.name)
def test_a_kernel_by_warps_takes_both_operands_in_any_layout_and_makes_thirds_in_registers(row):
    tiles = row.tiles
    assert row.dtype == "tf32x3" and row.pipe == "tensor_tf32" and tiles.products == 3 and not row.exact_capability
    assert row.capability == (80 if row.promotion == 16 else 90)
    assert mainloop.stage_bytes(tiles) == (tiles.rows + tiles.columns) * tiles.depth * 4
    assert mainloop.work(A100, tiles).arithmetic == 3 * tiles.rows * tiles.columns * tiles.depth / 512
    for layout in ("nn", "nt", "tn", "tt"):
        w = product(f"gemm:512x256x100:{layout}:tf32x3")
        assert not [*gemm.copies(w, row)]
        assert gemm.workspace_bytes(w, GpuSchedule(row.name, "data_parallel", 1, False, 1)) == 0


def test_a_gpu_whose_tensor_cores_make_three_products_faster_than_its_multipliers_one_uses_them_but_for_ieee():
    text = "gemm:4096x4096x4096"
    for accuracy in ("standard", "strict"):
        assert planner.plan(text, A100, accuracy=accuracy).kernel.startswith("tf32x3_mma")
        for name in ("l40s", "rtx-4090"):  # 512 and 256 of TF32 a cycle beside 128 of FP32 would be needed: they have 256 and 128
            assert planner.plan(text, name, accuracy=accuracy).kernel.startswith("f32_simt")
    assert planner.plan(text, A100, accuracy="ieee").kernel.startswith("f32_simt")
    assert planner.plan("gemm:4096x4096x4096:tf32x3", "l40s").kernel.startswith("tf32x3_mma")


def multiplied(row, a, b, layout, splits=1):
    """op(A) op(B) by a kernel on the CPU, operands laid out as `layout` says."""
    (m, k), n = a.shape, b.shape[1]
    w = Gemm(m=m, n=n, k=k, trans_a=layout[0] == "t", trans_b=layout[1] == "t", dtype="tf32x3")
    left, right = (np.ascontiguousarray(x.T if letter == "t" else x) for x, letter in zip((a, b), layout, strict=True))
    out = np.full((m, n), np.nan, np.float32)
    schedule = GpuSchedule(row.name, "split_k" if splits > 1 else "data_parallel", splits, False, 1)
    cuda.Launch(w, schedule).on((left.ctypes.data, right.ctypes.data, out.ctypes.data)).run()
    return out


SMALL = min((row for row in BY_WARPS if row.promotion == BY_INSTRUCTION), key=lambda row: row.block_m * row.block_n * row.block_k)
LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_operands_whose_rows_begin_anywhere_are_multiplied_where_they_lie(emulated, layout):
    draw = np.random.default_rng(3)
    a, b = draw.integers(-9, 10, (37, 51)).astype(np.float32), draw.integers(-9, 10, (51, 43)).astype(np.float32)
    assert not [*gemm.copies(product(f"gemm:37x43x51:{layout}:tf32x3"), SMALL)]
    np.testing.assert_array_equal(multiplied(SMALL, a, b, layout), a @ b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("splits", [1, 2])
def test_infinities_nan_and_the_largest_numbers_come_out_as_from_fp32_and_disturb_no_neighbour(emulated, layout, splits):
    draw = np.random.default_rng(5)
    a, b = draw.uniform(-1, 1, (72, 96)).astype(np.float32), draw.uniform(-1, 1, (96, 68)).astype(np.float32)
    a[3, 5], a[7, 90], a[9, 2], b[11, 13], b[12, 17] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    a[21], b[5, 30], a[5, 6], b[:, 40] = 0, 0, LARGEST, 0
    a[33, 8], b[8, 50] = LARGEST, 1 / LARGEST
    with np.errstate(invalid="ignore", over="ignore"):
        want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    got = multiplied(SMALL, a, b, layout, splits)
    fine = np.isfinite(want)
    np.testing.assert_array_equal(got[~fine], want[~fine])
    assert np.isnan(want).any() and np.isinf(want).any()
    scale = np.abs(a).astype(np.float64)
    with np.errstate(invalid="ignore"):
        bound = np.where(fine, scale @ np.abs(b).astype(np.float64), 1)
    assert (np.abs(got[fine] - want[fine]) <= 2.0**-19 * bound[fine]).all()


def direct(a, b):
    """The sum of FP32's multiply-adds, in the order of k."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i in range(a.shape[1]):
        sums = (a[:, i : i + 1].astype(np.float64) * b[i] + sums).astype(np.float32)
    return sums


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("k", [8, 64, 512])
def test_the_error_of_thirds_is_no_larger_than_that_of_a_direct_sum(emulated, k, low):
    draw = np.random.default_rng(7)
    a, b = draw.uniform(low, 1, (64, k)).astype(np.float32), draw.uniform(low, 1, (k, 64)).astype(np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(multiplied(SMALL, a, b, "nn") - want).max() <= np.abs(direct(a, b) - want).max()


@pytest.mark.parametrize(("k", "times"), [(1, 1.1), (8, 1.4), (64, 1.3)])
def test_single_products_that_outweigh_all_others_are_rounded_as_fp32_rounds_them(emulated, k, times):
    """Of operands that differ by up to 40 orders of ten; the emulated instructions cut bits off, as tensor cores do."""
    draw = np.random.default_rng(9)
    a, b = ((10 ** draw.uniform(-18, 18, size) * draw.choice([-1, 1], size)).astype(np.float32) for size in ((64, k), (k, 64)))
    want, scale = a.astype(np.float64) @ b.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(b)

    def error(found):
        return np.sqrt((((found - want) / scale) ** 2).mean())

    assert error(multiplied(SMALL, a, b, "nn")) <= times * error(direct(a, b))


@pytest.mark.parametrize(("channels", "kernel"), [(64, "f32"), (127, "f32"), (128, "tf32x3"), (144, "tf32x3")])
def test_short_sums_are_not_of_halves(channels, kernel):
    problem = f"conv:mb16ic{channels}ih28oc512kh1"
    plan = planner.plan(problem, H200, layout="nhwc")
    assert multiplies(plan).startswith(kernel)
    assert multiplies(planner.plan(f"{problem}:tf32x3", H200, layout="nhwc")).startswith("tf32x3")  # asked for
