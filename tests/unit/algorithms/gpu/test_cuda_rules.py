# SPDX-License-Identifier: Apache-2.0
"""What Python says of every CUDA row's workspace and refusals, beside the library's own answer, without a GPU.

The library is the kernels' build for the CPU (`native/cuda/emulated`), which has every row and the same checks.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import emulated_cuda
import numpy as np
import pytest

import pysim.api
from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.algorithms.convolution import row_refuses
from pysim.algorithms.gpu import gemm, im2col, residues, tall
from pysim.check.reference import shapes
from pysim.comparison.bench import GpuBench
from pysim.errors import NativeError, OperandError, PlanError, ProblemError
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.cost import Reason
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, ConvKernel, GemmKernel, conv_kernels, cuda_limits, gemm_kernels
from pysim.runtime import cuda

MOST = cuda_limits()
PROBLEMS = 150  # of a row and layout
BASE = 4096  # an operand that lies aligned

Lies = tuple[tuple[int, int], tuple[bool, bool]]  # pitches of A and B, and whether they begin aligned


# What Python says; None where it refuses

H200 = load_any("h200")


def product_bytes(row: GemmKernel, w: Gemm, schedule: GpuSchedule, lies: Lies) -> int | None:
    if row.residues:
        return None if gemm.refuses(w, H200) or residues.kernel_refuses(w, row, lies) else residues.launch_bytes(w, schedule, lies)
    if gemm.refuses(w, H200) or gemm.too_large(w, row, lies) or (row.dense and tall.kernel_refuses(w)):
        return None
    return gemm.launch_bytes(w, row, schedule, lies)


def convolution_bytes(row: ConvKernel, w: Conv, schedule: GpuSchedule, layout: str, product: GemmKernel | None) -> int | None:
    if refusal(row, w, layout):
        return None
    if product:
        of = im2col.products_of(w, layout)
        if product_bytes(product, of.problem, GpuSchedule(product.name, "data_parallel", 1, False, 1), (of.pitches, of.aligned)) is None:
            return None
    return algorithm_named(row.algorithm, w, H200).workspace_bytes(w, schedule, layout)


def refusal(row: ConvKernel, w: Conv, layout: str) -> Reason | None:
    """What its algorithm says, then what it says of the row."""
    module: Any = algorithm_named(row.algorithm, w, H200)
    return module.refuses(w, H200, layout) or (None if row.makes_product else row_refuses(module.by(row, w, layout)))


# What the library says


@pytest.fixture(scope="module", autouse=True)
def native() -> Iterator[None]:
    with emulated_cuda.opened():
        yield


def library_product_bytes(w: Gemm, schedule: GpuSchedule, lies: Lies) -> int:
    first, second = (BASE if aligned else BASE + SIZES[w.dtype] for aligned in lies[1])
    return cuda.Launch(w, schedule, pitches=(*lies[0], w.n), first=first, second=second).workspace_bytes


def library_convolution_bytes(w: Conv, schedule: GpuSchedule, layout: str) -> int:
    return cuda.Launch(w, schedule, layout=layout).workspace_bytes


# Problems: sizes about the tiles' edges and the limits, and any


def near(draw: random.Random, *edges: int, most: int) -> int:
    """One of the edges, one less or more, twice that and one more; or any up to `most`, small ones as likely as large ones."""
    if edges and draw.random() < 0.6:
        edge = draw.choice(edges)
        return max(1, draw.choice((edge - 1, edge, edge + 1, 2 * edge + 1)))
    return max(1, int(most ** draw.random()))


def decomposition(draw: random.Random, steps: int, tiles: int) -> tuple[str, int]:
    """One of the three, with as many parts as there may be, or fewer."""
    kind = draw.choice(("data_parallel", "split_k", "stream_k"))
    most = {"data_parallel": 1, "split_k": min(steps, MOST["TILES"] // tiles), "stream_k": min(steps * tiles, 10_000)}[kind]
    return ("data_parallel", 1) if most < 2 else (kind, draw.choice((2, most, draw.randint(2, most))))


def product(draw: random.Random, row: GemmKernel, layout: int) -> Gemm:
    """Sizes about the tiles, one of them in ten about what is the largest."""
    sizes = {
        "m": near(draw, row.block_m * row.cluster_m, most=1 << 14),
        "n": near(draw, row.block_n * row.cluster_n, most=1 << 14),
        "k": near(draw, row.block_k, row.block_k * row.stages, most=1 << 14),
    }
    if draw.random() < 0.3:
        side = draw.choice("mnk")
        sizes[side] = _about(draw, draw.choice((MOST["GEMM_K"] if side == "k" else MOST["GEMM_SIDE"], MOST["LAYOUT_CONVERSION_ROWS"])))
    elif draw.random() < 0.1:  # about as many tiles as there may be
        columns = MOST["TILES"] // -(-MOST["GEMM_SIDE"] // (row.block_m * row.cluster_m)) * row.block_n * row.cluster_n
        sizes |= {"m": MOST["GEMM_SIDE"], "n": min(_about(draw, columns), MOST["GEMM_SIDE"]), "k": 1}
    if row.dense and draw.random() < 0.8:  # it takes whole vectors
        sizes |= {side: -(-sizes[side] // 8) * 8 for side in "nk"}
    return Gemm(**sizes, trans_a=bool(layout & 1), trans_b=bool(layout & 2), dtype=row.dtype)


@pytest.mark.parametrize("row", gemm_kernels(), ids=lambda row: row.name)
def test_a_products_workspace_and_refusals_are_the_librarys(row: GemmKernel) -> None:
    draw, answered = random.Random(row.index), 0
    for i in range(4 * PROBLEMS):
        w = product(draw, row, i % 4)
        dense = (w.m if w.trans_a else w.k, w.k if w.trans_b else w.n)
        a, b = (pitch + draw.choice((0, 0, 1, -pitch % 16, 16)) for pitch in dense)
        lies = ((a, b), (draw.random() < 0.7, draw.random() < 0.7))
        kind, splits = ("data_parallel", 1) if row.residues else decomposition(draw, -(-w.k // row.block_k), gemm.tiles_of(w, row))
        schedule = GpuSchedule(row.name, kind, splits, draw.random() < 0.5, draw.randint(1, 8))
        theirs = answer(library_product_bytes, w, schedule, lies)
        assert product_bytes(row, w, schedule, lies) == theirs, (w.text, schedule, lies)
        answered += theirs is not None
    assert answered > PROBLEMS


def answer(ask: Callable[..., int], *told: Any) -> int | None:
    """What the library answers; None where it refuses."""
    try:
        return ask(*told)
    except NativeError:
        return None


def shape(draw: random.Random, row: ConvKernel) -> dict[str, int]:
    """A convolution, most often small; about one limit at a time."""
    groups = draw.choice((1, 1, 2, 3, near(draw, most=64)))
    one = row.algorithm == "depthwise" and draw.random() < 0.9
    channels, filters = (1 if one else near(draw, 4, 8, 16, 64, most=300)), near(draw, row.block_filters or 8, most=300)
    kernel = (3, 3) if row.algorithm == "winograd" and draw.random() < 0.9 else (near(draw, 3, most=9), near(draw, 3, most=9))
    stride = (1, 1) if row.algorithm == "winograd" and draw.random() < 0.9 else (draw.randint(1, 3), draw.randint(1, 3))
    w = {
        "batch": near(draw, 32, most=64), "groups": groups, "channels": groups * channels, "filters": groups * filters,
        "height": near(draw, 7, 28, most=300), "width": near(draw, 7, 28, row.block_windows or 8, most=300),
        "kernel_h": kernel[0], "kernel_w": kernel[1], "stride_h": stride[0], "stride_w": stride[1],
        "dilation_h": draw.choice((1, 1, 1, 2)), "dilation_w": draw.choice((1, 1, 1, 2)),
    }  # fmt: skip
    w |= {f"pad_{side}": draw.choice((0, 1, draw.randint(0, 4))) for side in ("top", "left", "bottom", "right")}
    if row.folds and draw.random() < 0.8:
        w |= {"groups": 1, "channels": draw.randint(1, 6), "filters": w["filters"] // groups, "dilation_h": 1, "dilation_w": 1}
        w |= {
            "kernel_h": draw.randint(2, 9),
            "kernel_w": draw.randint(2, 9),
            "stride_h": draw.randint(2, 4),
            "stride_w": draw.randint(1, 4),
        }
    if row.row_taps and draw.random() < 0.8:
        vector = 16 // SIZES[row.dtype]
        w |= {"groups": 1, "channels": vector * draw.randint(1, 20), "filters": w["filters"] // groups, "stride_w": 1, "dilation_w": 1}
        return w | {"kernel_w": row.row_taps, "kernel_h": draw.randint(1, 4)} | (volume(draw, row) if draw.random() < 0.4 else {})
    return w | draw.choice(LIMITS)(draw) | (volume(draw, row) if draw.random() < (0.4 if row.volumes else 0.1) else {})


def volume(draw: random.Random, row: ConvKernel) -> dict[str, int]:
    """A depth; for rows of images, windows that join no rows and no columns."""
    sizes = {
        "depth": near(draw, 4, most=40), "kernel_d": near(draw, 3, most=9), "stride_d": draw.choice((1, 1, 2, MOST["TMA_STRIDE"])),
        "dilation_d": draw.choice((1, 1, 2, _about(draw, MOST["TMA_VOLUME_SPAN"] // 2))), "pad_front": draw.choice((0, 1, 15, 16, 17)),
        "pad_back": draw.choice((0, 1, 14, 15, 16, 30)), "batch": draw.randint(1, 3),
    }  # fmt: skip
    if row.volumes and draw.random() < 0.8:
        return sizes
    plain = dict.fromkeys(("kernel_h", "kernel_w", "stride_h", "stride_w"), 1)
    return sizes | plain | dict.fromkeys(("pad_top", "pad_left", "pad_bottom", "pad_right"), 0)


def _about(draw: random.Random, limit: int) -> int:
    return max(1, limit + draw.randint(-1, 1))


def _tensor(draw: random.Random) -> dict[str, int]:
    """A tensor of about the most elements."""
    side = 1 << draw.randint(3, 8)
    left = MOST["CONV_TENSOR"] // (side * side)
    batch = 1 << draw.randint(0, left.bit_length() - 1)
    sizes = {"groups": 1, "batch": batch, draw.choice(("channels", "filters")): _about(draw, left // batch), "height": side, "width": side}
    return sizes | {
        "kernel_h": 1,
        "kernel_w": 1,
        "pad_top": 0,
        "pad_left": 0,
        "pad_bottom": 0,
        "pad_right": 0,
        "stride_h": 1,
        "stride_w": 1,
    }


def _taps(draw: random.Random) -> dict[str, int]:
    high = draw.randint(1, 2 * MOST["LISTED_TAPS"])
    wide = draw.choice((MOST["LISTED_TAPS"] - high, MOST["TENSOR_TAPS"] // high))
    return {"kernel_h": high, "kernel_w": _about(draw, wide), "height": 100, "width": 100}


def _corner(draw: random.Random) -> dict[str, int]:
    reach, side = MOST["TMA_CORNER"], draw.choice(("pad_top", "pad_left", "pad_bottom", "pad_right"))
    return {
        side: _about(draw, reach + draw.choice((0, 1, 2, 4))),
        "kernel_h": draw.choice((1, 3)),
        "kernel_w": draw.choice((1, 3)),
        "width": 200,
        "height": 200,
    }


def _span(draw: random.Random) -> dict[str, int]:
    axis = draw.choice("hw")
    far = {"pad_bottom": draw.randint(120, 140), "pad_right": draw.randint(120, 140)}
    return far | {f"kernel_{axis}": 2, f"dilation_{axis}": _about(draw, MOST["TMA_SPAN"] - 1), "height": 600, "width": 600, "batch": 1}


def _image(draw: random.Random) -> dict[str, int]:
    """A padded image of about the most elements that taps are listed for."""
    high = 1 << draw.randint(8, 20)
    ones, pads = ("groups", "batch", "channels", "filters"), ("pad_top", "pad_left", "pad_bottom", "pad_right")
    return dict.fromkeys(ones, 1) | dict.fromkeys(pads, 0) | {"height": high, "width": _about(draw, MOST["LISTED_IMAGE"] // high)}


def _line(draw: random.Random) -> dict[str, int]:
    ones = dict.fromkeys(("batch", "height", "kernel_h", "channels", "filters", "groups"), 1)
    return ones | {"width": _about(draw, MOST["CONV_SIZE"])}


def _images(draw: random.Random) -> dict[str, int]:
    """Many small ones."""
    sizes = {"batch": 1 << draw.randint(10, 16), "height": 1 << draw.randint(1, 8), "width": 1 << draw.randint(1, 8)}
    return sizes | {"groups": 1, "channels": 1, "filters": 4}


def _stride(draw: random.Random) -> dict[str, int]:
    return {f"stride_{draw.choice('hw')}": _about(draw, MOST["TMA_STRIDE"])}


LIMITS = (*[lambda draw: {}] * 8, _tensor, _taps, _corner, _span, _image, _line, _images, _stride)


def convolution(draw: random.Random, row: ConvKernel) -> Conv:
    if row.algorithm == "pointwise" and draw.random() < 0.9:
        side, channels, filters = draw.randint(1, 60), 4 * draw.randint(1, 35), 4 * draw.randint(1, 80)
        return Conv(
            batch=draw.randint(1, 8), channels=channels, height=side, width=side, filters=filters, kernel_h=1, kernel_w=1, dtype=row.dtype
        )
    if row.variant in ("sequence", "toeplitz") and draw.random() < 0.9:
        channels, taps = 4 * draw.randint(1, 60), draw.randint(1, 66)
        return Conv(
            batch=draw.randint(1, 8), channels=channels, groups=channels, filters=channels, height=draw.randint(1, 3), dtype=row.dtype,
            width=draw.randint(taps, 400), kernel_h=1, kernel_w=taps, pad_left=draw.randint(0, taps - 1),
        )  # fmt: skip
    while True:
        try:
            return Conv(**shape(draw, row), dtype=row.dtype)
        except ProblemError:  # a kernel larger than its input
            continue


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("row", conv_kernels(), ids=lambda row: row.name)
def test_a_convolutions_workspace_and_refusals_are_the_librarys(row: ConvKernel, layout: str) -> None:
    draw, answered = random.Random(f"{row.name} {layout}"), 0
    products = [one for one in gemm_kernels() if one.dtype == row.dtype and one.by_tiles]
    for _ in range(2 * PROBLEMS):
        w = convolution(draw, row)
        product = draw.choice(products) if row.makes_product else None
        kind, splits = ("data_parallel", 1)
        if row.decomposes:
            kind, splits = draw.choice((("data_parallel", 1), ("split_k", 2), ("split_k", 3), ("stream_k", 2)))
            if -(-w.channels // w.groups // row.block_k) < splits:
                kind, splits = ("data_parallel", 1)
        schedule = GpuSchedule(row.name, kind, splits, draw.random() < 0.5, draw.randint(1, 8), product.name if product else None)
        theirs = answer(library_convolution_bytes, w, schedule, layout)
        assert convolution_bytes(row, w, schedule, layout, product) == theirs, (w.text, layout, schedule)
        answered += theirs is not None
        if (says := refusal(row, w, layout)) and says.code != "size":
            with pytest.raises(NativeError, match=re.escape(f"{row.name}: {says.sentence}")):
                library_convolution_bytes(w, schedule, layout)
    refuses_planes = row.algorithm == "pointwise" or row.variant in ("sequence", "toeplitz", "tiled") or row.row_taps
    assert answered > PROBLEMS / 3 or (layout == "nchw" and refuses_planes)


def told(row: GemmKernel | ConvKernel) -> tuple[str, str]:
    """What the library's description of a row calls its family and its form."""
    if isinstance(row, GemmKernel):
        return row.mainloop, row.variant
    return row.algorithm, row.variant if row.cluster == (1, 1) else "c{}x{}".format(*row.cluster)


@pytest.mark.parametrize("dtype", ["f32", "tf32", "f16", "f64", "s8"])
def test_a_product_about_a_limit_is_planned_as_a_launch_that_the_library_takes_or_refused(dtype: str) -> None:
    sides, ks, rows = MOST["GEMM_SIDE"], MOST["GEMM_K"], MOST["LAYOUT_CONVERSION_ROWS"]
    sizes = [(m, 64, 64) for m in (sides - 1, sides, sides + 1, rows, rows + 1)] + [(64, 64, k) for k in (ks - 8, ks, ks + 1)]
    for (m, n, k), layout in itertools.product([*sizes, (sides, sides, 8)], ("nn", "tt")):
        w = Gemm(m=m, n=n, k=k, trans_a=layout == "tt", trans_b=layout == "tt", dtype=dtype)
        try:
            plan = planner.plan(w, H200)
        except PlanError:
            assert max(m, n) > sides or k > ks or max(m, k) > rows or m == n, w.text
            continue
        assert library_product_bytes(w, plan.schedule, (gemm.pitches(w), (True, True))) == plan.workspace_bytes


def test_the_library_lists_the_rows_and_their_columns() -> None:
    ffi, lib = cuda.library()
    for rows, count, kind, tell in (
        (gemm_kernels(), lib.pysim_cuda_gemm_count(), "pysim_cuda_gemm_info *", lib.pysim_cuda_gemm_at),
        (conv_kernels(), lib.pysim_cuda_conv_count(), "pysim_cuda_conv_info *", lib.pysim_cuda_conv_at),
    ):
        assert count == len(rows)
        for row in rows:
            info = ffi.new(kind)
            cuda.check(tell(row.index, info))
            assert [ffi.string(text).decode() for text in (info.name, info.family, info.form)] == [row.name, *told(row)]
            assert {name: getattr(info, name) for name in (*row.tile, "capability")} == row.tile | {"capability": row.capability}


@pytest.mark.parametrize("problem", ["gemm:70x50x33", "gemm:40x30x20:tn", "conv:mb2ic16ih12oc32kh3ph1", "conv:mb1ic5ih9oc3kh3sh2ph1"])
def test_a_launch_is_the_same_by_addresses_and_by_pointers_and_computes_what_the_plain_loops_do(problem: str) -> None:
    """On the CPU, which runs the kernels that need no other instructions."""
    w = parse(problem)
    schedule: GpuSchedule = GpuSchedule("f32_direct", "data_parallel", 1, False, 1)
    if isinstance(w, Gemm):
        schedule = GpuSchedule("f32_simt_32x32x8_16x32_4x4_s2_c1x1", "data_parallel", 1, False, 1)
    draw, sizes = np.random.default_rng(5), shapes(w)
    first, second = (draw.integers(-3, 4, size).astype(np.float32) for size in sizes[:2])
    results = [np.full(sizes.out, np.nan, np.float32) for _ in range(3)]
    launch = cuda.Launch(w, schedule)
    space = np.empty(launch.workspace_bytes, np.uint8)
    at = [(first.ctypes.data, second.ctypes.data, one.ctypes.data) for one in results]
    launch.run(*at[0], space.ctypes.data, cuda.epilogue_struct(1.0, 0.0, 0, None), 0)
    launch.on(at[1], make=lambda size: (space, space.ctypes.data)).run()
    launch.on(at[2], make=lambda size: (space, space.ctypes.data)).reference()
    assert np.array_equal(results[0], results[2]) and np.array_equal(results[1], results[2])


def test_a_gpu_whose_driver_reports_no_clock_is_planned_for_with_that_of_the_nearest() -> None:
    plan = pysim.plan("gemm:512x512x512", machine="cuda")
    assert cuda.devices()[0].clock_khz == 0 and plan.on.frequency_hz.kind == "assumed" and plan.seconds > 0
    assert "frequency_hz" in plan.assumed


@pytest.mark.parametrize("text", ["conv:mb2ic3ih6oc9kh3ph1", "gemm:20x30x40:tt"])
@pytest.mark.parametrize("layout", CONV_LAYOUTS)
def test_what_is_prepared_for_a_gpu_gives_what_a_call_gives(monkeypatch: pytest.MonkeyPatch, text: str, layout: str) -> None:
    monkeypatch.setattr(pysim.api.host, "runnable_any", lambda *_: H200)
    w, rng = parse(text), np.random.default_rng(0)
    convolves = isinstance(w, Conv)
    operands = ((2, 3, 6, 6), (9, 3, 3, 3), (9,)) if convolves else ((40, 20), (30, 40), (30,))
    x, weights, bias = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in operands)
    if convolves and layout == "nhwc":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    plan = pysim.plan(text, "h200", layout=layout if convolves else "nchw", accuracy="ieee", algorithm="implicit" if convolves else None)
    for how in ({"plan": plan}, {"machine": "h200", "accuracy": "ieee", "layout": plan.layout}):
        prepared = pysim.prepare(text, weights.copy(), bias, "relu", **how)
        out = np.empty_like(prepared(x))
        assert prepared(x, out=out) is out and np.array_equal(out, prepared(x))
        np.testing.assert_allclose(out, plan.run(x, weights, bias, "relu"), rtol=0, atol=1e-5)
    with pytest.raises(OperandError, match=r"has shape \(.*\), but .* needs \("):
        pysim.prepare(text, weights[1:], plan=plan)


@pytest.mark.parametrize("dtype", ["f32", "tf32", "f16", "bf16"])
def test_the_reference_of_a_type_is_computed_by_a_kernel_that_takes_the_problem(dtype: str) -> None:
    """Not by the first of the type, which takes few channels a group alone."""
    w = parse(f"conv:mb1ic24ih5oc8kh3:{dtype}")
    sums, scale = GpuBench(w, 1 << 20).everywhere()
    assert sums.shape == scale.shape == (1, 8, 3, 3) and (np.abs(sums) <= 1.01 * scale).all() and sums.any()


def test_a_plan_for_channels_last_takes_an_input_in_either_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysim.api.host, "runnable_any", lambda machine: H200)
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((8, 1, 3, 3), np.float32)
    for layout in ("nhwc", "nchw"):
        plan = pysim.plan("conv:ic1ih4oc8kh3", "h200", layout=layout, algorithm="direct")
        assert np.array_equal(plan.run(x, w), np.full((1, 8, 2, 2), 9.0))


@pytest.mark.parametrize(
    ("text", "x", "w", "padding"), [("mb2ic3ih1iw1oc9kh3ph2", (2, 3, 1, 1), 3, 2), ("mb2ic1ih5iw6oc9kh3ph1", (2, 1, 5, 6), 1, 1)]
)
def test_an_image_in_either_layout_is_computed_in_the_layout_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, text: str, x: tuple[int, ...], w: int, padding: int
) -> None:
    """One pixel, or one channel, of arrays in host memory."""
    rng = np.random.default_rng(0)
    image, filters = rng.uniform(-1, 1, x).astype(np.float32), rng.uniform(-1, 1, (9, w, 3, 3)).astype(np.float32)
    want = pysim.api.conv2d(image, filters, padding=padding)
    monkeypatch.setattr(pysim.api.host, "runnable_any", lambda *_: load_any("h200"))
    for layout, algorithm in itertools.product(CONV_LAYOUTS, ("direct", "implicit")):
        plan = planner.plan(f"conv:{text}", "h200", layout=layout, algorithm=algorithm, accuracy="ieee")
        np.testing.assert_allclose(pysim.api.conv2d(image, filters, padding=padding, plan=plan), want, rtol=0, atol=1e-5)
