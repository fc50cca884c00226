# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN in NumPy (https://onnx.ai/onnx/operators/onnx__LSTM.html): products of all inputs, and products of each step.

    LSTM   i, o, f = s(x W' + h R' + b) each, g = tanh(...);  c = f c + i g;  h = o tanh(c)
    GRU    z, r = s(...) each;  n = tanh(x W' + (r h) R' + b), or tanh(x W' + b + r (h R' + b_R)) with linear_before_reset;
           h = (1 - z) n + z h
    RNN    h = tanh(x W' + h R' + b)

What a step does is in `recurrent_cells`, also with other activation functions, clip, input_forget and peepholes. A sequence that is shorter
than X (sequence_lens) keeps its state behind its end, where its outputs are 0; a reverse direction begins at its end.

Every gate is a product of its own: one of all gates is up to three times slower with OpenBLAS, which then packs the weights in each step.

Worked number: an LSTM of 100 steps and 128 hidden values is four products of 100 x I x 128 and 400 of 1 x 128 x 128.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError
from pysim.network.numpy_ops.recurrent_cells import GATES, Settings, State, Step, cell, functions_of

Array = NDArray[Any]
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
WEIGHTS = ("W", "R", "B", "P")
_COMMON = {"activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "layout"}
_ATTRIBUTES = {"LSTM": {"input_forget"}, "GRU": {"linear_before_reset"}, "RNN": set[str]()}
_DIRECTIONS = {b"forward": (False,), b"reverse": (True,), b"bidirectional": (False, True)}  # whether each is backward


class _Direction(NamedTuple):
    """The weights of a direction, prepared: w (gates, inputs, hidden) and bias (gates, hidden) of the sums, and a step."""

    w: Array
    bias: Array
    step: Step
    hidden: int
    is_backward: bool


def recurrent(node: Any, opset: int, held: Mapping[str, Array] | None = None) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """What runs an onnx.NodeProto, called with its named inputs but those that are `held`, constant weights by their names in `WEIGHTS`,
    which are prepared once. ProblemError for attributes that ONNX does not define."""
    from onnx.helper import get_attribute_value

    op, about, held = node.op_type, {one.name: get_attribute_value(one) for one in node.attribute}, held or {}
    if unknown := sorted(about.keys() - _ATTRIBUTES[op] - _COMMON):
        raise ProblemError(f"{op} has no attribute {', '.join(unknown)}")
    given = [place for place, name in zip(INPUTS, node.input, strict=False) if name and place not in held]
    made = [bool(name) for name in node.output]
    backward = _DIRECTIONS.get(about.get("direction", b"forward"))
    if backward is None:
        raise ProblemError(f"its direction is {about['direction']!r}; expected forward, reverse or bidirectional")
    named = [one.decode() for one in about.get("activations", ())]
    functions = functions_of(op, len(backward), named, about.get("activation_alpha", ()), about.get("activation_beta", ()))
    others = (about.get("clip"), bool(about.get("input_forget", 0)), bool(about.get("linear_before_reset", 0)))
    settings = [Settings(one, *others) for one in functions]
    kept = cache(lambda kind: _prepared(op, held, backward, settings, kind))

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        known = dict(zip(given, inputs, strict=True))
        kind = np.result_type(known["X"], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # of activations without bounds
            directions = kept(kind) if held else _prepared(op, known, backward, settings, kind)
            found = _run(known, directions, kind, bool(about.get("layout", 0)))
        return [y for y, wanted in zip(found, made, strict=False) if wanted]

    return run


def directions_of(op: str, about: Mapping[str, Any], weights: Mapping[str, Array]) -> tuple[bool, ...] | None:
    """Whether each direction of a layer is backward; None of a layer whose cells are not the usual ones, or whose weights do not fit."""
    backward = _DIRECTIONS.get(about.get("direction", b"forward"), ())
    named = [one.decode() for one in about.get("activations", ())]
    functions = functions_of(op, len(backward), named, about.get("activation_alpha", ()), about.get("activation_beta", ()))
    usual = all(Settings(one, about.get("clip"), bool(about.get("input_forget", 0))).is_usual(op) for one in functions)
    count, gates, hidden = weights["R"].shape
    return backward if usual and "P" not in weights and count == len(backward) and gates == GATES[op] * hidden else None


def _prepared(
    op: str, given: Mapping[str, Array], backward: Sequence[bool], settings: Sequence[Settings], kind: np.dtype[Any]
) -> list[_Direction]:
    count, gates, hidden = given["R"].shape
    if count != len(backward):
        raise ProblemError(f"its weights are of {count} directions, its direction is of {len(backward)}")
    found = []
    for at, (setting, is_backward) in enumerate(zip(settings, backward, strict=True)):
        of = {name: given[name][at].astype(kind) for name in WEIGHTS if name in given}
        w, r = (of[name].reshape(GATES[op], hidden, -1).transpose(0, 2, 1) for name in "WR")
        of_input, of_state = of.get("B", np.zeros(2 * gates, kind)).reshape(2, GATES[op], hidden)
        kept = np.zeros_like(of_state)
        if op == "GRU" and setting.separate:  # the state's own bias of n stays with its product
            kept[2] = of_state[2]
        made = cell(op, setting, r, kept, of.get("P"))
        w, bias = np.ascontiguousarray(w * made.scale[:, None, None]), (of_input + of_state - kept) * made.scale[:, None]
        found.append(_Direction(w, bias, made.step, hidden, is_backward))
    return found


def _run(given: Mapping[str, Array], directions: Sequence[_Direction], kind: np.dtype[Any], batch_first: bool) -> Sequence[Array]:
    x = (given["X"].swapaxes(0, 1) if batch_first else given["X"]).astype(kind, copy=False)
    steps, batch, _ = x.shape
    states = [given[name].swapaxes(0, int(batch_first)).astype(kind) if name in given else None for name in ("initial_h", "initial_c")]
    lengths = _lengths(given.get("sequence_lens"), steps, batch)
    y, last = np.zeros((steps, len(directions), batch, directions[0].hidden), kind), []
    for at, one in enumerate(directions):
        sums = x.reshape(steps * batch, -1) @ one.w
        sums += one.bias[:, None]
        first = [np.zeros((batch, one.hidden), kind) if state is None else state[at] for state in states]
        last.append(_stepped(one, sums.reshape(-1, steps, batch, one.hidden), (first[0], first[1]), lengths, y[:, at]))
    found = [y, *(np.stack(one) for one in zip(*last, strict=True))]
    found = [one.astype(given["X"].dtype, copy=False) for one in found]
    return [found[0].transpose(2, 0, 1, 3), *(one.swapaxes(0, 1) for one in found[1:])] if batch_first else found


def _lengths(stated: Array | None, steps: int, batch: int) -> Array | None:
    """The length of each sequence of the batch; None if all are whole."""
    if stated is None:
        return None
    if stated.shape != (batch,):
        raise ProblemError(f"its sequence_lens is of shape {list(stated.shape)}; expected [{batch}], one length for each sequence")
    if stated.size and not 0 <= stated.min() <= stated.max() <= steps:
        raise ProblemError(f"its sequence_lens are {stated.tolist()}; a sequence has 0 to {steps} steps")
    return None if (stated == steps).all() else stated


def _stepped(of: _Direction, sums: Array, state: State, lengths: Array | None, y: Array) -> State:
    """Fills y (steps, batch, hidden) from sums (gates, steps, batch, hidden), and returns the last state."""
    steps, batch = sums.shape[1:3]
    if lengths is None:
        for t in range(steps)[::-1] if of.is_backward else range(steps):
            state = of.step(sums[:, t], *state)
            y[t] = state[0]
        return state
    rows = np.arange(batch)
    for t in range(int(lengths.max(initial=0))):
        runs = t < lengths
        place: Any = (np.where(runs, lengths - 1 - t, 0) if of.is_backward else t, rows)
        h, c = of.step(sums[:, *place], *state)
        state = (np.where(runs[:, None], h, state[0]), np.where(runs[:, None], c, state[1]))
        y[place[0][runs] if of.is_backward else t, rows[runs]] = h[runs]
    return state
