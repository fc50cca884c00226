# SPDX-License-Identifier: Apache-2.0
"""Cells of LSTM, GRU and RNN in NumPy: one step from the sums of the inputs and the earlier state to the next state.

A `Cell` is made once for each direction of a layer. Its step takes sums (gates, batch, hidden), x W' + b of each gate, and the state
(h, c), and returns the next one. The usual activations have cells of their own: s(x) = 1 / (1 + e^-x) = (1 + tanh(x / 2)) / 2, and halved
weights, an exact operation, leave one tanh for all gates.

    clip           bounds what an activation function is given: every gate, and c before h = o act(c)
    input_forget   f = 1 - i
    P              peepholes: i and f are also given c of the step before, o that of its own step

Worked number: of RNN, h = 0.5, sum 0, R = 1 and clip 0.25: h = tanh(0.25) = 0.2449.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError

Array = NDArray[Any]
State = tuple[Array, Array]
Step = Callable[[Array, Array, Array], State]
Function = Callable[[Array], Array]
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LOGISTIC = {"LSTM": 3, "GRU": 2, "RNN": 0}  # how many gates, the first ones, are logistic


class Cell(NamedTuple):
    """`scale` is what the weights and biases of each gate's sums are multiplied by; `step` expects sums made with them."""

    scale: Array
    step: Step


class Settings(NamedTuple):
    """What a direction of a layer is besides its weights. `functions` are names with alpha and beta."""

    functions: tuple[tuple[str, float, float], ...]
    clip: float | None = None
    input_forget: bool = False
    separate: bool = False  # linear_before_reset

    def is_usual(self, op: str) -> bool:
        return self.clip is None and not self.input_forget and tuple(one[0] for one in self.functions) == USUAL[op]


def cell(op: str, settings: Settings, weights: Array, bias: Array, peepholes: Array | None) -> Cell:
    """`weights` R' (gates, hidden, hidden), and `bias` (gates, hidden) that of the state's product that is not in the sums: of a GRU's n
    with linear_before_reset, else zeros."""
    usual = settings.is_usual(op) and peepholes is None
    scale = np.ones(GATES[op], weights.dtype)
    if usual:
        scale[: _LOGISTIC[op]] = 0.5
    weights, bias = np.ascontiguousarray(weights * scale[:, None, None]), bias * scale[:, None]
    if op == "RNN":
        return Cell(scale, _rnn(weights, _bounded(settings, 0)))
    if op == "GRU":
        return Cell(scale, (_usual_gru if usual else _gru)(weights, bias, settings))
    return Cell(scale, _usual_lstm(weights) if usual else _lstm(weights, peepholes, settings))


def _usual_lstm(weights: Array) -> Step:
    def step(sums: Array, h: Array, c: Array) -> State:
        gates = h @ weights
        gates += sums
        np.tanh(gates, out=gates)
        logistic, (i, o, f, g) = gates[:3], gates
        logistic += 1
        logistic *= 0.5
        c = f * c
        g *= i
        c += g
        return o * np.tanh(c), c

    return step


def _lstm(weights: Array, peepholes: Array | None, settings: Settings) -> Step:
    hidden = weights.shape[-1]
    f_of, g_of, h_of = (_bounded(settings, at) for at in range(3))
    p_i, p_o, p_f = np.zeros((3, hidden), weights.dtype) if peepholes is None else peepholes.reshape(3, hidden)

    def step(sums: Array, h: Array, c: Array) -> State:
        gates = h @ weights
        gates += sums
        i, o, f, g = gates
        i = f_of(i + p_i * c)
        f = 1 - i if settings.input_forget else f_of(f + p_f * c)
        c = f * c + i * g_of(g)
        return f_of(o + p_o * c) * h_of(c), c

    return step


def _usual_gru(weights: Array, bias: Array, settings: Settings) -> Step:
    gated, new, own = weights[:2], weights[2], bias[2]

    def step(sums: Array, h: Array, c: Array) -> State:
        gates = h @ gated
        gates += sums[:2]
        np.tanh(gates, out=gates)
        gates += 1
        gates *= 0.5
        z, r = gates
        n = r * (h @ new + own) if settings.separate else (r * h) @ new
        n += sums[2]
        np.tanh(n, out=n)
        return n + z * (h - n), c

    return step


def _gru(weights: Array, bias: Array, settings: Settings) -> Step:
    gated, new, own = weights[:2], weights[2], bias[2]
    f_of, g_of = _bounded(settings, 0), _bounded(settings, 1)

    def step(sums: Array, h: Array, c: Array) -> State:
        gates = f_of(h @ gated + sums[:2])
        z, r = gates
        n = r * (h @ new + own) if settings.separate else (r * h) @ new
        n = g_of(n + sums[2])
        return (1 - z) * n + z * h, c  # n may be much larger

    return step


def _rnn(weights: Array, function: Function) -> Step:
    def step(sums: Array, h: Array, c: Array) -> State:
        h = h @ weights[0]
        h += sums[0]
        return function(h), c

    return step


def _bounded(settings: Settings, at: int) -> Function:
    """An activation function of what is clipped before."""
    name, alpha, beta = settings.functions[at]
    function, clip = _FUNCTIONS[name](alpha, beta), settings.clip
    return function if clip is None else lambda x: function(np.clip(x, -clip, clip))


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))


def _elu(alpha: float) -> Function:
    return lambda x: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))


_FUNCTIONS: dict[str, Callable[[float, float], Function]] = {
    "affine": lambda alpha, beta: lambda x: alpha * x + beta,
    "elu": lambda alpha, beta: _elu(alpha),
    "hardsigmoid": lambda alpha, beta: lambda x: np.clip(alpha * x + beta, 0, 1),
    "leakyrelu": lambda alpha, beta: lambda x: np.where(x >= 0, x, alpha * x),
    "relu": lambda alpha, beta: lambda x: np.maximum(x, 0),
    "scaledtanh": lambda alpha, beta: lambda x: alpha * np.tanh(beta * x),
    "sigmoid": lambda alpha, beta: _logistic,
    "softplus": lambda alpha, beta: lambda x: np.logaddexp(x, 0),
    "softsign": lambda alpha, beta: lambda x: x / (1 + np.abs(x)),
    "tanh": lambda alpha, beta: np.tanh,
    "thresholdedrelu": lambda alpha, beta: lambda x: np.where(x > alpha, x, 0),
}
_STEEPNESS, _SLOPE = float(np.float32(0.2)), float(np.float32(0.01))  # float32, as attributes are
# default alpha and beta, None: there is none and a model states it; functions that are not here take neither
_NUMBERS: dict[str, tuple[tuple[float | None], tuple[float | None] | tuple[()]]] = {
    "affine": ((None,), (None,)), "elu": ((1.0,), ()), "hardsigmoid": ((_STEEPNESS,), (0.5,)), "leakyrelu": ((_SLOPE,), ()),
    "scaledtanh": ((None,), (None,)), "thresholdedrelu": ((1.0,), ()),
}  # fmt: skip


def functions_of(op: str, directions: int, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Any]:
    """For each direction, (name, alpha, beta) of its activation functions. A function that takes an alpha or beta takes the next one that
    the model states, or its default. ProblemError for a wrong number of functions, an unknown one, and one whose numbers are not there."""
    count = len(USUAL[op])
    names = [name.lower() for name in names] or [*USUAL[op]] * directions
    if len(names) != count * directions:
        raise ProblemError(f"it has {len(names)} activation functions; expected {count} for each direction, {count * directions}")
    left, found = (list(alphas), list(betas)), []
    for name in names:
        if name not in _FUNCTIONS:
            raise ProblemError(f'its activation function "{name}" is not known; known are {", ".join(sorted(_FUNCTIONS))}')
        taken = []
        for stated, default, what in zip(left, _NUMBERS.get(name, ((), ())), ("alpha", "beta"), strict=True):
            number = stated.pop(0) if default and stated else default[0] if default else 0.0
            if number is None:
                raise ProblemError(f"its activation function {name} needs an activation_{what}, which the model does not state")
            taken.append(float(number))
        found.append((name, *taken))
    return [tuple(found[at : at + count]) for at in range(0, len(found), count)]
