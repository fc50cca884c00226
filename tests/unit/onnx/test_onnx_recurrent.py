# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN with every attribute that ONNX defines: equal to ONNX Runtime, which has no layout and no doubles, and to ONNX's text
where ONNX Runtime departs from it."""

import numpy as np
import pytest
from graphs import helper, numpy_helper
from onnx_models import model_of

from pysim.errors import ProblemError
from pysim.network.numpy_ops import recurrent

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, SIZE, HIDDEN = 6, 3, 4, 5


def layer(op, how, lengths=None, states=False, peepholes=False, outputs=2, dtype=np.float32, opset=17):
    """A model of one layer, and what it is given."""
    rng, gates = np.random.default_rng(3), GATES[op]
    count = 2 if how.get("direction") == "bidirectional" else 1
    first = how.get("layout", 0)
    state = (BATCH, count, HIDDEN) if first else (count, BATCH, HIDDEN)
    given = {"x": rng.standard_normal((BATCH, STEPS, SIZE) if first else (STEPS, BATCH, SIZE))}
    weights = {"w": (count, gates * HIDDEN, SIZE), "r": (count, gates * HIDDEN, HIDDEN), "b": (count, 2 * gates * HIDDEN)}
    held = {name: rng.standard_normal(shape) / 2 for name, shape in weights.items()}
    if states:
        given |= {name: rng.standard_normal(state) for name in ("h", "c")[: 1 + (op == "LSTM")]}
    if peepholes:
        held["p"] = rng.standard_normal((count, 3 * HIDDEN))
    given = {name: array.astype(dtype) for name, array in given.items()}
    held = {name: array.astype(dtype) for name, array in held.items()}
    if lengths is not None:
        given["lengths"] = np.array(lengths, np.int32)
    known = given | held
    inputs = [name if name in known else "" for name in ("x", "w", "r", "b", "lengths", "h", *(("c", "p") if op == "LSTM" else ()))]
    node = helper.make_node(op, inputs, ["y", "last", "cell"][:outputs], name="it", hidden_size=HIDDEN, **how)
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(of.dtype), of.shape) for name, of in given.items()]
    ends = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    graph = helper.make_graph([node], "one", infos, ends, [numpy_helper.from_array(of, name) for name, of in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), known


def results(proto, known):
    model = model_of(onnx.ModelProto.FromString(proto.SerializeToString()))
    found = model(**{name: known[name] for name in model.inputs})
    return found if isinstance(found, tuple) else (found,)


def by_onnxruntime(proto, known):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {one.name: known[one.name] for one in session.get_inputs()})


def assert_like_onnxruntime(proto, known):
    for y, right in zip(results(proto, known), by_onnxruntime(proto, known), strict=True):
        assert y.shape == right.shape
        assert np.abs(y - right).max() <= 2e-5 * max(np.abs(right).max(), 0.1)


def plain_lstm(how, known, clips_cell):
    """Y of an LSTM, clipped at the inputs of the gates, and also at that of h = o tanh(c) if `clips_cell`."""
    clip, backward = how["clip"], {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[how["direction"]]
    y = np.zeros((STEPS, len(backward), BATCH, HIDDEN), np.float32)
    for at, reverse in enumerate(backward):
        w, r, b = (known[name][at] for name in "wrb")
        p_i, p_o, p_f = known["p"][at].reshape(3, HIDDEN) if "p" in known else np.zeros((3, HIDDEN))
        for row, length in enumerate(known["lengths"]):
            h, c = known["h"][at, row], known["c"][at, row]
            for t in range(length)[:: -1 if reverse else 1]:
                i, o, f, g = np.split(w @ known["x"][t, row] + r @ h + sum(np.split(b, 2)), 4)
                i = 1 / (1 + np.exp(-np.clip(i + p_i * c, -clip, clip)))
                f = 1 - i if how.get("input_forget") else 1 / (1 + np.exp(-np.clip(f + p_f * c, -clip, clip)))
                c = f * c + i * np.tanh(np.clip(g, -clip, clip))
                o = 1 / (1 + np.exp(-np.clip(o + p_o * c, -clip, clip)))
                y[t, at, row] = h = o * np.tanh(np.clip(c, -clip, clip) if clips_cell else c)
    return y


def assert_clipped(proto, known):
    """As ONNX's text has it: clip is applied to the input of activations. ONNX Runtime leaves c before h = o tanh(c) as it is."""
    how = {one.name: helper.get_attribute_value(one) for one in proto.graph.node[0].attribute}
    how["direction"] = how["direction"].decode()
    right, theirs = (plain_lstm(how, known, clips_cell) for clips_cell in (True, False))
    assert np.abs(results(proto, known)[0] - right).max() < 1e-5
    assert np.abs(by_onnxruntime(proto, known)[0] - theirs).max() < 1e-5 < np.abs(right - theirs).max()


DIRECTIONS = ("forward", "reverse", "bidirectional")


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [None, (6, 1, 4), (2, 2, 3)], ids=str)
@pytest.mark.parametrize(("states", "opset"), [(True, 7), (True, 14), (True, 22), (False, 17)])
def test_sequences_of_any_lengths_end_where_they_end(op, direction, lengths, states, opset):
    assert_like_onnxruntime(*layer(op, {"direction": direction}, lengths, states, outputs=2 + (op == "LSTM"), opset=opset))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("how", [{"clip": 0.3}, {"clip": 0.3, "input_forget": 1}, {"input_forget": 1}, {"linear_before_reset": 1},
                                 {"linear_before_reset": 1, "clip": 0.3}], ids=str)  # fmt: skip
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_clip_coupled_gates_and_the_reset_before_or_behind_the_product(op, how, direction):
    how = {name: value for name, value in how.items() if (name != "input_forget" or op == "LSTM") and (op == "GRU" or name[0] != "l")}
    assert_right = assert_clipped if "clip" in how and op == "LSTM" else assert_like_onnxruntime
    assert_right(*layer(op, how | {"direction": direction}, (6, 2, 5), states=True))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("how", [{}, {"clip": 0.4}, {"input_forget": 1}], ids=str)
def test_peepholes(direction, how):
    assert_right = assert_clipped if "clip" in how else assert_like_onnxruntime
    assert_right(*layer("LSTM", how | {"direction": direction}, (6, 3, 5), states=True, peepholes=True, outputs=3))


NAMES = {"Relu": (), "Tanh": (), "Sigmoid": (), "Softsign": (), "Affine": (0.2, 0.1), "LeakyRelu": (0.2,), "ThresholdedRelu": (0.1,),
         "ScaledTanh": (0.8, 0.6), "HardSigmoid": (0.3, 0.4), "Elu": (0.5,)}  # fmt: skip


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_activations_with_their_numbers_in_the_order_of_those_that_take_one(op, name, direction):
    count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op] * (2 if direction == "bidirectional" else 1)
    names = ([name, "Tanh", "LeakyRelu", name, "Sigmoid", name] if count > 2 else [name, "LeakyRelu"])[:count]
    alphas = [NAMES[one][0] for one in names if NAMES[one]]
    betas = [NAMES[one][1] for one in names if len(NAMES[one]) > 1]
    how = {"direction": direction, "activations": names} | ({"activation_alpha": alphas} if alphas else {})
    assert_like_onnxruntime(*layer(op, how | ({"activation_beta": betas} if betas else {}), (6, 2, 5)))


def test_an_rnn_with_relu_in_both_directions():
    assert_like_onnxruntime(*layer("RNN", {"direction": "bidirectional", "activations": ["Relu", "Relu"]}))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_batch_in_front_is_the_same_layer(op, direction):
    """ONNX Runtime refuses layout 1."""
    lengths = (6, 2, 5)
    front, known = layer(op, {"layout": 1, "direction": direction}, lengths, states=True)
    behind, _ = layer(op, {"direction": direction}, lengths, states=True)
    moved = {name: np.ascontiguousarray(of.swapaxes(0, 1)) if name in "xhc" else of for name, of in known.items()}
    (y, last), (right, end) = results(front, known), results(behind, moved)
    assert np.array_equal(y, right.transpose(2, 0, 1, 3)) and np.array_equal(last, end.swapaxes(0, 1))


@pytest.mark.parametrize("op", GATES)
def test_constant_weights_are_prepared_once(op, monkeypatch):
    calls, prepared = [], recurrent._prepared
    monkeypatch.setattr(recurrent, "_prepared", lambda *given: (calls.append(1), prepared(*given))[1])
    proto, known = layer(op, {"direction": "bidirectional"}, (6, 2, 5), states=True)
    model = model_of(proto)
    found = [model(**{name: known[name] for name in model.inputs}) for _ in range(3)]
    assert len(calls) == 1
    assert all(np.array_equal(y, first) for one in found for y, first in zip(one, found[0], strict=True))


def test_a_sequence_of_no_steps_keeps_its_first_state():
    proto, known = layer("GRU", {}, (6, 0, 5), states=True)
    y, last = results(proto, known)
    assert not y[:, :, 1].any() and np.array_equal(last[0, 1], known["h"][0, 1])


def test_doubles_are_computed_as_such():
    """ONNX Runtime refuses them."""
    how = {"clip": 0.5, "activations": ["Sigmoid", "Tanh", "Relu"]}
    wide, narrow = (results(*layer("LSTM", how, (6, 2, 5), states=True, dtype=dtype)) for dtype in (np.float64, np.float32))
    assert wide[0].dtype == np.float64
    assert 0 < np.abs(wide[0] - narrow[0]).max() < 1e-5


@pytest.mark.parametrize(("how", "lengths", "why"), [
    ({"activations": ["Tanh"]}, None, "1 activation functions; expected 3"),
    ({"activations": ["Sigmoid", "Tanh", "Cosine"]}, None, '"cosine" is not known'),
    ({"activations": ["Affine", "Tanh", "Tanh"]}, None, "affine needs an activation_alpha"),
    ({}, (6, 7, 1), "a sequence has 0 to 6 steps"),
])  # fmt: skip
def test_what_onnx_does_not_define_is_refused_by_name(how, lengths, why):
    with pytest.raises(ProblemError, match=f'LSTM "it" cannot be run: .*{why}'):
        results(*layer("LSTM", how, lengths))


@pytest.mark.parametrize(("op", "unknown"), [("LSTM", "linear_before_reset"), ("GRU", "input_forget"), ("RNN", "cell_clip")])
def test_an_attribute_that_onnx_does_not_define_is_refused(op, unknown):
    with pytest.raises(ProblemError, match=f'{op} "it".*{unknown}'):
        model_of(layer(op, {unknown: 1})[0])
