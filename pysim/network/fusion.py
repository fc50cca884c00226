# SPDX-License-Identifier: Apache-2.0
"""Fusion: constants are folded into weights, and a node absorbs the node behind it if no other node and no output reads its result.

    Affine after Affine           scale = s1 s2, shift = t1 s2 + t2
    Add of constants after Linear  bias' = bias + t
    Affine after Conv, Linear     w'[f]... = w[f]... s[f], bias' = bias s + t    (BatchNorm: s = gamma / sqrt(var + eps), t = beta - mean s)
    BatchNorm after Conv, Linear  with parameters that may change: inputs (x, w, bias or "", gamma, beta, mean, var), attribute epsilon
    Add after Conv, Linear        the other summand becomes the residual, input RESIDUAL_INPUT. If the layer overwrites its residual
                                  (OVERWRITE), a Conv, Linear or layer norm must have computed it and nothing may read it later
    BatchNormalization, Mul directly before a Conv that alone reads it: the Conv's InputOp; its operands except x follow the residual
    BatchNormalization after Concat     reads the parts: inputs (part, gamma, beta, mean, var, *other parts)
    Mul after Linear              by one number per filter: input gamma, attribute scaled
    Times after Conv, Linear      by a number: attribute times, which multiplies what norm and bias give
    an activation, also x sigmoid(x), after any node that supports it
    Affine, an activation         also behind Views of the layer's result, an activation behind transpositions, too
    Concat whose first inputs are all those of an earlier Concat     reads that one's result in their place (DenseNet)

Constants are combined in float64 and rounded once, where no value between them may leave its type's range. The executor says what a node
supports (`supports`).

Worked number: gamma 2, var 3, eps 1, mean 5, beta 7 is the scale 1 and the shift 2.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pysim.network.graph import Array, Graph, Node, Tensor, live

# Whether a node can absorb an activation (its name, or ("clamp", low, high)), or one of: a NORM; a RESIDUAL; a residual to OVERWRITE; an
# INPUT_OP; a SCALE per filter; a number that it is multiplied by (TIMES); for a Concat, whether a norm behind it can read its PARTS
Supports = Callable[[Node, Any], bool]
NORM, RESIDUAL, OVERWRITE, INPUT_OP, PARTS, SCALE, TIMES = "norm", "residual", "overwrite", "input_op", "parts", "scale", "times"
RESIDUAL_INPUT = 7  # the inputs of a Conv or Linear before it: x, w, bias, gamma, beta, mean, var; "" if absent
# operator -> activation, as the native epilogues name it
ACTIVATIONS = {
    "Relu": "relu", "Gelu": "gelu", "HardSwish": "hard_swish", "Sigmoid": "sigmoid", "Silu": "silu", "Tanh": "tanh", "Erf": "erf",
    "Exp": "exp", "Mish": "mish", "Softplus": "softplus",
}  # fmt: skip
_WEIGHTED_OPS = ("Conv", "Linear")


class InputOp(NamedTuple):
    """What a Conv does to its input first: a BatchNormalization with this epsilon, or with None a multiplication; then the activation.
    `absorbed`: the names of the nodes that it replaces."""

    epsilon: float | None
    activation: Any
    absorbed: tuple[str, ...]


def norm_constants(gamma: Array, beta: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
    """The scale and shift of BatchNorm in inference, in float64; not finite where a variance is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    return scale, beta.astype(np.float64) - mean.astype(np.float64) * scale


def _in_range(weights: Array, scaled: Array, scale: Array) -> bool:
    """Whether multiples of weights can be in the weights' place: neither infinite, nor so large that a part of a sum is, nor all so tiny
    that they are rounded as such."""
    largest, found = (float(np.abs(one).max(initial=0)) for one in (weights, scaled))
    limits = np.finfo(weights.dtype)
    few = min(float(limits.tiny / limits.eps), largest) <= found <= max(float(limits.max * limits.eps), largest)
    return bool(np.isfinite(scale).all() and np.isfinite(found)) and (few or not scale.any())


def _passes_range(sizes: Array, scale: Array, dtype: Any) -> bool:
    """Whether values of about these sizes may have left a type's range, which their multiples are in again: two multiplications then give
    zeros or infinities that one does not give."""
    least = float(np.sqrt(np.finfo(dtype).tiny))
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.abs(sizes * scale)
    return bool((((sizes > 0) & (sizes < least) & (scaled >= least)) | ((sizes > 1 / least) & (scaled <= 1 / least))).any())


def _is_product(shift: Array) -> bool:
    """Whether an Affine only multiplies, down to the signs of zeros: all its shifts are -0.0."""
    return bool((np.signbit(shift) & (shift == 0)).all())


def fuse(graph: Graph, supports: Supports) -> Graph:
    """An equivalent graph with fewer nodes."""
    fusion = _Fusion(graph, supports)
    for at in range(len(graph.nodes)):
        fusion.visit(at)
    return fusion.result()


class _Fusion:
    """One pass over the nodes in order. `_nodes` has None for absorbed nodes; `_makers` gives the node that computes a value now."""

    def __init__(self, graph: Graph, supports: Supports) -> None:
        self._graph, self._supports, self._users = graph, supports, graph.users()
        self._nodes: list[Node | None] = list(graph.nodes)
        self._constants, self._tensors = dict(graph.constants), graph.tensors
        self._makers = graph.makers()
        self._joined: dict[tuple[Any, ...], str] = {}  # (axis, parts) of a concatenation -> its result
        self._apart: set[int] = set()  # Affines that leave the range of numbers, with the layer before them or with the Affine behind

    def visit(self, at: int) -> None:
        node = self._graph.nodes[at]
        if node.op == "Concat":
            if not self._supports(node, PARTS):
                self._concat(at, node)
            return
        if node.op == "Add":
            self._residual(at, node)
            return
        if node.op == "Mul":
            if not self._scale(at, node):
                self._silu(at, node)
            return
        before = self._before(node)
        if before is None:
            return
        layer, view = self._nodes[before], None
        assert layer is not None
        moves = ("View", "Transpose") if activation_of(node) is not None else ("View",) if node.op == "Affine" else ()
        if layer.op in moves:
            before, view = self._behind(before, moves), before
            layer = self._nodes[before]
            assert layer is not None
        if node.op == "Affine":
            self._affine(before, layer, at, view)
        elif node.op == "BatchNormalization" and layer.op == "Concat" and self._supports(layer, PARTS):
            inputs = (layer.inputs[0], *node.inputs[1:], *layer.inputs[1:])
            self._absorb(before, node._replace(name=layer.name, inputs=inputs, absorbed=()), at)
        elif node.op == "BatchNormalization":
            # neither norm, scale, number nor residual comes before
            plain = len(layer.inputs) <= 3 and not layer.attributes.keys() & {"activation", "times"}
            if plain and self._supports(layer, NORM):
                inputs = (*_padded(layer.inputs, 3), *node.inputs[1:])
                self._absorb(before, layer._replace(inputs=inputs).having(epsilon=node.attributes["epsilon"]), at)
        elif node.op == "Times":
            plain = len(layer.inputs) <= RESIDUAL_INPUT and not layer.attributes.keys() & {"activation", "times"}
            if plain and layer.op in _WEIGHTED_OPS and self._supports(layer, TIMES):
                self._absorb(before, layer.having(times=node.attributes["factor"]), at)
        elif (
            (activation := activation_of(node)) is not None and not layer.attributes.get("activation") and self._supports(layer, activation)
        ):
            self._absorb(before, layer.having(activation=activation), at, view)

    def _behind(self, at: int, moves: tuple[str, ...]) -> int:
        """The node whose result the one at `at` shows or moves, through further ones of these operators, as long as nothing else reads it;
        else the last of them."""
        while (layer := self._nodes[at]) is not None and layer.op in moves and (before := self._before(layer)) is not None:
            at = before
        return at

    def _before(self, node: Node) -> int | None:
        """The index of the node that computes the first input of this one, if nothing else reads that."""
        name = node.inputs[0] if node.inputs else ""
        at = self._makers.get(name)
        return at if at is not None and len(self._users[name]) == 1 and self._nodes[at] is not None else None

    def _absorb(self, before: int, node: Node, at: int, view: int | None = None) -> None:
        """Replaces the node at `before` by `node`, which also computes the result of the node at `at`, shown or moved by the node at `view`
        if there is one."""
        absorbed, last = self._graph.nodes[at], before if view is None else view
        self._nodes[before] = node._replace(absorbed=(*node.absorbed, absorbed.name))
        shows = self._nodes[last]
        assert shows is not None
        self._nodes[last] = shows._replace(outputs=absorbed.outputs)
        self._nodes[at] = None
        self._makers[absorbed.output] = last

    def _affine(self, before: int, layer: Node, at: int, view: int | None) -> None:
        later = self._graph.nodes[at]
        if layer.op not in ("Affine", "Conv", "Linear") or layer.attributes.get("activation"):
            return
        if not all(name in self._constants for name in (*layer.inputs[1:], *later.inputs[1:])):
            return
        scale, shift = (self._constants[name].astype(np.float64) for name in later.inputs[1:])
        weights, *rest = (self._constants[name] for name in layer.inputs[1:])
        made, shown = (self._tensors[one].shape if one in self._tensors else () for one in (layer.output, later.output))
        fits = shown[1:] == made[-1:] if layer.op == "Linear" else view is None or shown[:2] == made[:2]
        if not fits or (view is not None and not made):
            return  # an Affine scales axis 1, a Linear's filters are its last axis; Views may lie between
        old = rest[0].astype(np.float64) if rest else np.zeros_like(shift)
        products = layer.op == "Affine" and _is_product(old) and _is_product(shift)
        if _is_product(shift) and not (products or (scale > 0).all() or self._adds_later(later)):
            return  # a sum of zeros is +0, whatever the sign of the factor
        along = scale.reshape(-1, *[1] * (weights.ndim - 1))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scaled = np.multiply(weights, along, out=np.empty_like(weights), casting="unsafe")  # computed in float64 in blocks
            folded = (scaled, (shift if products else old * scale + shift).astype(weights.dtype))
        sizes = np.maximum(np.abs(weights).reshape(len(weights), -1).max(1, initial=0), np.abs(old))
        in_range = _in_range(weights, scaled, along) and np.isfinite(folded[1]).all()
        if not in_range or before in self._apart or _passes_range(sizes, scale, weights.dtype):
            self._apart.add(at)
            return
        names = tuple(f"{later.output}:{what}" for what in ("scale" if layer.op == "Affine" else "weights", "shift"))
        self._constants.update(zip(names, folded, strict=True))
        self._absorb(before, layer._replace(inputs=(layer.inputs[0], *names)), at, view)

    def _adds_later(self, node: Node) -> bool:
        """Whether all that reads a result adds to it, so that the signs of its zeros are not seen."""
        readers = [self._graph.nodes[at] for at in self._users[node.output] if at < len(self._graph.nodes)]
        shifts = [self._constants.get(one.inputs[2]) for one in readers if one.op == "Affine"]
        adds = all(shift is not None and not (np.signbit(shift) & (shift == 0)).any() for shift in shifts)
        return adds and node.output not in self._graph.outputs and all(one.op in ("Add", "Affine") for one in readers)

    def _concat(self, at: int, node: Node) -> None:
        """A concatenation that begins with all parts of an earlier one reads its result instead: then the parts are copied to neither."""
        axis = node.attributes["axis"]
        for count in range(len(node.inputs) - 1, 0, -1):
            if (found := self._joined.get((axis, *node.inputs[:count]))) is not None:
                self._nodes[at] = node._replace(inputs=(found, *node.inputs[count:]))
                break
        self._joined.setdefault((axis, *node.inputs), node.output)

    def _residual(self, at: int, node: Node) -> None:
        """The layer that computes the later summand adds the other one. A constant cannot be a residual, since its layout is fixed; it may
        become part of a bias."""
        if self._bias(at, node):
            return
        places = [self._makers.get(name, -1) for name in node.inputs]
        if len(places) != 2 or places[0] == places[1]:
            return
        before, name, other = max(places), *(node.inputs if places[1] < places[0] else node.inputs[::-1])
        layer = self._nodes[before]
        if (
            layer is None
            or layer.op not in _WEIGHTED_OPS
            or not (self._supports(layer, RESIDUAL) or self._may_overwrite(layer, min(places), other, at))
        ):
            return
        same = other not in self._constants and self._tensors.get(other) == self._tensors.get(name)
        if same and len(self._users[name]) == 1 and not layer.attributes.get("activation") and len(layer.inputs) <= RESIDUAL_INPUT:
            self._absorb(before, layer._replace(inputs=(*_padded(layer.inputs, RESIDUAL_INPUT), other)), at)

    def _bias(self, at: int, node: Node) -> bool:
        """Whether the addition of one constant per column was folded into the bias of a Linear."""
        for name, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            before, value = self._makers.get(name), self._constants.get(other)
            layer = self._nodes[before] if before is not None else None
            if before is None or value is None or layer is None or layer.op != "Linear" or len(self._users[name]) > 1:
                continue
            columns, more = self._tensors[name].shape[-1], layer.attributes.get("activation") or len(layer.inputs) > 3
            constant = all(one in self._constants for one in layer.inputs[1:])
            if more or not constant or not (value.size == 1 or (value.size == columns and value.shape[-1:] == (columns,))):
                continue
            if self._tensors.get(node.output) != self._tensors[name]:
                continue
            old = self._constants[layer.inputs[2]].astype(np.float64) if len(layer.inputs) > 2 else np.zeros(columns)
            bias = f"{node.output}:bias"
            self._constants[bias] = (old + value.reshape(-1)).astype(value.dtype)
            self._absorb(before, layer._replace(inputs=(*layer.inputs[:2], bias)), at)
            return True
        return False

    def _may_overwrite(self, layer: Node, maker: int, other: str, at: int) -> bool:
        """Whether a layer may overwrite its residual: a layer or layer norm computed it, and all its other readers have run by then."""
        made, before = self._nodes[maker] if maker >= 0 else None, self._makers[layer.output]
        earlier = [user for user in self._users[other] if user != at]
        read_before = all(user < before and self._graph.nodes[user].op in _WEIGHTED_OPS for user in earlier)
        return made is not None and made.op in (*_WEIGHTED_OPS, "LayerNormalization") and read_before and self._supports(layer, OVERWRITE)

    def _scale(self, at: int, node: Node) -> bool:
        """Whether a multiplication by one number per filter was absorbed by the product before it."""
        for x, factor in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            before = self._makers.get(x)
            layer = self._nodes[before] if before is not None else None
            if before is None or layer is None or len(self._users[x]) != 1 or len(layer.inputs) > 3 or not self._supports(layer, SCALE):
                continue
            numbers = node.attributes.get("scales", {}).get(factor)
            if (
                numbers
                and numbers == layer.attributes.get("filters")
                and "over_channels" in layer.attributes
                and not layer.attributes.keys() & {"activation", "times"}
            ):
                self._absorb(before, layer._replace(inputs=(*_padded(layer.inputs, 3), factor)).having(scaled=True), at)
                return True
        return False

    def _silu(self, at: int, node: Node) -> None:
        """x sigmoid(x), if nothing else reads x or sigmoid(x)."""
        for x, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            gate, before = self._makers.get(other), self._makers.get(x)
            sigmoid = self._nodes[gate] if gate is not None else None
            layer = self._nodes[before] if before is not None else None
            if gate is None or before is None or sigmoid is None or layer is None or layer.attributes.get("activation"):
                continue
            alone = len(self._users[x]) == 2 and len(self._users[other]) == 1 and sigmoid.inputs == (x,)
            if sigmoid.op == "Sigmoid" and alone and self._supports(layer, "silu"):
                self._absorb(before, layer._replace(absorbed=(*layer.absorbed, sigmoid.name)).having(activation="silu"), at)
                self._nodes[gate] = None
                return

    def _absorb_input_ops(self) -> None:
        """A Conv absorbs the norm or multiplication directly before it. No node may stand between: it might overwrite what the latter
        reads."""
        kept = [at for at, node in enumerate(self._nodes) if node is not None]
        for before, at in pairwise(kept):
            first, layer = self._nodes[before], self._nodes[at]
            assert first is not None and layer is not None
            of_parts = first.op == "BatchNormalization" and len(first.inputs) > 5
            if first.op not in ("BatchNormalization", "Mul") or of_parts or layer.op != "Conv" or not self._supports(layer, INPUT_OP):
                continue
            if layer.inputs[0] != first.output or len(self._users[first.output]) != 1 or first.output in self._graph.outputs:
                continue
            inputs = (first.inputs[0], *_padded(layer.inputs, RESIDUAL_INPUT + 1)[1:], *first.inputs[1:])
            input_op = InputOp(first.attributes.get("epsilon"), first.attributes.get("activation"), (first.name, *first.absorbed))
            self._nodes[at], self._nodes[before] = layer._replace(inputs=inputs).having(input_op=input_op), None

    def result(self) -> Graph:
        self._absorb_input_ops()
        kept = tuple(node for node in self._nodes if node is not None)
        tensors = {name: Tensor(array.shape, array.dtype) for name, array in self._constants.items()}
        return live(self._graph._replace(nodes=kept, constants=self._constants, tensors={**self._tensors, **tensors}))


def _padded(inputs: tuple[str, ...], count: int) -> tuple[str, ...]:
    return (*inputs, *[""] * (count - len(inputs)))


def activation_of(node: Node) -> Any:
    """The activation that a node computes: a name, or a name and two numbers (`pysim.arguments.activation`); None for other nodes."""
    if node.op == "Clip" and len(node.inputs) == 1:
        return ("clamp", node.attributes["min"], node.attributes["max"])
    if node.op == "Gelu" and node.attributes.get("approximate", b"none") in (b"tanh", "tanh"):
        return "gelu_tanh"
    if node.op == "LeakyRelu":
        return ("leaky_relu", node.attributes["alpha"], 1.0)
    if node.op == "Elu":
        return ("elu", node.attributes["low"], node.attributes["high"])
    return ACTIVATIONS.get(node.op)
