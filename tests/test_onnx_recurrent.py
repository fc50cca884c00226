# SPDX-License-Identifier: Apache-2.0
"""Attributes and optional inputs of ONNX's RNN, GRU and LSTM: equal to ONNX Runtime, or refused by name."""

import numpy as np
import pytest
from graphs import helper, numpy_helper
from onnx_models import assert_close, by_onnxruntime, given, model_of

from pysim.errors import ProblemError

onnx = pytest.importorskip("onnx")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
USUAL = {"LSTM": 3, "GRU": 2, "RNN": 1}


def layer(op, direction, opset, lengths=(), peepholes=False, **how):
    """A model of one node with random weights and states; x is (steps, batch, inputs)."""
    rng, gates, count = np.random.default_rng(7), GATES[op], 1 + (direction == "bidirectional")
    steps, batch, size, hidden = (int(n) for n in rng.integers(3, 7, 4))
    shapes = {"w": (gates * hidden, size), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,), "h": (batch, hidden)}
    shapes |= {"c": (batch, hidden), "p": (3 * hidden,)} if op == "LSTM" else {}
    kept = {name: rng.standard_normal((count, *shape)).astype(np.float32) for name, shape in shapes.items()}
    if lengths:
        kept["n"] = rng.permutation(np.resize(np.array(lengths, np.int32), batch))
    inputs = ["x", "w", "r", "b", "n" if lengths else "", "h"] + ["c"] * (op == "LSTM") + ["p"] * peepholes
    outputs = ["y", "y_h"] + ["y_c"] * (op == "LSTM")
    node = helper.make_node(op, inputs, outputs, name="cell", hidden_size=hidden, direction=direction, **how)
    ends = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (steps, batch, size))]
    outs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in kept.items() if name in inputs]
    graph = helper.make_graph([node], "one", ends, outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


CASES = [("RNN", {"activations": ["Relu"]}), ("RNN", {"clip": 0.3}), ("RNN", {"lengths": (1, 3, 2)}),
         ("GRU", {"lengths": (1, 3, 2)}), ("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
         ("GRU", {"clip": 0.3}), ("GRU", {"linear_before_reset": 1, "lengths": (2, 3)}),
         ("LSTM", {"lengths": (1, 3, 2)}), ("LSTM", {"input_forget": 1}), ("LSTM", {"peepholes": True}),
         ("LSTM", {"activations": ["Sigmoid", "Relu", "LeakyRelu"], "activation_alpha": [0.3]})]  # fmt: skip


@pytest.mark.parametrize(("op", "how"), CASES, ids=str)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_attributes_of_recurrent_layers_are_those_of_onnxruntime(op, how, direction, opset):
    count = 1 + (direction == "bidirectional")
    how = how | {name: how[name] * count for name in ("activations", "activation_alpha") if name in how}
    proto = layer(op, direction, opset, **how)
    content, x = proto.SerializeToString(), given(proto)
    assert_close(model_of(proto)(x), by_onnxruntime(content, x))


@pytest.mark.parametrize("op", GATES)
def test_unknown_activations_are_refused_by_the_name_of_the_node(op):
    with pytest.raises(ProblemError, match=rf'{op} "cell" cannot be run: its activation function "cube" is not known'):
        model_of(layer(op, "forward", 14, activations=["Cube"] * USUAL[op]))


def plain_lstm(proto, x, clip, of_cell):
    """The outputs of all steps, clipped at the input of activation functions; `of_cell` bounds that of h = o tanh(c)."""
    kept = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    y = np.zeros((len(x), *kept["h"].shape), np.float32)
    backward = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[
        helper.get_node_attr_value(proto.graph.node[0], "direction").decode()
    ]
    for at, reverse in enumerate(backward):
        h, c = kept["h"][at], kept["c"][at]
        for t in range(len(x))[:: -1 if reverse else 1]:
            sums = x[t] @ kept["w"][at].T + h @ kept["r"][at].T + sum(np.split(kept["b"][at], 2))
            i, o, f, g = np.split(np.clip(sums, -clip, clip), 4, axis=1)
            i, o, f = (1 / (1 + np.exp(-one)) for one in (i, o, f))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(np.clip(c, -of_cell, of_cell))
            y[t, at] = h
    return y


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_clip_of_an_lstm_bounds_the_input_of_every_activation(direction):
    """ONNX Runtime does not bound c before h = o tanh(c)."""
    proto = layer("LSTM", direction, 14, clip=0.3)
    x = given(proto)
    assert_close(model_of(proto)(x)[0], [plain_lstm(proto, x, 0.3, 0.3)])
    assert_close(by_onnxruntime(proto.SerializeToString(), x)[0], [plain_lstm(proto, x, 0.3, np.inf)])


@pytest.mark.parametrize(("op", "unknown"), [("LSTM", "linear_before_reset"), ("GRU", "input_forget"), ("RNN", "cell_clip")])
def test_an_attribute_that_onnx_does_not_define_is_refused(op, unknown):
    with pytest.raises(ProblemError, match=unknown):
        model_of(layer(op, "forward", 14, **{unknown: 1}))
