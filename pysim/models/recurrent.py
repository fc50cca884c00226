# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN in NumPy (https://onnx.ai/onnx/operators/onnx__LSTM.html): one product of all inputs, and one product a step.

    LSTM   i, o, f = s(x W' + h R' + b) each, g = tanh(...);  c = f c + i g;  h = o tanh(c)
    GRU    z, r = s(...) each;  n = tanh(x W' + (r h) R' + b), or tanh(x W' + b + r (h R' + b_R)) with linear_before_reset;
           h = (1 - z) n + z h
    RNN    h = tanh(x W' + h R' + b)

s(x) = 1 / (1 + e^-x) = (1 + tanh(x / 2)) / 2: halved weights, an exact operation, leave one tanh for all gates.

Worked number: an LSTM of 100 steps and 128 hidden values is one product of 100 x I x 512 and 100 of 1 x 128 x 512.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_DEFAULTS = {"direction": b"forward", "layout": 0, "linear_before_reset": 0, "hidden_size": None}  # the attributes that are supported
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LOGISTIC = {"LSTM": 3, "GRU": 2, "RNN": 0}  # how many gates, the first ones, are logistic


def recurrent(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]] | None:
    """What runs an onnx.NodeProto, called with its named inputs; None for peepholes, other activations and sequences of several lengths."""
    from onnx.helper import get_attribute_value

    about = _DEFAULTS | {one.name: get_attribute_value(one) for one in node.attribute}
    given = [place for place, name in zip(_INPUTS, node.input, strict=False) if name]
    if about.keys() != _DEFAULTS.keys() or about["layout"] or {"sequence_lens", "P"} & {*given}:
        return None
    made = [bool(name) for name in node.output]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        found = _run(node.op_type, dict(zip(given, inputs, strict=True)), about)
        return [y for y, wanted in zip(found, made, strict=False) if wanted]

    return run


def _run(op: str, given: dict[str, Array], about: dict[str, Any]) -> Sequence[Array]:
    x, kind = given["X"], np.result_type(given["X"], np.float32)
    (steps, batch, _), (count, _, hidden) = x.shape, given["R"].shape
    y = np.empty((steps, count, batch, hidden), kind)
    last = np.empty((2, count, batch, hidden), kind)
    for at in range(count):
        w, r, b = (given[name][at].astype(kind) if name in given else np.zeros(2 * _GATES[op] * hidden, kind) for name in "WRB")
        halved = np.ones(_GATES[op] * hidden, kind)
        halved[: _LOGISTIC[op] * hidden] = 0.5
        of_input, of_state = b.reshape(2, -1) * halved
        separate = op == "GRU" and about["linear_before_reset"]  # the state's own bias of n stays with its product
        kept = np.where(np.arange(len(of_state)) < 2 * hidden, 0, of_state) if separate else np.zeros_like(of_state)
        sums = x.reshape(steps * batch, -1).astype(kind) @ (w * halved[:, None]).T + (of_input + of_state - kept)
        sums = sums.reshape(steps, batch, -1)
        order = range(steps)[::-1] if about["direction"] == b"reverse" or at else range(steps)
        h, c = (given[name][at].astype(kind) if name in given else np.zeros((batch, hidden), kind) for name in ("initial_h", "initial_c"))
        weights = np.ascontiguousarray((r * halved[:, None]).T)
        step = _lstm if op == "LSTM" else _gru(weights, kept, bool(separate)) if op == "GRU" else _rnn
        for t in order:
            h, c = step(sums[t], h, c, weights)
            y[t, at] = h
        last[:, at] = h, c
    return [one.astype(x.dtype, copy=False) for one in (y, *last)]


State = tuple[Array, Array]


def _lstm(sums: Array, h: Array, c: Array, weights: Array) -> State:
    gates = h @ weights
    gates += sums
    np.tanh(gates, out=gates)
    hidden = h.shape[1]
    logistic, g = gates[:, : 3 * hidden], gates[:, 3 * hidden :]
    logistic += 1
    logistic *= 0.5
    i, o, f = (logistic[:, at * hidden : (at + 1) * hidden] for at in range(3))
    c = f * c
    g *= i
    c += g
    return o * np.tanh(c), c


def _gru(weights: Array, bias: Array, separate: bool) -> Callable[[Array, Array, Array, Array], State]:
    hidden = len(weights)
    gated, new = (np.ascontiguousarray(part) for part in (weights[:, : 2 * hidden], weights[:, 2 * hidden :]))

    def step(sums: Array, h: Array, c: Array, _: Array) -> State:
        gates = h @ gated
        gates += sums[:, : 2 * hidden]
        np.tanh(gates, out=gates)
        gates += 1
        gates *= 0.5
        z, r = gates[:, :hidden], gates[:, hidden:]
        n = r * (h @ new + bias[2 * hidden :]) if separate else (r * h) @ new
        n += sums[:, 2 * hidden :]
        np.tanh(n, out=n)
        return n + z * (h - n), c

    return step


def _rnn(sums: Array, h: Array, c: Array, weights: Array) -> State:
    h = h @ weights
    h += sums
    return np.tanh(h, out=h), c
