# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose input is scaled, shifted and bounded as it is read: which rows take that, as planner and library say alike, and what
comes out, by the CUDA kernels as the CPU runs them."""

import numpy as np
import pytest

from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.algorithms.convolution import ByRow, legal_rows
from pysim.errors import NativeError, PlanError
from pysim.machine.load import load_any
from pysim.problem.text import parse
from pysim.record.plan import Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, conv_kernel, conv_kernels, gemm_kernels
from pysim.runtime import cuda

H200 = load_any("h200")
ROWS = [row for row in conv_kernels() if row.prologue]
OTHER = next(row for row in conv_kernels() if row.algorithm == "direct" and row.dtype == "f32")
PROBLEMS = ["mb2ic6ih4oc5kh1", "mb2ic8ih4oc5kh1", "mb2ic6ih5oc5kh1", "mb1ic8ih6oc5kh3ph1", "mb2ic6ih5oc5kh1sh2", "g2mb1ic8ih5oc6kh1"]


class Run:
    """A convolution of small whole numbers with a prologue by a row."""

    def __init__(self, text, row, layout="nchw", by_image=False, relu=True):
        w = self.w = parse(f"conv:{text}" + ("" if row.dtype == "f32" else f":{row.dtype}"))
        draw = np.random.default_rng(1)
        self.x = draw.integers(-4, 5, (w.batch, w.channels, w.height, w.width)).astype(np.float32)
        self.filters = draw.integers(-2, 3, (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)).astype(np.float32)
        self.scale = draw.integers(-2, 3, (w.batch if by_image else 1, w.channels, 1, 1)).astype(np.float32)
        self.shift = draw.integers(-2, 3, w.channels).astype(np.float32)
        self.y = np.full((w.batch, w.filters, w.out_h, w.out_w), np.nan, np.float32)
        self.told = cuda.Prologue(self.scale.ctypes.data, self.shift.ctypes.data, by_image, relu)
        self.relu, self.launch = relu, cuda.Launch(w, GpuSchedule(row.name, "data_parallel", 1, False, 1), layout=layout)

    def bound(self):
        pointers = tuple(one.ctypes.data for one in (self.x, self.filters, self.y))
        return self.launch.on(pointers, epilogue=cuda.epilogue_struct(1.0, 0.0, 0, None, prologue=self.told), make=self.make)

    def make(self, size):
        memory = np.empty(size + 256, np.uint8)
        return memory, memory.ctypes.data

    def refused(self):
        """The library's sentence, or None where it goes on."""
        try:
            self.bound().run()
        except NativeError as error:
            return str(error)
        return None


@pytest.mark.parametrize("row", [*ROWS, OTHER], ids=lambda row: row.name)
def test_rows_take_a_prologue_of_the_problems_that_the_library_does(row, emulated):
    taken = 0
    for text in PROBLEMS:
        for layout in CONV_LAYOUTS:
            one = Run(text, row, layout)
            refused = one.refused() or ""
            if not row.prologue:
                assert refused.endswith("it takes no prologue")
            elif reason := algorithm_named(row.algorithm, one.w, H200).by(row, one.w, layout).prologue_refusal():
                assert refused.endswith(reason.sentence)
            else:
                assert "prologue" not in refused
                taken += 1
    assert taken or not row.prologue


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("by_image", [False, True])
@pytest.mark.parametrize("text", ["mb3ic20ih4oc5kh1", "mb3ic20ih5oc5kh1"])
def test_what_comes_out_is_the_convolution_of_what_the_prologue_makes(text, by_image, relu, emulated):
    row = conv_kernel("f32_implicit_32x32x16_16x32_4x4_s2_offsets")
    one = Run(text, row, by_image=by_image, relu=relu)
    one.x[1, 2, 0, 1], one.x[2, 0, 3, 3] = np.nan, np.inf
    one.scale[:, :3] = 1  # infinity times zero is none
    assert one.refused() is None
    with_prologue = one.x * one.scale + one.shift[:, None, None]
    with_prologue = np.where(with_prologue < 0, np.float32(0), with_prologue) if relu else with_prologue
    with np.errstate(invalid="ignore"):
        right = (with_prologue[:, None] * one.filters[None]).sum(2, dtype=np.float64)
    np.testing.assert_array_equal(one.y, right.astype(np.float32))
    assert np.isnan(right).any() and np.isfinite(right[0]).all()


def test_arguments_of_a_prologue_are_looked_at(emulated):
    one = Run(PROBLEMS[0], ROWS[0])
    one.told = one.told._replace(by_image=2)
    assert "by_image and relu are 2 and 1; expected 0 or 1" in one.refused()
    one.told = one.told._replace(by_image=0, shift=one.y.ctypes.data)
    assert "the prologue's shift overlaps output, which is written" in one.refused()
    gemm = next(kernel.name for kernel in gemm_kernels() if kernel.dtype == "f16" and kernel.mainloop == "simt")
    others = {
        "a prologue is of f32, not f16": ("conv:mb1ic8ih4oc8kh1:f16", GpuSchedule("f16_im2col", "data_parallel", 1, False, 1, gemm)),
        "a product takes no prologue": ("gemm:4x4x4", GpuSchedule("f32_simt_32x32x32_16x32_4x4_s2_c1x1", "data_parallel", 1, False, 1)),
    }
    for says, (text, schedule) in others.items():
        one.launch = cuda.Launch(parse(text), schedule)
        assert says in one.refused()


@pytest.mark.parametrize("text", ["mb32ic256ih14oc128kh1", "mb32ic224ih56oc128kh1", "mb1ic64ih56oc128kh1", "mb32ic992ih7oc128kh1"])
def test_a_plan_with_a_prologue_is_of_a_row_that_takes_it_and_takes_no_less(text):
    plain, with_prologue = (planner.plan(f"conv:{text}", "h200", accuracy="strict", prologue=prologue) for prologue in (False, True))
    assert conv_kernel(with_prologue.kernel).prologue
    assert plain.seconds <= with_prologue.seconds < 2 * plain.seconds
    same = planner.plan(f"conv:{text}", "h200", name=with_prologue.name)
    assert same.seconds <= with_prologue.seconds


def test_rows_that_take_none_are_rejected_with_that_reason():
    request = Request(parse("conv:mb32ic64ih56oc64kh3ph1"), load_any("h200"), prologue=True)
    for name in ("direct", "winograd", "im2win"):
        rows, rejected = legal_rows(request, name, ByRow, lambda row: ByRow(row, request.conv, "nchw"))
        assert not rows and {one.code for one in rejected} <= {"shape", "type", "ablation"} and "shape" in {one.code for one in rejected}


@pytest.mark.parametrize(
    ("problem", "on", "says"),
    [
        ("gemm:8x8x8", "h200", "a prologue exists for convolutions on GPUs only"),
        ("conv:mb1ic8ih8oc8kh1", "zen4", "a prologue exists for convolutions on GPUs only"),
        ("conv:mb1ic8ih8oc8kh1:f64", "h200", "it takes no prologue"),
    ],
)
def test_where_nothing_takes_a_prologue_the_planner_says_so(problem, on, says):
    with pytest.raises(PlanError, match=says):
        planner.plan(problem, on, prologue=True)
