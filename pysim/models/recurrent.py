# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN in NumPy (https://onnx.ai/onnx/operators/onnx__LSTM.html): one product of all inputs, and one product a step.

    LSTM   i, o, f = s(x W' + h R' + b) each, g = tanh(...);  c = f c + i g;  h = o tanh(c)
    GRU    z, r = s(...) each;  n = tanh(x W' + (r h) R' + b), or tanh(x W' + b + r (h R' + b_R)) with linear_before_reset;
           h = (1 - z) n + z h
    RNN    h = tanh(x W' + h R' + b)

What a step does is in `pysim.models.recurrent_cells`, also with other activation functions, clip, input_forget and peepholes. A sequence
that is shorter than X (sequence_lens) keeps its state behind its end, where its outputs are 0; a reverse direction begins at its end.

Worked number: an LSTM of 100 steps and 128 hidden values is one product of 100 x I x 512 and 100 of 1 x 128 x 512.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError
from pysim.models.recurrent_cells import GATES, Settings, cell, functions_of

Array = NDArray[Any]
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_COMMON = {"activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "layout"}
_ATTRIBUTES = {"LSTM": {"input_forget"}, "GRU": {"linear_before_reset"}, "RNN": set[str]()}
_DIRECTIONS = {b"forward": (False,), b"reverse": (True,), b"bidirectional": (False, True)}  # whether each is backward


def recurrent(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """What runs an onnx.NodeProto, called with its named inputs; ProblemError for attributes that ONNX does not define."""
    from onnx.helper import get_attribute_value

    op, about = node.op_type, {one.name: get_attribute_value(one) for one in node.attribute}
    if unknown := sorted(about.keys() - _ATTRIBUTES[op] - _COMMON):
        raise ProblemError(f"{op} has no attribute {', '.join(unknown)}")
    given = [place for place, name in zip(_INPUTS, node.input, strict=False) if name]
    made = [bool(name) for name in node.output]
    backward = _DIRECTIONS.get(about.get("direction", b"forward"))
    if backward is None:
        raise ProblemError(f"its direction is {about['direction']!r}; expected forward, reverse or bidirectional")
    named = [one.decode() for one in about.get("activations", ())]
    functions = functions_of(op, len(backward), named, about.get("activation_alpha", ()), about.get("activation_beta", ()))
    others = (about.get("clip"), bool(about.get("input_forget", 0)), bool(about.get("linear_before_reset", 0)))
    settings = [Settings(one, *others) for one in functions]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        with np.errstate(over="ignore", invalid="ignore"):  # of activations without bounds
            found = _run(op, dict(zip(given, inputs, strict=True)), backward, settings, bool(about.get("layout", 0)))
        return [y for y, wanted in zip(found, made, strict=False) if wanted]

    return run


def _run(op: str, given: dict[str, Array], backward: Sequence[bool], settings: Sequence[Settings], batch_first: bool) -> Sequence[Array]:
    kind = np.result_type(given["X"], np.float32)
    x = given["X"].swapaxes(0, 1) if batch_first else given["X"]
    (steps, batch, _), (count, _, hidden) = x.shape, given["R"].shape
    if count != len(backward):
        raise ProblemError(f"its weights are of {count} directions, its direction is of {len(backward)}")
    lengths = _lengths(given.get("sequence_lens"), steps, batch)
    states = [
        np.zeros((count, batch, hidden), kind) if name not in given else given[name].swapaxes(0, int(batch_first)).astype(kind)
        for name in ("initial_h", "initial_c")
    ]
    y, last = np.zeros((steps, count, batch, hidden), kind), np.empty((2, count, batch, hidden), kind)
    for at, is_backward in enumerate(backward):
        weights: dict[str, Array] = {name: given[name][at].astype(kind) for name in ("W", "R", "B", "P") if name in given}
        y[:, at], last[:, at] = _direction(op, x, weights, (states[0][at], states[1][at]), settings[at], lengths, is_backward)
    y, *ends = (one.astype(given["X"].dtype, copy=False) for one in (y, *last))
    return [y.transpose(2, 0, 1, 3), *(one.swapaxes(0, 1) for one in ends)] if batch_first else [y, *ends]


def _lengths(stated: Array | None, steps: int, batch: int) -> Array | None:
    """The length of each sequence of the batch; None if all are whole."""
    if stated is None:
        return None
    if stated.shape != (batch,):
        raise ProblemError(f"its sequence_lens is of shape {list(stated.shape)}; expected [{batch}], one length for each sequence")
    if stated.size and not 0 <= stated.min() <= stated.max() <= steps:
        raise ProblemError(f"its sequence_lens are {stated.tolist()}; a sequence has 0 to {steps} steps")
    return None if (stated == steps).all() else stated


def _direction(
    op: str, x: Array, weights: dict[str, Array], state: tuple[Array, Array], settings: Settings, lengths: Array | None, backward: bool
) -> tuple[Array, tuple[Array, Array]]:
    """The outputs of all steps (steps, batch, hidden) and the last state."""
    (steps, batch, _), (gates, hidden) = x.shape, weights["R"].shape
    of_input, of_state = weights.get("B", np.zeros(2 * GATES[op] * hidden, weights["R"].dtype)).reshape(2, -1)
    separate = op == "GRU" and settings.separate  # the state's own bias of n stays with its product
    kept = np.where(np.arange(gates) < 2 * hidden, 0, of_state) if separate else np.zeros_like(of_state)
    made = cell(op, settings, np.ascontiguousarray(weights["R"].T), kept, weights.get("P"))
    w = (weights["W"] * made.scale[:, None]).T
    sums = x.reshape(steps * batch, -1).astype(w.dtype, copy=False) @ w + (of_input + of_state - kept) * made.scale
    sums = sums.reshape(steps, batch, -1)
    y = np.zeros((steps, batch, hidden), w.dtype)
    if lengths is None:
        for t in range(steps)[::-1] if backward else range(steps):
            state = made.step(sums[t], *state)
            y[t] = state[0]
        return y, state
    rows = np.arange(batch)
    for t in range(int(lengths.max(initial=0))):
        runs = t < lengths
        place: Any = (np.where(runs, lengths - 1 - t, 0) if backward else t, rows)
        h, c = made.step(sums[place], *state)
        state = (np.where(runs[:, None], h, state[0]), np.where(runs[:, None], c, state[1]))
        y[place[0][runs] if backward else t, rows[runs]] = h[runs]
    return y, state
