# SPDX-License-Identifier: Apache-2.0
"""A network as a value: nodes in an order in which they can run, values by name, constants as arrays.

Operators have ONNX's names and meanings (https://onnx.ai/onnx/operators/), whatever framework a graph is from. The exceptions are four
operators that every front end lowers to one form, so that fusion and execution handle only that:

    Conv    (x, w[, bias])       attributes: problem (a `Conv`), activation
    Linear  (x, w[, bias])       y[m][n] = x[m][k] w[n][k] + bias[n], where x is seen as a matrix of rows; attributes: activation
    Affine  (x, scale, shift)    y[n][c]... = x[n][c]... scale[c] + shift[c]; attributes: activation. A shift of -0.0 is none: zeros of
                                 the product keep their signs
    View    (x)                  the same elements in the same order under another shape

The value of a constant never changes. A front end whose weights may change leaves them out of `constants`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Tensor(NamedTuple):
    """The shape and type of a value, known before anything runs."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"

    @property
    def native(self) -> bool:
        """Whether the CPU kernels support its type."""
        return self.dtype.name in ("float32", "float64")

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Node(NamedTuple):
    """An operator; an optional input that is left out is "". `absorbed` names the nodes that were fused into this one."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = {}
    absorbed: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        return self.outputs[0]

    def having(self, **attributes: Any) -> "Node":
        return self._replace(attributes={**self.attributes, **attributes})


class Quantized(NamedTuple):
    """Integers that stand for scale (values - zero); scale and zero are one number, or one for each place of an axis, or with `block`
    arrays of one for each block of so many places of the axis, as ONNX's DequantizeLinear has them. `rounds`: what they
    multiply may be rounded to bytes by blocks."""

    values: Array
    scale: Array
    zero: Array
    axis: int
    block: int = 0
    rounds: bool = False

    def along(self, numbers: Array, axis: int) -> Array | None:
        """Scales or zeros so that they are broadcast to the values, or of axis 0 as a vector; None if they belong to another axis."""
        if numbers.size == 1:
            return numbers.reshape(())
        if self.block or numbers.ndim != 1 or self.axis % self.values.ndim != 0 or numbers.size != len(self.values):
            return None
        return numbers.reshape(-1, *[1] * axis)

    def transposed(self) -> "Quantized":
        """A matrix the other way round."""
        scale, zero = (self.scale.T, self.zero.T) if self.block else (self.scale, self.zero)
        return self._replace(values=np.ascontiguousarray(self.values.T), scale=scale, zero=zero, axis=1 - self.axis % 2)


class Graph(NamedTuple):
    """`quantized`: the constants among `constants` that were made of integers. `narrow`: the values that are bf16 in the model; the graph
    computes in float32, and may round them to bf16 or not. `half`: those that are float16 in it."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor] = {}
    constants: Mapping[str, Array] = {}
    quantized: Mapping[str, Quantized] = {}
    narrow: frozenset[str] = frozenset()
    half: frozenset[str] = frozenset()

    def users(self) -> dict[str, list[int]]:
        """For each value, the positions of the nodes that read it, once per read. A graph output is read at the end."""
        found: dict[str, list[int]] = {}
        for at, node in enumerate(self.nodes):
            for name in node.inputs:
                found.setdefault(name, []).append(at)
        for name in self.outputs:
            found.setdefault(name, []).append(len(self.nodes))
        return found

    def makers(self) -> dict[str, int]:
        """For each value, the position of the node that computes it."""
        return {name: at for at, node in enumerate(self.nodes) for name in node.outputs if name}


Evaluate = Callable[[Node, Sequence[Array]], Sequence[Array] | None]


def folded(graph: Graph, evaluate: Evaluate) -> Graph:
    """The graph with constant folding: `evaluate` computes nodes whose inputs are all constants, or returns None for a node to keep."""
    constants, nodes = dict(graph.constants), []
    for node in graph.nodes:
        known = all(name in constants or not name for name in node.inputs)
        made = evaluate(node, [constants[name] for name in node.inputs if name]) if known else None
        if made is None:
            nodes.append(node)
        else:
            constants |= {name: np.asarray(one, order="C") for name, one in zip(node.outputs, made, strict=True) if name}
    return graph._replace(nodes=tuple(nodes), constants=constants)


def live(graph: Graph) -> Graph:
    """The graph without dead nodes and unused constants."""
    wanted, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            kept.append(node)
    constants = {name: array for name, array in graph.constants.items() if name in wanted}
    return graph._replace(nodes=tuple(reversed(kept)), constants=constants)


def without_empty(graph: Graph, windowed: Collection[str]) -> Graph:
    """The graph with empty values as constants, so that no node computes them. Exception: an empty output of a `windowed` operator whose
    input is not empty. Its windows do not fit, which is an error."""
    empty = {name: np.empty(of.shape, of.dtype) for name, of in graph.tensors.items() if 0 in of.shape and name not in graph.inputs}
    for node in graph.nodes:
        if node.op in windowed and 0 not in graph.tensors[node.inputs[0]].shape:
            empty.pop(node.output, None)
    nodes = tuple(node for node in graph.nodes if not empty.keys() >= set(filter(None, node.outputs)))
    return graph._replace(nodes=nodes, constants={**graph.constants, **empty})


def renamed(nodes: Iterable[Node], names: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes with renamed inputs: names[x] instead of x."""
    return tuple(node._replace(inputs=tuple(names.get(name, name) for name in node.inputs)) for node in nodes)
