# SPDX-License-Identifier: Apache-2.0
"""Which sums of two quantised values become part of a convolution, and of which."""

import numpy as np
import pytest

from pysim.network.graph import Graph, Node, Tensor
from pysim.network.integers.residuals import with_residuals
from pysim.runtime.integer_steps import Quantity, Sums

BYTES = np.dtype(np.uint8)
FIRST, SECOND, Y = Quantity(0.1, 3, BYTES), Quantity(0.2, 5, BYTES), Quantity(0.3, 7, BYTES)
ONE = np.ones(1, np.float32)


def conv(x, y, **attributes):
    return Node("IntegerConv", y, (x,), (y,), {"sums": Sums(ONE, 0 * ONE, ONE, FIRST), **attributes})


def pair(a, b, y="y", multiply=False):
    return Node("IntegerPair", y, (a, b), (y,), {"of": (FIRST, SECOND, Y), "multiply": multiply, "low": 7, "high": 255})


def rewritten(*nodes, outputs=("y",), shapes=None, adds=True):
    names = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    tensors = {name: Tensor((shapes or {}).get(name, (1, 4, 3, 3)), BYTES) for name in names}
    return with_residuals(Graph(nodes, ("x",), tuple(outputs), tensors), lambda *_: adds)


def test_a_sum_becomes_part_of_the_later_of_two_convolutions_and_stands_where_it_did():
    nodes = rewritten(conv("x", "a"), conv("x", "b"), pair("a", "b")).nodes
    assert [node.inputs for node in nodes] == [("x",), ("x", "a")]
    assert nodes[1].outputs == ("y",)
    assert nodes[1].absorbed == ("y",)
    assert nodes[1].attributes["pair"] == ((SECOND, FIRST, Y), 7, 255)


def test_a_residual_that_is_computed_after_the_convolution_is_read_when_it_is_there():
    nodes = rewritten(conv("x", "a"), Node("Table", "t", ("x",), ("r",), {}), pair("a", "r")).nodes
    assert [(node.op, node.inputs) for node in nodes] == [("Table", ("x",)), ("IntegerConv", ("x", "r"))]
    assert nodes[1].attributes["pair"] == ((FIRST, SECOND, Y), 7, 255)


@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        ((conv("x", "a"), pair("a", "r", multiply=True)), {}),
        ((conv("x", "a"), Node("Table", "t", ("a",), ("z",), {}), pair("a", "r")), {"outputs": ("y", "z")}),
        ((conv("x", "a"), pair("a", "r")), {"outputs": ("y", "a")}),
        ((conv("x", "a"), pair("a", "a")), {}),
        ((conv("x", "a"), pair("a", "r")), {"shapes": {"r": (1, 4, 1, 1)}}),
        ((conv("x", "a", sums=Sums(ONE, 0 * ONE, ONE, None)), pair("a", "r")), {}),
        ((conv("x", "a", sums=Sums(ONE, ONE, ONE, FIRST)), pair("a", "r")), {}),
        ((conv("x", "a"), pair("a", "r")), {"adds": False}),
    ],
    ids=["a product", "read twice", "an output", "with itself", "broadcast", "of numbers", "after a shift", "by another plan"],
)
def test_other_pairs_stay(nodes, more):
    assert [node.op for node in rewritten(*nodes, **more).nodes] == [node.op for node in nodes]
