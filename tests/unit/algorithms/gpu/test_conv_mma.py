# SPDX-License-Identifier: Apache-2.0
"""Convolutions on mma.sync: who has them, what they copy, their steps, and what they compute."""

import msgspec
import numpy as np
import pytest

from pysim import planner
from pysim.algorithms.gpu import mma
from pysim.cachemodel.gpu import mainloop, product_columns
from pysim.check.reference import shapes
from pysim.errors import PlanError
from pysim.explain.text import explain
from pysim.machine import load as machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, conv_kernels
from pysim.runtime import cuda

ROWS = [row for row in conv_kernels() if row.algorithm == "mma"]
A100 = machine.load_any("a100")
assert isinstance(A100, machine.Gpu)
LAYER = "conv:mb32ic256ih14oc256kh3ph1"


def conv(text: str, dtype: str = "f16") -> Conv:
    found = parse(text)
    assert isinstance(found, Conv)
    return msgspec.structs.replace(found, dtype=dtype)


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("name", ["a100", "l40s", "rtx-4090", "b200"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32"])
def test_gpus_without_wgmma_have_convolutions_on_tensor_cores_that_no_product_of_columns_beats(dtype, name, layout):
    own, columns = (planner.plan(conv(LAYER, dtype), name, layout=layout, algorithm=one) for one in ("mma", "im2col"))
    assert own.kernel.startswith(f"{dtype}_mma_") and own.cost.seconds < columns.cost.seconds


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
def test_pointwise_layers_of_f32_are_planned_in_thirds_where_tensor_cores_are_that_much_faster(layout):
    text = "conv:mb32ic256ih14oc1024kh1"
    launch = planner.plan(text, "a100", layout=layout).launch
    assert (launch.gemm or launch.kernel).startswith("tf32x3_mma_")  # as a product under NHWC
    launch = planner.plan(text, "a100", layout=layout, accuracy="ieee").launch
    assert (launch.gemm or launch.kernel).startswith("f32_")
    assert planner.plan(text, "l40s", layout=layout).kernel.startswith("f32_")


def test_wgmma_replaces_them_where_it_is_and_nothing_older_runs_them():
    w = conv(LAYER)
    hopper = planner.plan(w, "h200")
    assert hopper.algorithm == "wgmma" and {one.code for one in hopper.rejected if one.what in {row.name for row in ROWS}} == {"replaced"}
    assert planner.plan(w, "h200", name=planner.plan(w, A100).name).algorithm == "mma", "but by name"
    with pytest.raises(PlanError, match=r"capability 8\.0 or later"):
        planner.plan(w, "v100", algorithm="mma")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_rows_tiles_are_those_of_a_product_by_warps_transposed_where_channels_are_last(row):
    wide, deep = (product_columns.product_tiles(row, layout) for layout in CONV_LAYOUTS)
    assert wide == deep.transposed and wide.group == 32 and wide.tensor and not wide.producer
    assert (wide.rows, wide.columns) == (row.block_filters, row.block_windows)
    if row.promotion:
        assert wide.products == 3 and wide.thirds and wide.parts == 1, "thirds are made of fragments, in registers"
    assert mainloop.stage_bytes(wide) == (wide.rows + wide.columns) * wide.depth * SIZES[row.dtype]


@pytest.mark.parametrize("name", ["l40s", "rtx-4090"])
def test_every_row_but_thirds_largest_has_room_in_shared_memory_of_small_gpus(name):
    gpu = machine.load_any(name)
    assert isinstance(gpu, machine.Gpu)
    large = {row.name for row in ROWS if product_columns.estimate(row).shared_bytes > gpu.shared_bytes_per_block.value}
    assert large == {row.name for row in ROWS if row.promotion and row.block_filters == 128}


@pytest.mark.parametrize(
    ("text", "layout", "dtype", "k", "copies"),
    [
        ("conv:mb2ic64ih8oc32kh3ph1", "nhwc", "f16", 9 * 64, {}),
        ("conv:mb2ic64ih8oc32kh3ph1", "nchw", "f16", 9 * 64, {"input": 2 * 64 * 64, "filters": 32 * 576}),
        ("conv:mb2ic3ih8oc32kh3ph1", "nhwc", "f16", 9 * 8, {"input": 2 * 64 * 8, "filters": 32 * 72}),
        ("conv:mb2ic3ih8oc32kh3ph1", "nhwc", "tf32", 9 * 4, {"input": 2 * 64 * 4, "filters": 32 * 36}),
        ("conv:g2mb2ic16ih8oc32kh3ph1", "nhwc", "f16", 9 * 8, {}),
        ("conv:mb2ic64ih8oc32kh1", "nchw", "f16", 64, {}),  # planes
        ("conv:mb2ic63ih8oc32kh1", "nchw", "f16", 64, {"filters": 32 * 64}),
        ("conv:mb2ic64ih7oc32kh1", "nchw", "f16", 64, {"input": 2 * 49 * 64}),  # planes of 98 bytes
        ("conv:mb2ic64ih8oc32kh1sh2", "nchw", "tf32", 64, {"input": 2 * 16 * 64}),  # the pixels that are taken
        ("conv:mb2ic64ih8oc32kh1sh2", "nhwc", "tf32", 64, {}),
    ],
)
def test_channels_lie_in_whole_16_bytes_or_are_copied_so_but_in_planes_of_pointwise_windows(text, layout, dtype, k, copies):
    w = conv(text, dtype)
    of = mma.Mma(next(row for row in ROWS if row.dtype == dtype), w, layout)
    assert of.k == k and of.copies == {name: elements * SIZES[dtype] for name, elements in copies.items()}
    assert [one.written for one in of.passes(A100, prologue=False)] == list(of.copies.values())


def test_a_plan_explains_its_tiles_and_copies():
    plan = planner.plan(conv("conv:mb32ic60ih28oc512kh3ph1"), A100, layout="nchw")
    text = explain(plan)
    for words in ("threads gather windows", "copied input", "of 32 over k", "instruction tile"):
        assert words in text, words
    assert "model.families.conv_mma_f16: those of mma" in plan.assumed


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
def test_infinities_among_windows_and_filters_come_out_as_from_the_definition_whatever_the_padding(emulated, layout):
    """Sums of thirds that are not finite are made once more, without what lies outside the input."""
    row = next(row for row in ROWS if row.promotion and row.block_filters == row.block_windows == 64)
    w, draw = conv("conv:g2mb2ic8ih5iw6oc6kh3ph1sh2", "tf32x3"), np.random.default_rng(3)
    x, weights = (draw.integers(-3, 4, np.prod(size)).astype(np.float32) for size in shapes(w)[:2])
    x[[5, 77]], weights[[3, 50]] = (np.inf, np.nan), (-np.inf, np.inf)
    got, want = (np.full(np.prod(shapes(w).out), np.inf, np.float32) for _ in range(2))
    launch = cuda.Launch(w, GpuSchedule(row.name, "data_parallel", 1, False, 1), layout=layout)
    launch.on((x.ctypes.data, weights.ctypes.data, got.ctypes.data)).run()
    launch.on((x.ctypes.data, weights.ctypes.data, want.ctypes.data)).reference()
    np.testing.assert_array_equal(got, want)
    assert row.needs_finite == "nothing" and np.isnan(want).any() and np.isinf(want).any() and np.isfinite(want).any()
