# SPDX-License-Identifier: Apache-2.0
"""Strassen's algorithm of 1x1 convolutions, which are products of pixels x channels and channels x filters; `sconv` computes the seven
products of planes, `direct_nchwc` those with results in channel blocks (`pysim.algorithms.seven_products`).

Worked number: conv:ic256ih14oc256kh1 in one block is seven convolutions of 128 channels of 98
pixels.
"""

import msgspec

from pysim.algorithms.cpu import direct_nchwc
from pysim.algorithms.seven_products import SevenProducts, Sizes
from pysim.problem.conv import Conv
from pysim.record.cost import Reason
from pysim.record.plan import Layout, blocks_of

NAME = "strassen_1x1"


def half(problem: Conv, pixels: int) -> Conv:
    channels, filters = problem.channels // 2, problem.filters // 2
    return msgspec.structs.replace(problem, batch=1, channels=channels, filters=filters, height=1, width=pixels)


def part(problem: Conv, pixels: int, images: int) -> Conv:
    """A row of pixels of some images."""
    return msgspec.structs.replace(problem, batch=images, height=1, width=pixels)


def sizes(problem: Conv) -> Sizes:
    return Sizes(problem.height * problem.width, problem.channels, problem.filters, problem.batch, True)


def unfit(problem: Conv, layout: Layout) -> Reason | None:
    if not problem.pointwise or problem.groups > 1 or problem.is_volume:
        return Reason("shape", "it computes 1x1 convolutions of images without groups, strides and padding")
    block, out = blocks_of(layout)
    if min(block, out) == 1:
        return Reason("shape", f"it takes input and output in channel blocks, not {layout}")
    if problem.channels % (2 * block) or problem.filters % (2 * out) or problem.height * problem.width < 2:
        sizes = f"{problem.channels} channels, {problem.filters} filters and {problem.height * problem.width} pixels"
        return Reason("shape", f"it halves {sizes}: multiples of {2 * block} and {2 * out}, and 2 pixels or more")
    return None


ALGORITHM = SevenProducts(NAME, Conv, lambda layout: direct_nchwc, unfit, half, part, sizes)
