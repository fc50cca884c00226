# SPDX-License-Identifier: Apache-2.0
"""Convolutions of channels in blocks: the numbers of plain ones, laid out otherwise;
what does not fit is said; the model counts what is run."""

import ml_dtypes
import msgspec
import numpy as np
import pytest
from native_library import native

import pysim
from pysim.algorithms.cpu import direct_nchwc
from pysim.algorithms.cpu.direct_nchwc import described
from pysim.cachemodel.cpu.direct_schedules import Rows
from pysim.cachemodel.cpu.nest import _live
from pysim.errors import OperandError, PlanError
from pysim.problem.text import parse
from pysim.record.plan import BLOCKED, blocks_of, on_cpu
from pysim.record.schedule import Schedule, name_of
from pysim.registry.cpu import nchwc_kernels
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

pytestmark = native

RANDOM = np.random.default_rng(7)
LANES = {"f32": {"avx512": 16, "avx2": 8, "portable": 8}, "f64": {"avx512": 8, "avx2": 4, "portable": 4}}


def blocked(x, block):
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)) if block > 1 else x


def planes(y):
    n, c, h, w, block = y.shape
    return y.transpose(0, 1, 4, 2, 3).reshape(n, c * block, h, w)


def runnable():
    """A layout of blocks that this CPU computes in FP32, and its block."""
    block = max(row.lane_filters for row in nchwc_kernels() if row.dtype == "f32" and row.name in runtime.available_kernels())
    return f"nchw{block}c", block


@pytest.mark.parametrize(
    ("text", "padding", "stride", "dilation", "groups"),
    [
        ("conv:mb2ic32ih9oc48kh3ph1", 1, 1, 1, 1),
        ("conv:mb1ic16ih8iw11oc32kh3sh2ph1", 1, 2, 1, 1),
        ("conv:mb1ic32ih7oc16kh1", 0, 1, 1, 1),
        ("conv:mb1ic16ih12oc16kh5dh1ph4", 4, 1, 2, 1),
        ("conv:g2mb1ic64ih6oc32kh3ph1", 1, 1, 1, 2),
        ("conv:g32mb2ic32ih9oc32kh3ph1", 1, 1, 1, 32),
        ("conv:g16mb1ic16ih31iw20oc16kh5sh2ph2", 2, 2, 1, 16),
        ("conv:g48mb1ic48ih7oc48kh7ph3", 3, 1, 1, 48),
        ("conv:g32mb1ic32ih15oc32kh3dh1ph2", 2, 1, 2, 32),
        ("conv:g16mb1ic16ih10oc16kh4sh3ph1", 1, 3, 1, 16),
        ("conv:mb1ic32ih19iw23oc48kh1", 0, 1, 1, 1),  # more tiles than a call computes, of two sizes
        ("conv:mb1ic16ih7iw401oc32kh3sh2ph1", 1, 2, 1, 1),
        ("conv:mb1ic16ih7iw333oc48kh3dh1ph1", 1, 1, 2, 1),
    ],
)
def test_blocks_of_channels_give_what_planes_give(text, padding, stride, dilation, groups):
    w, (layout, block) = parse(text), runnable()
    x = RANDOM.standard_normal((w.batch, w.channels, w.height, w.width)).astype(np.float32)
    f = RANDOM.standard_normal((w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)).astype(np.float32)
    bias = RANDOM.standard_normal(w.filters).astype(np.float32)
    added = RANDOM.standard_normal((w.batch, w.filters, w.out_h, w.out_w)).astype(np.float32)
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    for activation in (None, "relu", ("clamp", -1.0, 2.0), "silu"):
        want = pysim.conv2d(x, f, bias, activation=activation, residual=added, accuracy="strict", **given)
        got = pysim.conv2d(blocked(x, block), f, bias, activation=activation, residual=blocked(added, block), layout=layout, **given)
        assert got.shape == (w.batch, w.filters // block, w.out_h, w.out_w, block)
        np.testing.assert_allclose(planes(got), want, rtol=1e-4, atol=1e-4)


def test_every_number_of_vectors_in_a_last_panel_has_its_row():
    rows = {(row.target, row.dtype, row.filters // row.lane_filters) for row in nchwc_kernels()}
    assert all((target, dtype, fewer) in rows for target, dtype, vectors in rows for fewer in range(1, vectors))
    w, rows = parse("conv:mb1ic16ih9oc40kh1"), [row for row in nchwc_kernels() if row.target == "avx2" and row.dtype == "f32"]
    panels = {row.filters: [(one.filters, count) for one, count in direct_nchwc.rows_of_panels(w, row)] for row in rows}
    assert panels == {8: [(8, 5)], 16: [(16, 2), (8, 1)], 24: [(24, 1), (16, 1)]}


@pytest.mark.parametrize("kernel", [row for row in nchwc_kernels() if row.dtype == "f32"], ids=lambda row: row.name)
@pytest.mark.parametrize("sizes", ["ih5iw40kh3ph1", "ih9iw41kh3sh2ph1", "ih6iw37kh5ph2", "ih8iw29kh1", "ih8iw29kh1sh2", "ih7iw30kh3sh3ph1"])
def test_each_row_of_kernels_computes_last_panels_of_fewer_vectors(kernel, sizes):
    if kernel.name not in runtime.available_kernels():
        pytest.skip("not of this CPU")
    lanes, vectors = kernel.lane_filters, kernel.filters // kernel.lane_filters
    for last in range(1, vectors + 1):
        w = parse(f"conv:mb1ic{2 * lanes}oc{lanes * (vectors + last)}{sizes}")
        x = RANDOM.standard_normal((1, w.channels, w.height, w.width)).astype(np.float32)
        f = RANDOM.standard_normal((w.filters, w.channels, w.kernel_h, w.kernel_w)).astype(np.float32)
        name = f"direct_nchwc,kernel={kernel.name},stationary=input_stationary,pack=none,channels={lanes},k2=13,k3=1"
        name = name.replace("channels", f"windows={kernel.windows},filters={kernel.filters},channels")
        given = {"stride": w.stride_h, "padding": w.pad_top}
        want = pysim.conv2d(x, f, accuracy="strict", **given)
        plan = pysim.plan(w.text, layout=f"nchw{lanes}c", name=name)
        got = pysim.conv2d(blocked(x, lanes), f, layout=f"nchw{lanes}c", plan=plan, **given)
        np.testing.assert_allclose(planes(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [row for row in nchwc_kernels() if row.dtype == "f32"], ids=lambda row: row.name)
def test_panels_of_one_pixel_together_give_the_bits_of_each_alone(kernel):
    """Of two pixels panels are computed one by one."""
    if kernel.name not in runtime.available_kernels():
        pytest.skip("not of this CPU")
    lanes = kernel.lane_filters
    for groups, panels, last in ((1, 4, 0), (1, 9, 1), (2, 5, 1), (1, 3, 0)):
        filters, channels = groups * (panels * kernel.filters + last * lanes), groups * 5 * lanes
        one, two = (parse(f"conv:g{groups}mb2ic{channels}ih1iw{wide}oc{filters}kh1") for wide in (1, 2))
        x = RANDOM.standard_normal((2, channels, 1, 2)).astype(np.float32)
        added = RANDOM.standard_normal((2, filters, 1, 2)).astype(np.float32)
        f, bias = RANDOM.standard_normal((filters, channels // groups, 1, 1)).astype(np.float32), np.ones(filters, np.float32)
        for inner in (5 * lanes, 2 * lanes):
            schedule = Schedule(kernel.name, "input_stationary", "none", kernel.windows, kernel.filters, inner, 1, 1, "direct_nchwc")

            def result(w, wide, threads, schedule=schedule, f=f, bias=bias, x=x, added=added):
                run = cpu_launch.Prepared(w, f, schedule, bias=bias, activation="silu", threads=threads, layout=f"nchw{lanes}c")
                return planes(run(blocked(x[..., :wide].copy(), lanes), residual=blocked(added[..., :wide].copy(), lanes)))

            want = result(two, 2, 1)
            for threads in (1, 2, 3):
                assert np.array_equal(result(one, 1, threads)[..., 0], want[..., 0]), (groups, panels, last, inner, threads)


def test_an_image_of_three_channels_is_read_as_planes_and_written_in_blocks():
    layout, block = runnable()
    x = RANDOM.standard_normal((1, 3, 33, 30)).astype(np.float32)
    f = RANDOM.standard_normal((2 * block, 3, 7, 7)).astype(np.float32)
    got = pysim.conv2d(x, f, stride=2, padding=3, layout=f"nchw-{layout}")
    np.testing.assert_allclose(planes(got), pysim.conv2d(x, f, stride=2, padding=3, accuracy="strict"), rtol=1e-4, atol=1e-4)
    prepared = pysim.prepare(f"conv:mb1ic3ih33iw30oc{2 * block}kh7sh2ph3", f, layout=f"nchw-{layout}")
    assert np.array_equal(prepared(x), got)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("conv:mb1ic64ih14oc128kh3ph1", "direct_nchwc"),
        ("conv:mb1ic64ih14oc128kh3ph1", "winograd"),
        ("conv:g64ic64ih14oc64kh3ph1", "depthwise"),
    ],
)
def test_each_number_of_threads_gives_the_same_bits(text, algorithm):
    w, (layout, block) = parse(text), runnable()
    x = RANDOM.standard_normal((1, 64 // block, 14, 14, block)).astype(np.float32)
    f = RANDOM.standard_normal((w.filters, 64 // w.groups, 3, 3)).astype(np.float32)
    plan = pysim.plan(w, layout=layout, algorithm=algorithm)
    one = cpu_launch.Prepared(w, f, on_cpu(plan)[0], layout=layout)(x)
    for threads in (2, 3, 5):
        assert np.array_equal(cpu_launch.Prepared(w, f, on_cpu(plan)[0], threads=threads, layout=layout)(x), one)


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_plans_for_threads_divide_what_runs_divide(threads):
    for text in ("conv:mb1ic256ih14oc256kh3ph1", "conv:mb1ic64ih56oc256kh1", "conv:mb3ic64ih14oc96kh3sh2ph1"):
        alone, team = (
            pysim.plan(text, machine="zen5", layout="nchw16c", threads=count, algorithm=direct_nchwc.NAME) for count in (1, threads)
        )
        assert alone.seconds / threads * 0.8 < team.seconds < alone.seconds
        part = direct_nchwc.largest_part(team.workload, team.schedule, threads)
        assert part.problem.filters % 16 == 0
        assert part.share * part.problem.flops * threads >= 0.95 * team.workload.flops


@pytest.mark.parametrize(
    ("text", "k2", "threads"),
    [
        ("conv:mb1ic64ih56oc256kh1", 170, 2),
        ("conv:mb1ic64ih56oc256kh1", 170, 3),
        ("conv:mb1ic512ih7oc2048kh1", 9, 2),
        ("conv:g8ic64ih14oc64kh3ph1", 42, 3),
    ],
)
def test_no_thread_has_much_more_than_its_share_of_tiles(text, k2, threads):
    """Blocks of 170 of 523 tiles, the last one of 13, would give one of two threads 340."""
    problem = parse(text)
    plan = pysim.plan(problem, machine="zen4", layout="nchw8c", micro_kernel="f32_nchwc_6x16__avx2", algorithm=direct_nchwc.NAME)
    part = direct_nchwc.largest_part(problem, msgspec.structs.replace(on_cpu(plan)[0], k2=k2), threads)
    assert problem.flops / threads <= part.share * part.problem.flops < 1.15 * problem.flops / threads


def test_few_threads_divide_tiles_where_the_input_is_larger_and_panels_where_the_filters_are():
    kernel = next(row for row in nchwc_kernels() if row.name == "f32_nchwc_6x16__avx2")
    for text, expected in (("conv:mb1ic128ih56oc128kh3sh2ph1", (2, 1)), ("conv:mb1ic512ih7oc2048kh1", (1, 2))):
        problem = parse(text)
        schedule = Schedule(kernel.name, "input_stationary", "none", windows=6, filters=16, channels=512, k2=200, k3=1)
        assert direct_nchwc.division(direct_nchwc.Shape.of(problem, kernel, "nchw8c"), kernel, schedule, 2) == expected


def test_channels_that_are_no_whole_blocks_are_refused_with_what_would_be_right():
    x, f = np.zeros((1, 24, 8, 8), np.float32), np.zeros((24, 24, 3, 3), np.float32)
    with pytest.raises(PlanError, match="24 filters are not a multiple of 16, the block of nchw-nchw16c"):
        pysim.conv2d(x, f, layout="nchw-nchw16c")
    with pytest.raises(OperandError, match=r"x has shape \(1, 24, 8, 8\); in layout nchw16c it is \(N, C/16, H, W, 16\)"):
        pysim.conv2d(x, f, layout="nchw16c")
    with pytest.raises(PlanError, match=r"its blocks have (4|8) channels, those of nchw16c do not"):
        pysim.plan("conv:mb1ic64ih56oc64kh3ph1:f64", machine="zen5", layout="nchw16c")
    with pytest.raises(PlanError, match="layout nchw16c is for CPUs, and h100 is a GPU"):
        pysim.plan("conv:mb1ic64ih56oc64kh3ph1", machine="h100", layout="nchw16c")


@pytest.mark.parametrize("layout", BLOCKED)
def test_only_kernels_of_that_block_are_planned_and_sizes_are_the_librarys(layout):
    block = blocks_of(layout)[1]
    text = f"conv:mb1ic64ih14oc64kh3ph1{':f64' * (block == 4)}"
    plan = pysim.plan(text, machine="zen5", layout=layout, algorithm=direct_nchwc.NAME)
    kernel = next(row for row in nchwc_kernels() if row.name == plan.kernel)
    assert plan.algorithm == direct_nchwc.NAME and kernel.lane_filters == block == LANES[kernel.dtype][kernel.target]
    if kernel.name in runtime.available_kernels():
        launch = cpu_launch.Launch(plan.workload, on_cpu(plan)[0], layout=layout)
        assert launch.prepared_bytes == direct_nchwc.prepare(plan.workload, plan.schedule, layout).size_bytes
        assert launch.workspace_bytes == direct_nchwc.workspace_bytes(plan.workload, plan.schedule, layout)


def test_planes_are_never_planned_for_blocks_nor_blocks_for_planes():
    plan = pysim.plan("conv:mb1ic64ih56oc64kh3sh2ph1", machine="zen5")
    assert plan.algorithm != direct_nchwc.NAME
    with pytest.raises(PlanError, match="in channel blocks, not nchw"):
        pysim.plan("conv:mb1ic64ih56oc64kh3ph1", machine="zen5", algorithm=direct_nchwc.NAME)


def test_a_plan_is_made_again_from_its_name_and_printed():
    plan = pysim.plan("conv:mb1ic64ih28oc128kh3sh2ph1", machine="zen5", layout="nchw16c", algorithm=direct_nchwc.NAME)
    options = {"machine": "zen5", "layout": "nchw16c"}
    assert pysim.plan(plan.workload, name=plan.name, **options).schedule == plan.schedule
    assert "panels" in plan.explain() and "NCHW16C" in plan.explain()
    with pytest.raises(PlanError, match=r"has no such schedule for .*channels=16"):
        pysim.plan(plan.workload, name=plan.name.replace(f"channels={plan.tile['channels']}", "channels=7"), **options)


def test_taps_inside_the_image_are_counted_as_a_loop_over_them_counts():
    for out, kernel, stride, dilation, before, size in ((56, 3, 1, 1, 1, 56), (5, 7, 2, 1, 3, 9), (4, 3, 1, 5, 6, 2), (3, 2, 2, 1, 2, 1)):
        walked = sum(0 <= i * stride - before + k * dilation < size for i in range(out) for k in range(kernel))
        assert _live(out, kernel, stride, dilation, before, size) == walked


def test_the_loops_touch_each_operand_whole():
    w = parse("conv:mb2ic64ih28oc128kh3ph1")
    kernel = next(row for row in nchwc_kernels() if row.lane_filters == 16)
    schedule = Schedule(kernel.name, "input_stationary", "none", kernel.windows, kernel.filters, 32, 9, 1)
    nest = described(w, Rows.alone(kernel, schedule), "nchw16c")
    whole = [float(nest.footprint(-1, row)[0]) for row in range(3)]
    assert whole == [2 * 64 * 28 * 28 * 4, 128 * 64 * 9 * 4, 2 * 128 * 28 * 28 * 4]


@pytest.mark.parametrize("layout", ["nchw", "nchw8c", "nchw16c"])
def test_a_convolution_whose_taps_all_fall_into_padding_has_a_time(layout):
    """Three columns 2 apart, the image's one column between them."""
    found = pysim.plan("conv:mb2ic32ih19iw1oc32kh2kw3sh3sw2dh2dw1ph0pw3", machine="zen4", layout=layout)
    assert 0 < found.cost.seconds < 1


def test_a_layer_of_one_tap_reads_its_input_once_a_panel():
    """512 channels of 28x28 are one row of 784 pixels, for 8 panels of 16 filters."""
    kernel = next(row for row in nchwc_kernels() if (row.target, row.dtype, row.filters) == ("avx512", "f32", 16))
    schedule = Schedule(kernel.name, "input_stationary", "none", kernel.windows, kernel.filters, 512, 16, 1, direct_nchwc.NAME)
    plan = pysim.plan("conv:mb1ic512ih28oc128kh1", machine="zen4", layout="nchw16c", name=name_of(direct_nchwc.NAME, schedule))
    assert plan.cost.levels["L2"]["input_bytes"] <= 8 * 512 * 28 * 28 * 4


@pytest.mark.parametrize(
    "text",
    [
        "conv:mb2ic3ih20iw23oc32kh3sh2ph1:bf16",
        "conv:mb1ic1ih15iw40oc48kh7sh2ph3:bf16",
        "conv:g2mb1ic10ih9oc64kh3dh1dw0ph2pw1:bf16",
        "conv:mb1ic3ih12oc16kh4sh4:bf16",
    ],
)
def test_planes_of_floats_are_rounded_once_for_layers_of_bf16(text):
    """Of an image of few values and weights of few bits the results are those of exact sums, whatever is not finite."""
    if not (rows := [row for row in nchwc_kernels() if row.dtype == "bf16" and row.name in runtime.available_kernels()]):
        pytest.skip("no kernels of bf16 here")
    w, layout = parse(text), f"nchw-nchw{rows[0].lane_filters}c"
    x = RANDOM.integers(-3, 4, w.input_shape).astype(np.float32)
    f = RANDOM.integers(-2, 3, w.filter_shape).astype(np.float32)
    exact = msgspec.structs.replace(w, dtype="f32")
    for weight, pixel in ((1.0, 1.0), (np.inf, 1.0), (1.0, np.nan), (-np.inf, np.inf)):
        f[-1, 0, 0, 0], x[0, -1, 1, 2] = weight, pixel
        want = pysim.prepare(exact, f, accuracy="ieee")(x)
        for kernel in rows:
            schedule = Schedule(
                kernel.name, "input_stationary", "none", kernel.windows, kernel.filters, w.group_channels, 3, 1, direct_nchwc.NAME
            )
            for threads in (1, 3):
                launch = cpu_launch.Launch(w, schedule, threads=threads, layout=layout)
                assert launch.prepared_bytes == direct_nchwc.prepare(w, schedule, layout).size_bytes
                assert launch.workspace_bytes == threads * direct_nchwc.workspace_bytes(w, schedule, layout)
                got = cpu_launch.Prepared(w, f, schedule, threads=threads, layout=layout)(x)
                rounded = want.astype(ml_dtypes.bfloat16).astype(np.float32)
                np.testing.assert_array_equal(planes(got.view(ml_dtypes.bfloat16)).astype(np.float32), rounded)
