# SPDX-License-Identifier: Apache-2.0
"""Convolutions on wgmma: their rows, what they take, keep and copy as the CUDA library says it, their steps, and when they are planned."""

import random

import msgspec
import numpy as np
import pytest

from pysim import planner
from pysim.algorithms.gpu.wgmma import ALGORITHM, Wgmma
from pysim.cachemodel.gpu import mainloop, product_columns, waves
from pysim.cachemodel.gpu.columns import SPLIT_K, Table
from pysim.cachemodel.gpu.launches import columns_of
from pysim.cachemodel.gpu.mainloop import estimated
from pysim.cachemodel.gpu.occupancy import unable
from pysim.errors import MissingError, NativeError
from pysim.explain.text import explain
from pysim.machine import load as machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule, name_of
from pysim.registry.cuda import conv_kernels
from pysim.runtime import arrays, cuda, cuda_call

H200 = machine.load_any("h200")
assert isinstance(H200, machine.Gpu)
ROWS = [row for row in conv_kernels() if row.algorithm == "wgmma"]
ROW = next(row for row in ROWS if row.dtype == "f16" and (row.block_filters, row.block_windows) == (128, 64))


def conv(text: str, dtype: str = "f16") -> Conv:
    found = parse(text)
    assert isinstance(found, Conv)
    return msgspec.structs.replace(found, dtype=dtype)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_a_product_of_windows_and_filters(row):
    assert row.block_k * SIZES[row.dtype] in (64, 128) and row.tiles.depth == row.block_k * max(1, row.row_taps)
    product = product_columns.product_tiles(row, "nchw")
    assert product == product_columns.product_tiles(row, "nhwc")
    assert (product.rows, product.columns) == (row.block_windows, row.block_filters)
    assert (product.cluster_rows, product.cluster_columns) == (row.cluster_windows, row.cluster_filters)


@pytest.mark.parametrize(
    ("text", "layout", "k"),
    [
        ("conv:mb1ic64ih8oc8kh3ph1", "nhwc", 9 * 64),
        ("conv:mb1ic72ih8oc8kh3ph1", "nhwc", 9 * 128),
        ("conv:mb1ic3ih224oc64kh7ph3", "nhwc", 7 * 64),  # rows of taps are channels
        ("conv:mb1ic3ih224oc64kh7sh2ph3", "nhwc", 7 * 64),  # folded, 8 x 8 taps would touch pixels outside a window
        ("conv:mb1ic3ih224oc96kh4sh4", "nchw", 64),  # one tap
        ("conv:mb1ic96ih56oc192kh2sh2", "nhwc", 4 * 128),  # lies as it is taken
        ("conv:mb1ic96ih56oc192kh2sh2", "nchw", 6 * 64),
        ("conv:mb1ic16ih8oc8kh3ph1", "nhwc", 9 * 64),  # the input stays where it is
        ("conv:mb1ic16ih8oc8kh3ph1", "nchw", 3 * 64),
        ("conv:mb1ic64ih8oc8kh3ph1", "nchw", 9 * 64),
        ("conv:mb1ic64id4ih8oc8kd3kh3pd1ph1", "nhwc", 27 * 64),
        ("conv:mb1ic16id4ih8oc8kd3kh3pd1ph1", "nchw", 9 * 64),
        ("conv:mb1ic3id8ih32iw32oc8kd3kh4kw4sd1sh2sw2pd1ph1pw1", "nhwc", 3 * 2 * 64),  # folded, slice by slice
    ],
)
def test_each_tap_has_whole_steps_of_channels_unless_rows_of_taps_take_fewer(text, layout, k):
    assert Wgmma(ROW, conv(text), layout).k == k


TAPS = next(row for row in ROWS if row.row_taps and row.block_k == 64 and row.tiles.blocks == 1)


def test_rows_of_taps_load_pixels_once_and_number_a_window_for_each():
    w = conv("conv:mb2ic64id6ih14oc64kd3kh3pd1ph1")
    shared, each = (Wgmma(row, w, "nhwc") for row in (TAPS, ROW))
    assert shared.k == each.k == 27 * 64 and shared.iterations == 9
    assert shared.window_count == 2 * 6 * 14 * 16 and each.window_count == 2 * 6 * 14 * 14
    block = TAPS.block_windows
    assert shared.requested_bytes(1e9) == pytest.approx(shared.window_count * (block + 2) / block * 9 * 64 * 2)
    assert mainloop.stage_bytes(shared.tiles) == -(-(block + 2) * 128 // 1024) * 1024 + 3 * TAPS.block_filters * 128
    assert shared.order == "slices, rows, channels, columns of 64 channels"


@pytest.mark.parametrize(
    ("text", "layout", "says"),
    [
        ("conv:mb1ic64ih8oc8kh3ph1", "nchw", "channels last"),
        ("conv:mb1ic60ih8oc8kh3ph1", "nhwc", "channels last"),
        ("conv:mb1ic64ih8oc8kh3kw5ph1pw2", "nhwc", "rows of 3 taps"),
        ("conv:mb1ic64ih8oc8kh3sh2ph1", "nhwc", "rows of 3 taps"),
        ("conv:mb1ic64ih8oc8kh3ph1dh1", "nhwc", "rows of 3 taps"),
    ],
)
def test_taps_that_cannot_share_pixels_are_refused(text, layout, says):
    reason = Wgmma(TAPS, conv(text), layout).refusal()
    assert reason and says in reason.sentence
    assert not Wgmma(TAPS, conv("conv:mb1ic64ih8oc8kh5kw3sh2sw1ph1dh1dw0"), "nhwc").refusal(), "strides and dilations down"


def test_steps_of_64_bytes_leave_fewer_channels_to_fill_and_groups_of_32_where_they_are():
    narrow = next(row for row in ROWS if row.dtype == "f16" and row.block_k * SIZES[row.dtype] == 64 and not row.folds)
    for text, k in (("conv:mb1ic32ih8oc8kh3ph1", 9 * 32), ("conv:mb1ic72ih8oc8kh3ph1", 9 * 96), ("conv:mb1ic64ih8oc8kh3ph1", 9 * 64)):
        assert Wgmma(narrow, conv(text), "nhwc").k == k
    grouped = conv("conv:g4mb1ic128ih8oc128kh3ph1")
    assert not Wgmma(narrow, grouped, "nhwc").copies and Wgmma(ROW, grouped, "nhwc").copies
    folds = next(row for row in ROWS if row.dtype == "f16" and row.block_k * SIZES[row.dtype] == 64 and row.folds)
    assert Wgmma(folds, conv("conv:mb1ic3ih224oc32kh3sh2ph1"), "nhwc").k == 2 * 32, "2 x 2 taps of 16 channels"


def test_one_set_of_warpgroups_starts_and_ends_a_tile_during_the_other_s_main_loop():
    row = next(row for row in ROWS if row.dtype == "f16" and row.pingpong and row.block_filters == 64)
    columns = Wgmma(row, conv("conv:mb32ic64ih56oc64kh1"), "nhwc").variant(H200, {}).columns
    assert columns is not None
    alone = columns._replace(hidden=0.0, producer=False)
    table = Table(*(np.array([value]) for value in (0, 0, 1, 0, 8)))
    turns, one = (waves.predict(H200, columns_of([alone._replace(pingpong=value)]), table) for value in (True, False))
    first, number = one.terms["prologue/epilogue"][0] / 6, 6  # 784 tiles on 132 SMs
    loop = one.waves[:, 0].sum() / number
    assert turns.terms["prologue/epilogue"][0] == pytest.approx(first + (number - 1) * waves.PINGPONG_EXPOSED * (first - loop), rel=0.02)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("conv:mb1ic8ih64oc8kh1sh9", "strides of up to 8"),
        ("conv:mb1ic8ih300oc8kh257", "up to 256 rows"),
        ("conv:mb1ic8ih64oc8kh1ph129", "padding of up to 128"),
        ("conv:mb1ic8ih300oc8kh130", "its last window must begin"),
    ],
)
def test_what_the_copy_engine_cannot_gather_is_refused_with_its_limit(text, says):
    reason = Wgmma(ROW, conv(text), "nhwc").refusal()
    assert reason and reason.code == "shape" and says in reason.sentence
    assert not Wgmma(ROW, conv("conv:mb1ic8ih300oc8kh129"), "nhwc").refusal()


def drawn(draw: random.Random, dtype: str) -> Conv:
    """A problem whose kernel fits its padded input."""
    groups, kernel = draw.choice([1, 1, 2, 3]), [draw.choice([1, 1, 2, 3, 7, 130, 257]) for _ in range(2)]
    pads = [draw.choice([0, 0, 1, 3, 129]) for _ in range(4)]
    dilations = [draw.choice([1, 1, 2]) for _ in range(2)]
    sizes = [max(1, dilations[i] * (kernel[i] - 1) + 1 - pads[2 * i] - pads[2 * i + 1] + draw.choice([0, 1, 5, 40])) for i in range(2)]
    return Conv(
        batch=draw.choice([1, 2, 5]),
        groups=groups,
        channels=groups * draw.choice([1, 3, 8, 16, 33, 64, 128]),
        filters=groups * draw.choice([1, 7, 64, 129]),
        height=sizes[0],
        width=sizes[1],
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=draw.choice([1, 1, 2, 8, 9]),
        stride_w=draw.choice([1, 1, 2, 8]),
        dilation_h=dilations[0],
        dilation_w=dilations[1],
        pad_top=pads[0],
        pad_bottom=pads[1],
        pad_left=pads[2],
        pad_right=pads[3],
        dtype=dtype,
    )


def test_what_is_refused_and_the_workspace_are_the_librarys():
    try:
        cuda.library()
    except MissingError as error:
        pytest.skip(str(error))
    draw, taken, refused = random.Random(1), 0, 0
    for turn in range(60 * len(ROWS)):
        row, layout = ROWS[turn % len(ROWS)], draw.choice(["nchw", "nhwc"])
        w = drawn(draw, row.dtype)
        if ALGORITHM.refuses(w, H200, layout):
            continue
        kind, splits = draw.choice([("data_parallel", 1), ("split_k", 2), ("split_k", 5), ("split_k", 9), ("stream_k", 2)])
        steps = Wgmma(row, w, layout).k // row.block_k
        if steps < splits:
            kind, splits = "data_parallel", 1
        schedule = GpuSchedule(row.name, kind, splits, False, 1)
        if reason := Wgmma(row, w, layout).refusal():
            with pytest.raises(NativeError) as error:
                cuda.Launch(w, schedule, layout=layout)
            assert str(error.value).endswith(reason.sentence)
            refused += 1
        else:
            assert ALGORITHM.workspace_bytes(w, schedule, layout) == cuda.Launch(w, schedule, layout=layout).workspace_bytes, w.text
            taken += 1
    assert taken > 300 < refused


def test_parts_of_a_deep_layer_s_tiles_are_reduced_in_clusters_and_need_no_workspace():
    """k = 4608 and 28 tiles of 128 x 64 on 132 SMs; seventeen parts are more than a cluster has room for."""
    w = conv("conv:mb8ic512ih7oc512kh3ph1")
    best = planner.plan(w, H200, layout="nhwc")
    assert isinstance(best.schedule, GpuSchedule)
    assert (best.algorithm, best.schedule.decomposition, best.workspace_bytes) == ("wgmma", "split_k", 0)
    assert 2 <= best.schedule.splits <= 16
    assert ROW.reduces_in_cluster == 16
    near, far = (GpuSchedule(ROW.name, "split_k", splits, False, 1) for splits in (16, 17))
    assert ALGORITHM.workspace_bytes(w, near, "nhwc") == 0 < ALGORITHM.workspace_bytes(w, far, "nhwc")
    columns = Wgmma(ROW, w, "nhwc").variant(H200, {}).columns
    assert columns is not None
    launch = Table(*(np.array([value]) for value in (0, SPLIT_K, 2, False, 1)))
    both = (columns, columns._replace(max_cluster_splits=0))
    together, apart = (waves.predict(H200, columns_of([one]), launch).cycles[0] for one in both)
    assert together < apart - 0.5e-6 * H200.clock_hz, "no flags to clear, no sums through memory"


def test_a_pointwise_convolution_of_larger_stride_copies_only_the_pixels_that_it_takes():
    w = conv("conv:mb32ic256ih56oc512kh1sh2")
    assert Wgmma(ROW, w, "nchw").copies == {"input": 32 * 28 * 28 * 256 * 2}
    assert Wgmma(ROW, conv("conv:mb32ic256ih56oc512kh1sh2ph1"), "nchw").copies == {"input": 32 * 56 * 56 * 256 * 2}, "zeros are taken, too"
    (copy,) = Wgmma(ROW, w, "nchw").passes(H200, prologue=False)
    assert copy.read == 32 * 256 * 28 * 56 * 2, "every other row, whose sectors come whole"


def test_filters_that_are_in_one_tile_are_requested_once_by_each_block():
    row = next(row for row in ROWS if row.dtype == "f16" and row.block_filters == 32 and not row.folds)
    columns = Wgmma(row, conv("conv:mb32ic32ih112oc16kh1"), "nhwc").variant(H200, {}).columns
    assert columns is not None
    tiles = 32 * 112 * 112 / row.block_windows
    assert columns.requested_bytes_b * tiles == pytest.approx(16 * 32 * 2 * H200.sms.value)
    seven = Wgmma(row, conv("conv:mb32ic448ih112oc16kh1"), "nhwc").variant(H200, {}).columns
    assert seven is not None and seven.requested_bytes_b == 16 * 448 * 2, "7 steps come to other stages of 5 each time"


def test_traffic_goes_on_while_tiles_start_and_end_in_narrow_layers():
    """H200, NHWC: 25.8 us, where a product of wmma takes 78 (predicted 26.2), and 50.8 where another takes 118 (63.3)."""
    for text, most in (("conv:mb32ic32ih112oc16kh1", 26.2e-6), ("conv:mb32ic16ih112oc96kh1", 63.3e-6)):
        best = planner.plan(conv(text), H200, layout="nhwc", algorithm="wgmma")
        assert best.cost.seconds < most
    columns = Wgmma(ROW, conv("conv:mb32ic16ih112oc96kh1"), "nhwc").variant(H200, {}).columns
    assert columns is not None
    table = Table(*(np.array([value]) for value in (0, 0, 1, 0, 8)))
    over, after = (waves.predict(H200, columns_of([columns._replace(producer=value)]), table).cycles[0] for value in (True, False))
    assert over < 0.9 * after


def test_the_first_layer_of_mobilenet_is_folded_from_planes_and_read_in_place_where_channels_are_last():
    """H200, lab/data/h200/grouped-first.jsonl, us: folded 34.6 under NHWC, 38.9 under NCHW; by one group's row 30.3 and 39.4."""
    in_place, folded = (planner.plan(conv("conv:mb32ic3ih224oc32kh3sh2ph1"), H200, layout=layout) for layout in ("nhwc", "nchw"))
    assert in_place.algorithm == "grouped" and folded.kernel.endswith("_folded")


def test_a_convolution_with_channels_last_is_planned_on_wgmma_without_workspace():
    w = conv("conv:mb32ic256ih14oc256kh3ph1")
    best = planner.plan(w, H200, layout="nhwc")
    assert best.algorithm == "wgmma" and isinstance(best.schedule, GpuSchedule)
    one = msgspec.structs.replace(best.schedule, decomposition="data_parallel", splits=1)
    assert planner.plan(w, H200, layout="nhwc", name=name_of("wgmma", one)).workspace_bytes == 0
    assert Wgmma(ROW, w, "nhwc").passes(H200, prologue=False) == ()


def test_under_nchw_the_copies_cost_and_are_workspace():
    w = conv("conv:mb32ic256ih14oc256kh3ph1")
    last, apart = (planner.plan(w, H200, layout=layout, algorithm="wgmma") for layout in ("nhwc", "nchw"))
    passes = Wgmma(ROW, w, "nchw").passes(H200, prologue=False)
    assert {one.name for one in passes} == {"copied input", "copied filters"}
    assert sum(one.read for one in passes) == 2 * (32 * 256 * 14 * 14 + 256 * 256 * 9)
    assert apart.cost.seconds > last.cost.seconds and apart.cost.terms["passes"] > 0
    assert apart.workspace_bytes >= sum(one.written for one in passes)


def test_a_row_that_folds_takes_squares_of_pixels_as_channels_and_says_that_operands_must_be_finite():
    row = next(row for row in ROWS if row.dtype == "f16" and row.folds)
    stem = conv("conv:mb32ic3ih224oc64kh7sh2ph3")
    assert Wgmma(row, stem, "nhwc").k == 4 * 64, "4 x 4 taps of 2 x 2 pixels' 12 channels, padded to 16"
    assert row.needs_finite == "operands" and ROW.needs_finite == "filters"
    for other in ("conv:mb32ic3ih224oc64kh7ph3", "conv:mb32ic64ih56oc64kh3sh2ph1"):
        assert Wgmma(row, conv(other), "nhwc").refusal()
    best = planner.plan(stem, H200, layout="nhwc")
    assert best.kernel.endswith("_folded") and best.needs_finite == "operands"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32"])
def test_pointwise_windows_under_nchw_are_taken_as_they_lie(dtype):
    w = conv("conv:mb32ic64ih56oc256kh1", dtype)
    row = next(row for row in ROWS if row.dtype == dtype)
    assert Wgmma(row, w, "nchw").passes(H200, prologue=False) == () and not Wgmma(row, w, "nchw").copies
    assert "passes" not in planner.plan(w, H200, layout="nchw", algorithm="wgmma").cost.terms


@pytest.mark.parametrize(
    ("text", "dtype", "windows"),
    [
        ("conv:mb2ic64ih28oc64kh1", "f16", 2 * 832),  # 784 are 12 1/4 boxes of 64
        ("conv:mb2ic64ih14oc64kh1", "tf32", 2 * 224),
        ("conv:mb2ic64ih14oc64kh1", "f16", 2 * 196),  # rows of 392 bytes are no whole 16: copied
        ("conv:mb2ic64ih2iw4oc64kh1", "f16", 2 * 8),  # a box of 64 would have 56 for nothing
        ("conv:mb2ic64ih28oc64kh1sh2", "f16", 2 * 196),
        ("conv:mb2ic64ih28oc64kh1", "tf32x3", 2 * 784),  # its halves are made of pixels
    ],
)
def test_windows_of_planes_are_numbered_in_whole_boxes(text, dtype, windows):
    row = next(row for row in ROWS if row.dtype == dtype)
    assert Wgmma(row, conv(text, dtype), "nchw").window_count == windows


def test_a_plan_explains_its_tiles_steps_and_copies():
    row = next(one for one in ROWS if one.name == "f16_wgmma_256x128x64_256x64_256x64_s4")
    name = name_of("wgmma", GpuSchedule(row.name, "data_parallel", 1, False, 1))
    plan = planner.plan(conv("conv:mb32ic24ih28oc512kh3ph1"), H200, layout="nchw", name=name)
    text = explain(plan)
    for words in ("TMA gathers", "6 k-iterations of 64 over k = 216", "warpgroup tile", "copied input"):
        assert words in text, words
    assert not any("model.families.conv_wgmma" in one for one in plan.assumed), "they are fitted"


def test_only_the_capability_that_has_wgmma_runs_it():
    for capability in ("8.9", "10.0"):
        other = msgspec.structs.replace(H200, capability=capability)
        reason = unable(other, ROW, estimated(ROW.tiles.transposed))
        assert reason and reason.code == "machine"
    assert not unable(H200, ROW, estimated(ROW.tiles.transposed))


def test_operands_off_the_copies_alignment_are_moved_and_others_are_not(monkeypatch):
    copies, launched = [], []

    class Memory:
        def __init__(self, shape, dtype):
            self.pointer, self.nbytes = 1 << 20, shape[0]

    class Launch:
        workspace_bytes = 0

        def run(self, *arguments):
            launched.append(arguments[:3])

    monkeypatch.setattr(cuda, "DeviceArray", Memory)
    monkeypatch.setattr(cuda, "copy", lambda *arguments: copies.append(arguments))
    x = arrays.Matrix(4096 + 2, (1, 64, 8, 8), (4096, 1, 512, 64), "f16", 0, None, None)
    filters = arrays.Matrix(8192, (64, 64, 1, 1), (64, 1, 64, 64), "f16", 0, None, None)
    for row in (ROW, next(one for one in conv_kernels() if one.algorithm == "im2col" and one.dtype == "f16")):
        ready = cuda_call.PreparedCall(Launch(), ("x", "w"), (1, 8, 8, 64), "f16", None, True, alignment=row.alignment)
        cuda_call._launch(ready, {"x": x, "w": filters}, 1 << 21, 0, None)
    assert launched == [(1 << 20, 8192, 1 << 21), (4096 + 2, 8192, 1 << 21)]
    assert copies == [(1 << 20, 4096 + 2, 2 * 64 * 64, "PYSIM_ON_DEVICE", 0)]
