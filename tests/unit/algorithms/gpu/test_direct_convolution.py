# SPDX-License-Identifier: Apache-2.0
"""Direct convolution on a GPU: a row of each type, which needs no workspace and is never predicted above what its pipe can do; rows in
which a thread computes a tile are for few channels that lie last."""

import pytest

from pysim import planner
from pysim.algorithms.gpu.direct import ThreadTile, thread_tile
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.problem.text import parse

PROBLEMS = ("conv:mb8ic64ih28oc64kh3ph1", "conv:mb1g4ic12ih9oc8kh5sh2ph2", "conv:mb32ic3ih224oc64kh7sh2ph3", "conv:ic8ih1oc8kh1")


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_a_type_has_a_direct_convolution_without_workspace_below_the_roof(text, layout, dtype):
    problem = parse(f"{text}:{dtype}" if dtype != "f32" else text)
    for name in ("h200", "v100", "rtx-3090"):
        on = load_any(name)
        assert isinstance(on, Gpu)
        plan = planner.plan(problem, on, layout=layout, algorithm="direct")
        assert plan.kernel in (f"{dtype}_direct", f"{dtype}_direct_tiled") and plan.workspace_bytes == 0
        assert plan.needs_finite == ("filters" if "tiled" in plan.kernel and problem.padded else "nothing")
        peak = 2 * on.fma_per_cycle[dtype].value * on.sms.value * on.clock_hz
        assert problem.flops / plan.cost.seconds <= peak


def test_its_double_takes_longer_where_the_pipe_is_slow():
    for name, least in (("rtx-3090", 5.0), ("h200", 1.0)):
        single, double = (planner.plan(PROBLEMS[0] + suffix, name, algorithm="direct").cost.seconds for suffix in ("", ":f64"))
        assert double >= least * single


@pytest.mark.parametrize("dtype", ["f32", "tf32", "f16", "bf16"])
def test_few_channels_that_lie_last_are_computed_by_tiles_of_a_thread(dtype):
    text = f"conv:mb8ic8id32ih56iw56oc8kd3kh1kw1pd1ph0pw0:{dtype}"
    assert planner.plan(text, "h200", layout="nhwc").kernel == f"{dtype}_direct_tiled"
    assert "direct" not in planner.plan(text, "h200", layout="nchw").kernel
    pixels = f"conv:mb8ic64ih28iw1936oc3kh1:{dtype}"
    best, direct = (planner.plan(pixels, "h200", layout="nchw", algorithm=name) for name in (None, "direct"))
    assert direct.kernel == f"{dtype}_direct_tiled"
    assert direct.seconds <= best.seconds * (1.1 if dtype in ("f16", "bf16") else 1.0)  # products of halves on tensor cores are near


def test_many_products_an_output_and_groups_have_no_tiles_of_a_thread():
    for text, layout in (
        ("conv:mb8ic128ih28oc64kh3ph1", "nhwc"),
        ("conv:mb8g2ic8ih28oc8kh3ph1", "nhwc"),
        ("conv:ic8ih28oc8kh3ph1", "nchw"),
    ):
        assert planner.plan(text, "h200", layout=layout, algorithm="direct").kernel == "f32_direct"


def test_a_thread_has_one_window_where_four_would_leave_multiprocessors_idle():
    few, many = parse("conv:mb1ic3ih64oc128kh4sh2ph1"), parse("conv:mb8ic8id32ih56iw56oc8kd3kh1kw1pd1ph0pw0")
    assert thread_tile(few, "nhwc", 132) == ThreadTile(1, 8, 1)
    assert thread_tile(many, "nhwc", 132) == ThreadTile(4, 8, 4)
    assert thread_tile(parse("conv:mb8ic64ih256oc3kh1"), "nchw", 132) == ThreadTile(4, 4, 8)
    assert thread_tile(parse("conv:mb8ic64ih255oc3kh1"), "nchw", 132) == ThreadTile(1, 4, 16)
