# SPDX-License-Identifier: Apache-2.0
"""Lowers ONNX operators along axes, GridSample, TopK and recurrent layers to native operators (`pysim.network.native_ops.along`).

A recurrent layer is a Linear of all steps at once, for all gates and both directions, and a Recurrent of its sums. What is not usual (other
activations, clip, peepholes, input_forget, sequences of several lengths, computed weights) runs by its definition.

Worked number: an LSTM of 100 steps, 128 inputs and 128 hidden values is a product of 100 x 512 x 128, and 100 of 1 x 512 x 128.
"""

from collections.abc import Mapping

import numpy as np

from pysim.network.graph import Array, Graph, Node, Tensor
from pysim.network.lowering.array_operators import Constants, Parts, constant_of, is_native
from pysim.network.native_ops.along import split_at
from pysim.network.numpy_ops.recurrent import INPUTS, directions_of
from pysim.runtime.along_steps import PADDINGS, packed_panels

_MOST_BEST = 256  # elements of a TopK that are kept in order while a row is read


def _axes(node: Node, graph: Graph, constants: Constants) -> list[int] | None:
    """The axes of a reduction, which may be an input; None if they are not constant or nothing is reduced."""
    rank, given = len(graph.tensors[node.inputs[0]].shape), node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        if node.inputs[1] not in constants:
            return None
        given = constants[node.inputs[1]].reshape(-1).tolist()
    if not given:
        return None if node.attributes.get("noop_with_empty_axes") else [*range(rank)]
    return sorted({axis % rank for axis in given}) if rank else None


def reduction(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    axes = _axes(node, graph, constants)
    axis = None if axes is None else split_at(graph.tensors[node.inputs[0]].shape, axes)
    if axis is None or not is_native(graph, node.inputs[0], node.output):
        return None
    return Node(node.op, node.name, node.inputs[:1], node.outputs, {"axis": axis})


def place(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """ArgMax and ArgMin."""
    x, at = graph.tensors[node.inputs[0]].shape, node.attributes.get("axis", 0)
    if not is_native(graph, node.inputs[0]) or not x:
        return None
    axis = split_at(x, [at % len(x)])
    return Node(node.op, node.name, node.inputs, node.outputs, {"axis": axis, "last": bool(node.attributes.get("select_last_index", 0))})


def running_sum(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    x, at = graph.tensors[node.inputs[0]].shape, constants.get(node.inputs[1])
    if at is None or at.ndim or not is_native(graph, node.inputs[0]) or not x or not -len(x) <= int(at) < len(x):
        return None
    flags = {name: bool(node.attributes.get(of, 0)) for name, of in (("exclusive", "exclusive"), ("backward", "reverse"))}
    return Node(node.op, node.name, node.inputs[:1], node.outputs, {"axis": split_at(x, [int(at) % len(x)]), **flags})


def sample(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Nearest and linear samples of images."""
    (x, grid), mode = (graph.tensors[name] for name in node.inputs), node.attributes.get("mode", b"linear").removeprefix(b"bi")
    padding = node.attributes.get("padding_mode", b"zeros")
    fits = len(x.shape) == 4 and len(grid.shape) == 4 and grid.shape[0] == x.shape[0] and grid.shape[3] == 2 and x.dtype == grid.dtype
    if not fits or not is_native(graph, *node.inputs, node.output) or mode not in (b"linear", b"nearest") or padding not in PADDINGS:
        return None
    about = {"nearest": mode == b"nearest", "padding": padding, "aligned": bool(node.attributes.get("align_corners", 0))}
    return Node(node.op, node.name, node.inputs, node.outputs, about)


def best(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """TopK of few elements along the last axis, of which both outputs are used."""
    x, told = graph.tensors[node.inputs[0]].shape, node.inputs[1:]
    count = constants[told[0]] if told and told[0] in constants else np.array([] if told else [node.attributes.get("k", 0)])
    if count.size != 1 or not x or not is_native(graph, node.inputs[0]) or not all((*node.outputs, "")[:2]):
        return None
    k, last = int(count.reshape(())), node.attributes.get("axis", -1) % len(x) == len(x) - 1
    if not last or not 0 < k <= min(x[-1], _MOST_BEST):
        return None
    return Node(node.op, node.name, node.inputs[:1], node.outputs, {"largest": bool(node.attributes.get("largest", 1))})


def recurrent(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    given = dict(zip(INPUTS, node.inputs, strict=False))
    named = {place: name for place, name in given.items() if name}
    x = graph.tensors[named["X"]]
    held = {place: constants[name] for place, name in named.items() if place in "WRB" and name in constants}
    constant = all(place in held for place in ("W", "R", "B") if place in named)
    states = [named.get(place, "") for place in ("initial_h", "initial_c")]
    if not constant or not is_native(graph, *(name for name in (named["X"], *states) if name)) or len(x.shape) != 3:
        return None
    batch_first = bool(node.attributes.get("layout", 0))
    steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
    directions = directions_of(node.op, node.attributes, {**held, **({"P": np.empty(0)} if "P" in named else {})})
    lengths = constants.get(named.get("sequence_lens", ""))
    whole = "sequence_lens" not in named or (lengths is not None and lengths.shape == (batch,) and (lengths == steps).all())
    if directions is None or not whole:
        return None
    if held["W"].shape[:2] != held["R"].shape[:2] or held["W"].shape[2] != x.shape[2]:
        return None
    hidden, (weights, bias, kept) = held["R"].shape[-1], _weights(node.op, held, bool(node.attributes.get("linear_before_reset", 0)))
    kind = x.dtype
    packed = np.stack([packed_panels(r.astype(kind)) for r in _by_gate(node.op, held["R"])])
    base = next(filter(None, node.outputs))
    about = {"op": node.op, "hidden": hidden, "backward": directions, "batch_first": batch_first}
    sums = f"{base}:sums"
    names = [
        _constant(constants, base, what, of.astype(kind)) for what, of in (("weights", weights.reshape(-1, x.shape[-1])), ("bias", bias))
    ]
    inputs = [sums, _constant(constants, base, "packed", packed)]
    inputs += [_constant(constants, base, "kept", kept.astype(kind)) if kept is not None else "", *states]
    product = Node("Linear", f"{node.name}:inputs", (named["X"], *names), (sums,))
    last = Node("Recurrent", node.name, tuple(inputs), (*node.outputs, "", "")[:3], about | {"separate": kept is not None})
    return [(product, Tensor((*x.shape[:2], len(weights.reshape(-1, x.shape[-1]))), kind)), (last, None)]


def _constant(constants: Constants, base: str, what: str, array: Array) -> str:
    return constant_of(constants, Node("", "", (), (base,)), what, np.ascontiguousarray(array))


def _by_gate(op: str, r: Array) -> list[Array]:
    """R' of each direction, (gates, hidden, hidden)."""
    hidden = r.shape[-1]
    return [of.reshape(-1, hidden, hidden).transpose(0, 2, 1) for of in r]


def _weights(op: str, held: Mapping[str, Array], separate: bool) -> tuple[Array, Array, Array | None]:
    """(weights of the inputs, their bias, for all directions; the bias that stays with the state's product, or None)."""
    w, hidden = held["W"], held["R"].shape[-1]
    count, gates = w.shape[:2]
    of_input, of_state = held.get("B", np.zeros((count, 2 * gates), w.dtype)).reshape(count, 2, gates).swapaxes(0, 1)
    if op != "GRU" or not separate:
        return w, (of_input + of_state).reshape(-1), None
    summed = of_input + of_state
    summed[:, 2 * hidden :] = of_input[:, 2 * hidden :]
    return w, summed.reshape(-1), of_state[:, 2 * hidden :]


LOWER = {
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"), reduction), **dict.fromkeys(("ArgMax", "ArgMin"), place),
    "CumSum": running_sum, "GridSample": sample, "TopK": best,
}  # fmt: skip
EXPANSIONS = dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent)
