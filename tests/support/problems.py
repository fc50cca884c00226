# SPDX-License-Identifier: Apache-2.0
"""Problems by their text, as the type that a test is about, and those that plans for CPUs are tested with."""

from pysim.api import Plan
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.cost import Cost

LAYER = "conv:mb1ic64ih56oc64kh3ph1"
PROBLEMS = [
    LAYER,
    "conv:ic3ih224oc64kh7sh2ph3",
    "conv:ic256ih14oc1024kh1",
    "conv:ic512ih7oc512kh3ph1",
    "conv:g32mb2ic32ih28oc32kh3ph1",
    "conv:g2ic96ih27oc256kh5ph2",
    "conv:ic64ih28iw20oc40kh3kw5sh1sw2ph2pw4dh1dw1",
    "conv:ic24ih17oc17kh1:f64",
    "gemm:512x2048x1024",
    "gemm:100x30x7:tt",
    "gemm:1x1x1:f64",
]


def conv(text: str) -> Conv:
    found = parse(text)
    assert isinstance(found, Conv)
    return found


def full_cost(chosen: Plan) -> Cost:
    assert isinstance(chosen.cost, Cost)
    return chosen.cost


def nest_algorithm(text: str) -> str:
    """The algorithm that is the loop nest itself."""
    return "gemm" if text.startswith("gemm") else "sconv"
