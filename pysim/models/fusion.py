# SPDX-License-Identifier: Apache-2.0
"""Which nodes are computed together: constants are folded into weights, activations follow where their operands are still in registers.

A node takes in the one behind it where it alone is read by that, and its result is no output of the graph:

    Affine after Affine           scale = s1 s2, shift = t1 s2 + t2
    Add of constants after Linear  bias' = bias + t
    Affine after Conv, Linear     w'[f]... = w[f]... s[f], bias' = bias s + t    (BatchNorm: s = gamma / sqrt(var + eps), t = beta - mean s)
    BatchNorm after Conv, Linear  whose numbers may change: inputs (x, w, bias or "", gamma, beta, mean, var), attribute epsilon
    Add after Conv, Linear        the other summand is its residual, input PARAMETERS. Where a layer writes over its residual (OVER), what
                                  made that is a Conv or Linear, too, and nothing reads it later
    BatchNormalization, Mul in front of a Conv that is next and alone reads it: what comes First, whose operands but x stand behind those
                                  of a sum with a residual
    BatchNormalization after Concat     of its parts: inputs (part, gamma, beta, mean, var, *other parts)
    Mul after Linear              by a number for each filter, its input gamma, attribute scaled
    an activation after any node that can have it in its epilogue; x sigmoid(x) is one
    Concat of what another Concat joins, and more      joins that one's result, and more (DenseNet)

Sums of constants are made in float64 and rounded once. What a node may have as an epilogue is the executor's to say (`able`).

Worked number: gamma 2, var 3, eps 1, mean 5, beta 7 is the scale 1 and the shift 2.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pysim.models.graph import Array, Graph, Node, Tensor, live

# whether a node can have an activation in its epilogue, take in a NORM, a RESIDUAL, one to write OVER, what comes FIRST, a SCALE for each
# filter, or, a concatenation, give its PARTS to what reads it
Able = Callable[[Node, Any], bool]
NORM, RESIDUAL, OVER, FIRST, PARTS, SCALE = "norm", "residual", "over", "first", "parts", "scale"
PARAMETERS = 7  # inputs of a Conv or Linear in front of its residual: x, w, bias, gamma, beta, mean, var; "" where it has none
# operators -> activations as the native epilogues name them
ACTIVATIONS = {
    "Relu": "relu", "Gelu": "gelu", "HardSwish": "hard_swish", "Sigmoid": "sigmoid", "Silu": "silu", "Tanh": "tanh", "Erf": "erf"
}  # fmt: skip
_SUMS = ("Conv", "Linear")


class First(NamedTuple):
    """What a Conv does to its input before: a BatchNormalization of `epsilon`, or without one a product, and its activation; the nodes that
    it was."""

    epsilon: float | None
    activation: Any
    absorbed: tuple[str, ...]


def norm_constants(gamma: Array, beta: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
    """BatchNorm in inference as (scale, shift), in float64."""
    scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    return scale, beta.astype(np.float64) - mean.astype(np.float64) * scale


def fused(graph: Graph, able: Able) -> Graph:
    """The graph with fewer nodes that computes the same."""
    found = _Fusion(graph, able)
    for at in range(len(graph.nodes)):
        found.visit(at)
    return found.result()


class _Fusion:
    """One walk in the graph's order; `stands_for` says which kept node makes a value now."""

    def __init__(self, graph: Graph, able: Able) -> None:
        self._graph, self._able, self._users = graph, able, graph.users()
        self._nodes: list[Node | None] = list(graph.nodes)
        self._constants, self._tensors = dict(graph.constants), graph.tensors
        self._makers = graph.makers()
        self._joined: dict[tuple[Any, ...], str] = {}  # (axis, parts) of a concatenation -> its result

    def visit(self, at: int) -> None:
        node = self._graph.nodes[at]
        if node.op == "Concat":
            if not self._able(node, PARTS):
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
        taking = self._nodes[before]
        assert taking is not None
        if node.op == "Affine":
            self._affine(before, taking, at)
        elif node.op == "BatchNormalization" and taking.op == "Concat" and self._able(taking, PARTS):
            inputs = (taking.inputs[0], *node.inputs[1:], *taking.inputs[1:])
            self._replace(before, node._replace(name=taking.name, inputs=inputs, absorbed=()), at)
        elif node.op == "BatchNormalization":
            if "activation" not in taking.attributes and "epsilon" not in taking.attributes and self._able(taking, NORM):
                inputs = (*_filled(taking.inputs, 3), *node.inputs[1:])
                self._replace(before, taking._replace(inputs=inputs).having(epsilon=node.attributes["epsilon"]), at)
        elif (activation := activation_of(node)) is not None and not taking.attributes.get("activation") and self._able(taking, activation):
            self._replace(before, taking.having(activation=activation), at)

    def _before(self, node: Node) -> int | None:
        """The place of the node whose result this one alone reads, as its first input."""
        name = node.inputs[0] if node.inputs else ""
        at = self._makers.get(name)
        return at if at is not None and len(self._users[name]) == 1 and self._nodes[at] is not None else None

    def _replace(self, before: int, node: Node, at: int) -> None:
        """The node at `before` computes what the one at `at` did, too."""
        gone = self._graph.nodes[at]
        self._nodes[before] = node._replace(outputs=gone.outputs, absorbed=(*node.absorbed, gone.name))
        self._nodes[at] = None
        self._makers[gone.output] = before

    def _affine(self, before: int, taking: Node, at: int) -> None:
        later = self._graph.nodes[at]
        if taking.op not in ("Affine", "Conv", "Linear") or taking.attributes.get("activation"):
            return
        if not all(name in self._constants for name in (*taking.inputs[1:], *later.inputs[1:])):
            return
        scale, shift = (self._constants[name].astype(np.float64) for name in later.inputs[1:])
        weights, *rest = (self._constants[name] for name in taking.inputs[1:])
        if taking.op == "Linear" and len(self._tensors[taking.output].shape) != 2:
            return  # the channels of an Affine are not its columns
        old = rest[0].astype(np.float64) if rest else np.zeros_like(shift)
        along = scale.reshape(-1, *[1] * (weights.ndim - 1))
        scaled = np.multiply(weights, along, out=np.empty_like(weights), casting="unsafe")  # in float64, a few at a time, rounded once
        made = (scaled, (old * scale + shift).astype(weights.dtype))
        names = tuple(f"{later.output}:{what}" for what in ("scale" if taking.op == "Affine" else "weights", "shift"))
        self._constants.update(zip(names, made, strict=True))
        self._replace(before, taking._replace(inputs=(taking.inputs[0], *names)), at)

    def _concat(self, at: int, node: Node) -> None:
        """One that begins with the parts of another takes that one's result: the parts can lie in both then, and are copied to neither."""
        axis = node.attributes["axis"]
        for count in range(len(node.inputs) - 1, 0, -1):
            if (found := self._joined.get((axis, *node.inputs[:count]))) is not None:
                self._nodes[at] = node._replace(inputs=(found, *node.inputs[count:]))
                break
        self._joined.setdefault((axis, *node.inputs), node.output)

    def _residual(self, at: int, node: Node) -> None:
        """Of two summands the one that is made later adds the other, unless that is a constant, which has no layout but its own: it is part
        of a bias, or nothing."""
        if self._bias(at, node):
            return
        places = [self._makers.get(name, -1) for name in node.inputs]
        if len(places) != 2 or places[0] == places[1]:
            return
        before, name, other = max(places), *(node.inputs if places[1] < places[0] else node.inputs[::-1])
        taking = self._nodes[before]
        if taking is None or taking.op not in _SUMS or not (self._able(taking, RESIDUAL) or self._over(taking, min(places), other, at)):
            return
        same = other not in self._constants and self._tensors.get(other) == self._tensors.get(name)
        if same and len(self._users[name]) == 1 and not taking.attributes.get("activation") and len(taking.inputs) <= PARAMETERS:
            self._replace(before, taking._replace(inputs=(*_filled(taking.inputs, PARAMETERS), other)), at)

    def _bias(self, at: int, node: Node) -> bool:
        """A constant for each column of a Linear is part of its bias."""
        for name, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            before, value = self._makers.get(name), self._constants.get(other)
            taking = self._nodes[before] if before is not None else None
            if before is None or value is None or taking is None or taking.op != "Linear" or len(self._users[name]) > 1:
                continue
            columns, more = self._tensors[name].shape[-1], taking.attributes.get("activation") or len(taking.inputs) > 3
            settled = all(one in self._constants for one in taking.inputs[1:])
            if more or not settled or not (value.size == 1 or (value.size == columns and value.shape[-1:] == (columns,))):
                continue
            if self._tensors.get(node.output) != self._tensors[name]:
                continue
            old = self._constants[taking.inputs[2]].astype(np.float64) if len(taking.inputs) > 2 else np.zeros(columns)
            called = f"{node.output}:bias"
            self._constants[called] = (old + value.reshape(-1)).astype(value.dtype)
            self._replace(before, taking._replace(inputs=(*taking.inputs[:2], called)), at)
            return True
        return False

    def _over(self, taking: Node, maker: int, other: str, at: int) -> bool:
        """Whether a layer may write over its residual: another one made it, and others that have run then are all that read it."""
        made, before = self._nodes[maker] if maker >= 0 else None, self._makers[taking.output]
        earlier = [user for user in self._users[other] if user != at]
        read_before = all(user < before and self._graph.nodes[user].op in _SUMS for user in earlier)
        return made is not None and made.op in (*_SUMS, "LayerNormalization") and read_before and self._able(taking, OVER)

    def _scale(self, at: int, node: Node) -> bool:
        """Whether a product's results are multiplied by a number for each filter, which it does itself then."""
        for x, factor in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            before = self._makers.get(x)
            taking = self._nodes[before] if before is not None else None
            if before is None or taking is None or len(self._users[x]) != 1 or len(taking.inputs) > 3 or not self._able(taking, SCALE):
                continue
            of_each = node.attributes.get("scales", {}).get(factor)
            if (
                of_each
                and of_each == taking.attributes.get("filters")
                and "over_channels" in taking.attributes
                and not taking.attributes.get("activation")
            ):
                self._replace(before, taking._replace(inputs=(*_filled(taking.inputs, 3), factor)).having(scaled=True), at)
                return True
        return False

    def _silu(self, at: int, node: Node) -> None:
        """x sigmoid(x) of an x that nobody else reads."""
        for x, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
            gate, before = self._makers.get(other), self._makers.get(x)
            sigmoid = self._nodes[gate] if gate is not None else None
            taking = self._nodes[before] if before is not None else None
            if gate is None or before is None or sigmoid is None or taking is None or taking.attributes.get("activation"):
                continue
            alone = len(self._users[x]) == 2 and len(self._users[other]) == 1 and sigmoid.inputs == (x,)
            if sigmoid.op == "Sigmoid" and alone and self._able(taking, "silu"):
                self._replace(before, taking._replace(absorbed=(*taking.absorbed, sigmoid.name)).having(activation="silu"), at)
                self._nodes[gate] = None
                return

    def _first(self) -> None:
        """What stands right in front of a Conv becomes its own; between them nothing may write over what it reads."""
        kept = [at for at, node in enumerate(self._nodes) if node is not None]
        for before, at in pairwise(kept):
            first, taking = self._nodes[before], self._nodes[at]
            assert first is not None and taking is not None
            of_parts = first.op == "BatchNormalization" and len(first.inputs) > 5
            if first.op not in ("BatchNormalization", "Mul") or of_parts or taking.op != "Conv" or not self._able(taking, FIRST):
                continue
            if taking.inputs[0] != first.output or len(self._users[first.output]) != 1 or first.output in self._graph.outputs:
                continue
            inputs = (first.inputs[0], *_filled(taking.inputs, PARAMETERS + 1)[1:], *first.inputs[1:])
            told = First(first.attributes.get("epsilon"), first.attributes.get("activation"), (first.name, *first.absorbed))
            self._nodes[at], self._nodes[before] = taking._replace(inputs=inputs).having(first=told), None

    def result(self) -> Graph:
        self._first()
        kept = tuple(node for node in self._nodes if node is not None)
        made = {name: Tensor(array.shape, array.dtype) for name, array in self._constants.items()}
        return live(self._graph._replace(nodes=kept, constants=self._constants, tensors={**self._tensors, **made}))


def _filled(inputs: tuple[str, ...], count: int) -> tuple[str, ...]:
    return (*inputs, *[""] * (count - len(inputs)))


def activation_of(node: Node) -> Any:
    """The activation that a node is, or None: a name, or ("clamp", low, high)."""
    if node.op == "Clip" and len(node.inputs) == 1:
        return ("clamp", node.attributes["min"], node.attributes["max"])
    if node.op == "Gelu" and node.attributes.get("approximate", b"none") in (b"tanh", "tanh"):
        return "gelu_tanh"
    return ACTIVATIONS.get(node.op)
