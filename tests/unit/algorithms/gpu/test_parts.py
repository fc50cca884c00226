# SPDX-License-Identifier: Apache-2.0
"""Convolutions of more elements than the CUDA kernels take are planned in parts, whose operands lie one after another."""

import random

import msgspec
import pytest

from pysim import planner
from pysim.algorithms.convolution import parts_of, too_large
from pysim.errors import PlanError
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.registry.cuda import cuda_limits

H200 = load_any("h200")
MOST = cuda_limits()["CONV_TENSOR"]


def conv(text: str) -> Conv:
    found = parse(text)
    assert isinstance(found, Conv)
    return found


@pytest.mark.parametrize(
    ("text", "layout", "part", "number"),
    [
        ("conv:mb3ic896id79oc16kd1", "nchw", "conv:mb2ic896id79oc16kd1", 2),  # images
        ("conv:mb3ic896id79oc16kd1", "nhwc", "conv:mb2ic896id79oc16kd1", 2),
        ("conv:g215mb2ic215id70oc5805kd1", "nchw", "conv:g108mb1ic108id70oc2916kd1", 4),  # of an image groups
        ("conv:mb2ic16id64oc4736kd1", "nchw", "conv:mb1ic16id64oc2368kd1", 4),  # of a group filters
        ("conv:mb32ic64ih56oc64kh3ph1", "nchw", "conv:mb32ic64ih56oc64kh3ph1", 1),
    ],
)
def test_parts_are_of_images_then_groups_then_filters(text, layout, part, number):
    assert parts_of(conv(text), layout) == (conv(part), number)


def test_parts_are_as_few_as_fit_and_cover_the_convolution():
    draw, cut = random.Random(1), 0
    for _ in range(200):
        groups = draw.choice((1, 1, 4, 60))
        w = Conv(
            batch=draw.randint(1, 9), groups=groups, channels=groups * draw.randint(1, 12), filters=groups * draw.randint(1, 400),
            height=draw.randint(1, 3000), width=draw.randint(1, 3000), kernel_h=1, kernel_w=1,
        )  # fmt: skip
        part, number = parts_of(w, "nchw")
        cut += number > 1
        one = too_large(msgspec.structs.replace(w, batch=1, groups=1, channels=w.group_channels, filters=1))
        assert bool(too_large(part)) == bool(one)
        counts = [-(-whole // of) for whole, of in ((w.batch, part.batch), (groups, part.groups), (w.group_filters, part.group_filters))]
        assert number == counts[0] * counts[1] * counts[2]
        assert part.batch == 1 or (part.groups == w.groups and part.filters == w.filters)
    assert cut > 20


def test_large_convolutions_are_planned_and_take_as_long_as_their_parts():
    whole, part = (planner.plan(text, H200, layout="nhwc") for text in ("conv:mb4ic896id79oc16kd1", "conv:mb2ic896id79oc16kd1"))
    assert whole.kernel == part.kernel and whole.seconds == pytest.approx(2 * part.seconds, rel=1e-6)
    assert whole.workspace_bytes == part.workspace_bytes


def test_an_image_with_channels_last_is_refused_with_the_size_of_a_part():
    with pytest.raises(PlanError, match=rf"the output would have 1,241,513,984 elements in one part; the CUDA kernels take up to {MOST:,}"):
        planner.plan("conv:mb1ic16id64oc4736kd1", H200, layout="nhwc")
