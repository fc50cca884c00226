# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions give the same results by one convolution for all phases and by one for each, whichever plans say is faster."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pysim
from pysim.network import rewrites
from pysim.problem.transposed import apart, transposed

CASES = [  # shape, filters, groups, kernel, strides, pads at each end, output padding
    ((2, 4, 5, 6), 6, 2, (3, 3), (2, 2), (1, 1), (1, 1)),
    ((1, 3, 4, 5), 4, 1, (4, 4), (2, 2), (1, 1), (0, 0)),
    ((1, 2, 5, 4), 4, 1, (5, 4), (3, 1), (1, 1), (0, 0)),
    ((1, 2, 3, 4, 5), 3, 1, (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((2, 2, 3, 4, 3), 4, 2, (2, 4, 3), (2, 2, 1), (0, 1, 1), (0, 0, 0)),
    ((1, 2, 4, 3), 3, 1, (3, 3), (2, 2), (0, 0), (0, 0)),  # phases of unlike numbers of outputs stay together
]


def model(case, rng):
    """ConvTranspose with a bias, a norm and a ReLU."""
    shape, filters, groups, kernel, strides, pads, more = case
    arrays = {"w": rng.standard_normal((shape[1], filters // groups, *kernel)), "b": rng.standard_normal(filters)}
    arrays |= {name: rng.standard_normal(filters) ** 2 + 0.5 for name in ("scale", "shift", "mean", "variance")}
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    about = {"strides": strides, "pads": [*pads, *pads], "output_padding": more, "group": groups}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["a"], **about),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, of) for name, of in (("x", shape), ("y", None))]
    graph = helper.make_graph(nodes, "phases", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("case", CASES)
def test_phases_apart_and_together_give_one_result(case, monkeypatch, tmp_path):
    rng, whole = np.random.default_rng(1), rewrites.with_phases
    (path := tmp_path / "phases.onnx").write_bytes(model(case, rng).SerializeToString())
    x, found = rng.standard_normal(case[0]).astype(np.float32), {}
    for together in (True, False):
        seconds = None if together else lambda problem: float(problem.flops)
        monkeypatch.setattr(rewrites, "with_phases", lambda graph, _, copying, seconds=seconds: whole(graph, seconds, copying))
        network = pysim.load(path)
        found[together] = network(x)
        layers = [layer.node for layer in network.plan.layers]
        assert all("apart" not in node.attributes for node in layers)
        if not together and "Concat" in {node.op for node in layers}:
            assert "Affine" not in {node.op for node in layers}  # the convolutions absorb the norm
    assert found[True].shape == found[False].shape
    assert np.abs(found[True] - found[False]).max() < 1e-4 * np.abs(found[True]).max()


def test_convolutions_of_each_phase_multiply_no_zeros_and_make_no_output_that_is_cut_off():
    together = transposed(1, 64, (28, 28), 32, (3, 3), (2, 2), (1, 1), (1, 1), (56, 56))
    phases = apart(together, (3, 3), (1, 1), (1, 1))
    assert phases is not None
    assert sorted((one.kernel_h, one.kernel_w) for one in phases.problems) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert {(one.out_h, one.out_w) for one in phases.problems} == {(28, 28)}
    assert sum(one.flops for one in phases.problems) == 2 * 64 * 32 * 9 * 28 * 28
    assert apart(transposed(1, 4, (5,), 4, (3,), (2,), (1,), (0,), (11,)), (3,), (1,), (0,)) is None
