# SPDX-License-Identifier: Apache-2.0
"""Direct convolution on a GPU: a row of each type, which needs no workspace and is never predicted above what its pipe can do."""

import pytest

from pysim import planner
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
        assert (plan.kernel, plan.workspace_bytes, plan.needs_finite) == (f"{dtype}_direct", 0, "nothing")
        peak = 2 * on.fma_per_cycle[dtype].value * on.sms.value * on.clock_hz
        assert problem.flops / plan.cost.seconds <= peak


def test_its_double_takes_longer_where_the_pipe_is_slow():
    for name, least in (("rtx-3090", 5.0), ("h200", 1.0)):
        single, double = (planner.plan(PROBLEMS[0] + suffix, name, algorithm="direct").cost.seconds for suffix in ("", ":f64"))
        assert double >= least * single
